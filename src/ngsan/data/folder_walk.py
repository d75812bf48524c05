"""Folders of any depth."""

import os
from collections.abc import Iterator
from pathlib import Path


def walk(folder: Path) -> Iterator[Path]:
    """Everything in a folder and its sub-folders, but not in folders that links lead to.

    Note: `Path.rglob` skips folders that cannot be read, and fails where a thousand lie within each
        other.

    Raises:
        OSError: A folder cannot be read; names it.
    """
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                yield path
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
