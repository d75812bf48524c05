import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from ngsan import durable
from tests.kills import end_of, fork, kills


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", [b"", b"new", os.urandom(100_000)], ids=len)
def test_a_file_is_made_and_replaced(tmp_path, content):
    path = tmp_path / "file"
    durable.write_bytes(path, content)
    assert path.read_bytes() == content
    durable.write_bytes(str(path), b"other")
    assert path.read_bytes() == b"other"
    assert names(tmp_path) == ["file"]


def test_text_is_written_as_it_is(tmp_path):
    durable.write_text(tmp_path / "file", "a\r\nß\n")
    assert (tmp_path / "file").read_bytes() == "a\r\nß\n".encode()


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    path = tmp_path / "nowhere" / "file"
    with pytest.raises(FileNotFoundError) as caught:
        durable.write_text(path, "text")
    assert caught.value.filename == str(path)


def test_others_may_read_it(tmp_path):
    mask = os.umask(0o022)
    try:
        durable.write_text(tmp_path / "file", "text")
    finally:
        os.umask(mask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_the_content_is_on_the_disk_before_the_name_and_then_the_name(tmp_path, monkeypatch):
    path, done = tmp_path / "file", []
    fsync, replace = os.fsync, os.replace

    def seen_fsync(number):
        done.append(("flush", os.fstat(number).st_ino))
        fsync(number)

    def seen_replace(old, new):
        done.append(("name", Path(old).stat().st_ino))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    durable.write_bytes(path, b"content")
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    renamed = done.index(("name", file))
    assert ("flush", file) in done[:renamed]
    assert ("flush", folder) in done[renamed:]


def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "file"
    found = []
    durable.write_bytes(path, b"old")
    for _ in kills(lambda: durable.write_bytes(path, b"new")):
        found.append(path.read_bytes())
    assert found[0] == b"old"
    assert found[-1] == b"new"
    assert set(found) == {b"old", b"new"}
    durable.remove_partials(path)
    assert names(tmp_path) == ["file"]


def test_only_what_is_left_of_that_file_is_removed(tmp_path):
    for name in ("a", "a.1.partial", "a.2.partial.2.partial", "ab.1.partial", "a.partials"):
        (tmp_path / name).touch()
    durable.remove_partials(tmp_path / "a")
    assert names(tmp_path) == ["a", "a.partials", "ab.1.partial"]


def test_a_block_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail():
        with durable.replacing(path) as partial:
            partial.write_bytes(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_file_may_be_replaced_by_a_link_to_itself(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with durable.replacing(path) as partial:
        os.link(path, partial)
    assert names(tmp_path) == ["file"]


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'") as caught:
        durable.write_bytes(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_limit_of_the_system_names_the_file(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            durable.write_bytes(path, bytes(5000))

    assert end_of(fork(limited)) == 0
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_file_system_that_cannot_flush_folders(tmp_path, monkeypatch):
    def refusing(code):
        def fsync(number):
            raise OSError(code, os.strerror(code))

        return fsync

    monkeypatch.setattr(os, "fsync", refusing(errno.EINVAL))
    durable.flush_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO))
    with pytest.raises(OSError, match=f"'{tmp_path}'"):
        durable.flush_folder(tmp_path)


def test_folders_are_made_and_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(durable, "flush_folder", flushed.append)
    durable.make_folder(tmp_path / "a" / "b")
    durable.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert set(flushed) == {tmp_path, tmp_path / "a"}
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    durable.make_folder("c/d")
    assert (tmp_path / "c" / "d").is_dir()


@pytest.mark.parametrize("content", ["ß\r\n", b"\x00\xff"])
def test_an_output_is_what_a_link_leads_to_and_the_link_stays(tmp_path, content):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "link").symlink_to("real/file")
    durable.write_output(tmp_path / "link", content)
    written = content.encode() if isinstance(content, str) else content
    assert (tmp_path / "real" / "file").read_bytes() == written
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path) == ["link", "real"]
    assert names(tmp_path / "real") == ["file"]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        durable.write_output(pipe, "text")
        with durable.replacing_output(pipe) as place:
            place.write_text(", and more")
        assert os.read(reader, 100) == b"text, and more"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert names(tmp_path) == ["pipe"]


@pytest.mark.parametrize("name", ["/dev/null", "/dev/stdout", "/proc/self/fd/1"])
def test_a_device_is_no_file_to_replace(tmp_path, name):
    assert durable.is_stream(name)
    (tmp_path / "link").symlink_to(name)
    assert durable.is_stream(tmp_path / "link")
    assert not durable.is_stream(tmp_path / "new")
    assert not durable.is_stream(__file__)


def test_links_in_a_circle_are_told(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "a/file"):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            durable.write_output(tmp_path / name, "text")


def test_an_output_that_cannot_be_written_is_named_and_the_old_one_is_left(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        durable.write_output(tmp_path / "nowhere" / "file", "text")
    assert caught.value.filename == str(tmp_path / "nowhere" / "file")
    durable.write_text(tmp_path / "file", "old")
    with suppress(ZeroDivisionError), durable.replacing_output(tmp_path / "file") as place:
        place.write_text("half")
        raise ZeroDivisionError
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]
