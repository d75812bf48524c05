"""Folders of any depth."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def walk(folder: Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Everything in a folder and its sub-folders, but not in folders that links lead to.

    Note: `Path.rglob` skips folders that cannot be read, and fails where a thousand lie within each
        other.

    Args:
        folder: The folder.
        on_error: Called for a folder that cannot be read; the error has its name.

    Raises:
        OSError: A folder cannot be read, and there is no `on_error`.
    """
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    yield path
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
        except OSError as error:
            if on_error is None:
                raise
            on_error(error)
