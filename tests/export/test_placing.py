"""Folders that take their place whole, also when the power fails."""

import os
from pathlib import Path

import pytest

from ngsan.export.placing import placed


def fill(folder):
    (folder / "model").write_text("new")
    (folder / "inner").mkdir()
    (folder / "inner" / "words").write_text("new")


@pytest.fixture
def events(monkeypatch):
    """What is sent to the disk and renamed, in this order, by names."""
    found, sync, rename = [], os.fsync, Path.rename

    def name(number):
        return Path(f"/proc/self/fd/{number}").readlink().name

    monkeypatch.setattr(os, "fsync", lambda number: (found.append(name(number)), sync(number)))
    monkeypatch.setattr(
        Path, "rename", lambda path, to: (found.append(f"-> {to.name}"), rename(path, to))[1]
    )
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="tells open files by /proc")
@pytest.mark.parametrize("before", [False, True], ids=["new", "replaced"])
def test_all_is_on_the_disk_before_the_folder_has_its_name(tmp_path, events, before):
    target = tmp_path / "target"
    if before:
        target.mkdir()
        (target / "model").write_text("old")
    with placed(target) as folder:
        events.clear()
        fill(folder)
    there = events.index("-> target")
    assert {"model", "words", "inner", folder.name} <= set(events[:there])
    assert events[there + 1 :] == [tmp_path.name]
    assert (target / "model").read_text() == (target / "inner" / "words").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_failure_leaves_the_old_folder(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "model").write_text("old")

    with pytest.raises(FileExistsError), placed(target) as folder:
        folder.mkdir()
    assert (target / "model").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
