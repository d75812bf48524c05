"""Folders that appear whole or not at all, and take the place of none but their own kind."""

import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ngsan.durable import flush, flush_folder, make_folder


def refuse_foreign(
    target: Path, kind: str, files: Iterable[str], others: Iterable[str] = ()
) -> None:
    """Raises a `ValueError` unless there is nothing, an empty folder, or one of the kind.

    Args:
        target: Where a folder is to be.
        kind: What it is to be, in words.
        files: What a folder of the kind has.
        others: What it may have besides.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise ValueError(f"{target} is a file: {kind} is a folder")
    names, wanted = {path.name for path in target.iterdir()}, set(files)
    foreign = sorted(names - wanted - set(others))
    if foreign or (names and not wanted <= names):
        raise ValueError(
            f"{target} holds something else than {kind} "
            f"({', '.join(foreign or sorted(names))}): choose an empty or a new folder"
        )


@contextmanager
def placed(target: Path) -> Iterator[Path]:
    """Gives a new folder to write into; when the block ends well, it takes the target's place.

    It is sent to the disk before it gets its name: a loss of power leaves the old one or the new.

    Args:
        target: Its name; what is there is put out of the way first, and removed.

    Yields:
        A folder beside the target. Nothing of it is left when the block fails.
    """
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    make_folder(partial)
    try:
        yield partial
        for path in partial.rglob("*"):
            if path.is_dir():
                flush_folder(path)
            else:
                flush(path)
        flush_folder(partial)
        _put_in_place(partial, target)
        flush_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, target: Path) -> None:
    """Moves the new folder to the target, and the old one out of the way first."""
    if not target.exists():
        partial.rename(target)
        return
    old = partial.with_suffix(".old")
    target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)
