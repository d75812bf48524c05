import glob
import os
import subprocess
from itertools import product
from pathlib import Path

import pytest

from ngsan.vision.patterns import expand, is_pattern


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder with folders, files, hidden ones and links, which becomes the current one."""
    monkeypatch.chdir(tmp_path)
    for path in ("a/b/one.jpg", "a/two.png", "a/.hidden/three.jpg", "c/[x].jpg", ".dot.jpg"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    Path("gone.jpg").symlink_to("nowhere")
    Path("link").symlink_to("a/b")
    return tmp_path


def test_patterns_match_what_glob_matches(tree):
    parts = ["*", "**", "a", "b", "?", "[ac]", ".*", "*.jpg", "one.*", "l*", "absent"]
    patterns = ["/".join(words) for count in (1, 2, 3) for words in product(parts, repeat=count)]
    for pattern in filter(glob.has_magic, patterns):
        found, unread = expand(pattern)
        globbed = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
        expected = {path for path in globbed if os.path.lexists(path)} - {Path()}  # not "b/"
        assert set(found) == expected, pattern
        assert found == sorted(set(found))
        assert not unread
    absolute, _ = expand(f"{tree}/**/*.jpg")
    assert absolute == [
        tree / path for path in ("a/b/one.jpg", "c/[x].jpg", "gone.jpg", "link/one.jpg")
    ]


def test_names_that_look_like_patterns(tree):
    assert not is_pattern("c/[x].jpg")
    assert is_pattern("c/[y].jpg")
    assert expand("c/\0*") == ([], [])


def test_folders_that_cannot_be_read_are_returned(closed_folder):
    above = closed_folder.parent
    for pattern in ("*/*", "**/*.jpg", "closed/*"):
        assert expand(str(above / pattern))[1] == [closed_folder]


def test_circles_of_links_and_a_thousand_folders_within_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(1100):
        Path("d").mkdir()
        os.chdir("d")
    Path("one.jpg").touch()
    os.chdir(tmp_path)
    Path("back").symlink_to(".")
    assert expand("**/*.jpg") == ([Path("d/" * 1100 + "one.jpg")], [])
    subprocess.run(["rm", "-rf", "d"], check=True)  # Python alone cannot remove it
