"""Patterns of paths, such as `photos/**/*.jpg`.

Note: Python's `glob` skips folders that cannot be read without a word, fails where a thousand lie
    within each other, and follows links in circles.
"""

import fnmatch
import glob
import os
from collections.abc import Iterator
from pathlib import Path

ALL = "**"
"""Stands for any number of folders within each other."""


def is_pattern(path: str) -> bool:
    """Whether a path is a pattern; a name that exists may contain the characters of one."""
    return glob.has_magic(path) and not os.path.lexists(path)


def expand(pattern: str) -> tuple[list[Path], list[Path]]:
    """Expands a pattern; hidden names match only where the pattern has the dot, too.

    Returns:
        The paths that match, sorted, and the folders that could not be read.
    """
    unread: list[Path] = []
    path = Path(pattern)
    found = {Path(path.anchor)}
    parts = path.parts[1:] if path.anchor else path.parts
    for number, part in enumerate(parts, start=1):
        last = number == len(parts)
        found = {one for folder in found for one in _step(folder, part, unread, files=last)}
    return sorted(found - {Path()}), sorted(set(unread))


def _step(folder: Path, part: str, unread: list[Path], *, files: bool) -> Iterator[Path]:
    """What a part of a pattern matches in a folder; only folders, unless it is the last part."""
    if part == ALL:
        yield from _within(folder, unread, files=files)
    elif not glob.has_magic(part):
        path = folder / part
        if os.path.lexists(path) if files else os.path.isdir(path):  # noqa: PTH112
            yield path
    else:
        for name in fnmatch.filter(_names(folder, unread), part):
            path = folder / name
            hidden = name.startswith(".") and not part.startswith(".")
            if not hidden and (files or os.path.isdir(path)):  # noqa: PTH112
                yield path


def _within(top: Path, unread: list[Path], *, files: bool) -> Iterator[Path]:
    """A folder and the folders in it, without links to a parent; perhaps with the files."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(top, ())]
    while waiting:
        folder, above = waiting.pop()
        real = os.path.realpath(folder)
        if real in above:
            continue
        yield folder
        for name in _names(folder, unread):
            path = folder / name
            if name.startswith("."):
                continue
            if os.path.isdir(path):  # noqa: PTH112
                waiting.append((path, (*above, real)))
            elif files:
                yield path


def _names(folder: Path, unread: list[Path]) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        unread.append(folder)
        return []
