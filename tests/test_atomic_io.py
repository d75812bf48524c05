import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from ngsan import atomic_io
from tests.kills import end_of, fork, kills


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", [b"", b"new", os.urandom(100_000)], ids=len)
def test_write_bytes_creates_and_replaces(tmp_path, content):
    path = tmp_path / "file"
    atomic_io.write_bytes(path, content)
    assert path.read_bytes() == content
    atomic_io.write_bytes(str(path), b"other")
    assert path.read_bytes() == b"other"
    assert names(tmp_path) == ["file"]


def test_write_text_keeps_line_ends(tmp_path):
    atomic_io.write_text(tmp_path / "file", "a\r\nß\n")
    assert (tmp_path / "file").read_bytes() == "a\r\nß\n".encode()


def test_error_names_the_target_file(tmp_path):
    path = tmp_path / "nowhere" / "file"
    with pytest.raises(FileNotFoundError) as caught:
        atomic_io.write_text(path, "text")
    assert caught.value.filename == str(path)


def test_file_mode_follows_the_umask(tmp_path):
    mask = os.umask(0o022)
    try:
        atomic_io.write_text(tmp_path / "file", "text")
    finally:
        os.umask(mask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_content_is_flushed_before_and_folder_after_the_rename(tmp_path, monkeypatch):
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
    atomic_io.write_bytes(path, b"content")
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    renamed = done.index(("name", file))
    assert ("flush", file) in done[:renamed]
    assert ("flush", folder) in done[renamed:]


def test_kill_leaves_the_old_or_the_new_file(tmp_path):
    path = tmp_path / "file"
    found = []
    atomic_io.write_bytes(path, b"old")
    for _ in kills(lambda: atomic_io.write_bytes(path, b"new")):
        found.append(path.read_bytes())
    assert found[0] == b"old"
    assert found[-1] == b"new"
    assert set(found) == {b"old", b"new"}
    atomic_io.remove_partials(path)
    assert names(tmp_path) == ["file"]


def test_remove_partials_removes_only_those_of_the_file(tmp_path):
    for name in ("a", "a.1.partial", "a.2.partial.2.partial", "ab.1.partial", "a.partials"):
        (tmp_path / name).touch()
    atomic_io.remove_partials(tmp_path / "a")
    assert names(tmp_path) == ["a", "a.partials", "ab.1.partial"]


def test_failed_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail():
        with atomic_io.replace_file(path) as partial:
            partial.write_bytes(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_file_can_be_replaced_by_a_hard_link_to_itself(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with atomic_io.replace_file(path) as partial:
        os.link(path, partial)
    assert names(tmp_path) == ["file"]


def test_full_disk_error_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'") as caught:
        atomic_io.write_bytes(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_file_size_limit_error_names_the_file(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            atomic_io.write_bytes(path, bytes(5000))

    assert end_of(fork(limited)) == 0
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_flush_folder_ignores_unsupported_file_systems(tmp_path, monkeypatch):
    def refusing(code):
        def fsync(number):
            raise OSError(code, os.strerror(code))

        return fsync

    monkeypatch.setattr(os, "fsync", refusing(errno.EINVAL))
    atomic_io.flush_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO))
    with pytest.raises(OSError, match=f"'{tmp_path}'"):
        atomic_io.flush_folder(tmp_path)


def test_make_folder_creates_and_flushes(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(atomic_io, "flush_folder", flushed.append)
    atomic_io.make_folder(tmp_path / "a" / "b")
    atomic_io.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert set(flushed) == {tmp_path, tmp_path / "a"}
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    atomic_io.make_folder("c/d")
    assert (tmp_path / "c" / "d").is_dir()


@pytest.mark.parametrize("content", ["ß\r\n", b"\x00\xff"])
def test_write_output_follows_links(tmp_path, content):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "link").symlink_to("real/file")
    atomic_io.write_output(tmp_path / "link", content)
    written = content.encode() if isinstance(content, str) else content
    assert (tmp_path / "real" / "file").read_bytes() == written
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path) == ["link", "real"]
    assert names(tmp_path / "real") == ["file"]


def test_write_output_keeps_pipes(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic_io.write_output(pipe, "text")
        with atomic_io.replace_output(pipe) as place:
            place.write_text(", and more")
        assert os.read(reader, 100) == b"text, and more"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert names(tmp_path) == ["pipe"]


@pytest.mark.parametrize("name", ["/dev/null", "/dev/stdout", "/proc/self/fd/1"])
def test_devices_are_streams(tmp_path, name):
    assert atomic_io.is_stream(name)
    (tmp_path / "link").symlink_to(name)
    assert atomic_io.is_stream(tmp_path / "link")
    assert not atomic_io.is_stream(tmp_path / "new")
    assert not atomic_io.is_stream(__file__)


def test_circular_links_raise(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "a/file"):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            atomic_io.write_output(tmp_path / name, "text")


def test_failed_output_leaves_the_old_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        atomic_io.write_output(tmp_path / "nowhere" / "file", "text")
    assert caught.value.filename == str(tmp_path / "nowhere" / "file")
    atomic_io.write_text(tmp_path / "file", "old")
    with suppress(ZeroDivisionError), atomic_io.replace_output(tmp_path / "file") as place:
        place.write_text("half")
        raise ZeroDivisionError
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def fill(folder):
    (folder / "model").write_text("new")
    (folder / "inner").mkdir()
    (folder / "inner" / "words").write_text("new")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads names of open files in /proc")
@pytest.mark.parametrize("before", [False, True], ids=["new", "replaced"])
def test_folder_is_flushed_before_the_rename(tmp_path, monkeypatch, before):
    events, sync, rename = [], os.fsync, Path.rename

    def name(number):
        return Path(f"/proc/self/fd/{number}").readlink().name

    monkeypatch.setattr(os, "fsync", lambda number: (events.append(name(number)), sync(number)))
    monkeypatch.setattr(
        Path, "rename", lambda path, to: (events.append(f"-> {to.name}"), rename(path, to))[1]
    )
    target = tmp_path / "target"
    if before:
        target.mkdir()
        (target / "model").write_text("old")
    with atomic_io.replace_folder(target) as folder:
        events.clear()
        fill(folder)
    rename_index = events.index("-> target")
    assert {"model", "words", "inner", folder.name} <= set(events[:rename_index])
    assert events[rename_index + 1 :] == [tmp_path.name]
    assert (target / "model").read_text() == (target / "inner" / "words").read_text() == "new"
    assert names(tmp_path) == ["target"]


def test_failed_block_leaves_the_old_folder(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "model").write_text("old")
    with pytest.raises(FileExistsError), atomic_io.replace_folder(target) as folder:
        folder.mkdir()
    assert (target / "model").read_text() == "old"
    assert names(tmp_path) == ["target"]


def test_kill_leaves_the_old_or_the_new_folder(tmp_path):
    target = tmp_path / "target"

    def write():
        with atomic_io.replace_folder(target) as folder:
            fill(folder)

    target.mkdir()
    (target / "model").write_text("old")
    found = set()
    for _ in kills(write):
        place = target if target.exists() else tmp_path / "target.old"
        found.add((place / "model").read_text())
        if target.exists() and (target / "inner").exists():
            assert (target / "inner" / "words").read_text() == "new"
    assert found == {"old", "new"}
    assert names(tmp_path) == ["target"]


def test_seal_detects_every_changed_byte(tmp_path):
    path = tmp_path / "manifest.json"
    content = {"files": {"ä": {"bytes": 3}}, "done": (1, None), "share": 0.1}
    path.write_text(atomic_io.seal(content))
    assert atomic_io.read_sealed(path) == {**content, "done": [1, None]}
    text = path.read_bytes()
    for place in range(len(text)):
        path.write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
            atomic_io.read_sealed(path)
    for broken in (text[:-1], text + b" ", b"[]", b"", b"\xff", b"[" * 100_000):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
            atomic_io.read_sealed(path)


def test_check_file_compares_size_and_hash(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    entry = atomic_io.file_entry(path)
    assert entry["sha256"].startswith("ba7816bf8f01cfea")  # FIPS 180-2
    atomic_io.check_file(path, entry)
    path.write_bytes(b"abd")
    atomic_io.check_file(path, entry, content=False)
    with pytest.raises(ValueError, match="SHA-256"):
        atomic_io.check_file(path, entry)
    path.write_bytes(b"ab")
    with pytest.raises(ValueError, match="2 bytes instead of 3"):
        atomic_io.check_file(path, entry, content=False)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="file"):
        atomic_io.check_file(path, entry)


def test_folder_lock_is_exclusive(tmp_path):
    path = tmp_path / "new" / ".lock"

    def second():
        with pytest.raises(ValueError, match="another import into .*new is under way"):
            atomic_io.take_lock(path)

    with atomic_io.folder_lock(path):
        assert end_of(fork(second)) == 0
    assert not path.exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "holes"])
def test_small_files_are_small_and_regular(kind, tmp_path):
    path = tmp_path / "manifest.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(ValueError, match="is not a regular file|has 1,099,511,627,776 bytes"):
        atomic_io.read_small(path)
    with pytest.raises(ValueError, match="is not a regular file|has 1,099,511,627,776 bytes"):
        atomic_io.read_sealed(path)
