"""Folders of NumPy files, one an image: `.npz` of named arrays, or `.npy` with boxes apart."""

import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from ngsan.data.importers.features_import import Item, Position, list_files, read_folder
from ngsan.data.importers.region_boxes import (
    BOX_NAMES,
    Array,
    BadRegionsError,
    BoxRules,
    GridAxes,
    find_regions,
    make_regions,
)
from ngsan.data.problems import Problems
from ngsan.data.store import Regions

T = TypeVar("T")

SUFFIXES = (".npy", ".npz")

_NPY = b"\x93NUMPY"
_ZIP = b"PK"
_PICKLE = b"\x80"

# All that NumPy and its unpacker were seen to raise for files cut off or changed at any byte.
_UNREADABLE = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def npz_total(folder: str | Path, *, boxes: str | Path | None = None) -> int:
    """The number of files; `done` of a position counts towards it."""
    return len(list_files(folder, SUFFIXES, leave_out=boxes))


def read_npz(
    folder: str | Path,
    *,
    problems: Problems,
    start: Position | None = None,
    boxes: str | Path | None = None,
    grid: GridAxes = "hwd",
    box_rules: BoxRules | None = None,
) -> Iterator[Item]:
    """Reads a folder of `.npz` or `.npy` files and the folders within it, sorted by name.

    Args:
        folder: The files; a file's name without its ending is the image's id.
        problems: Where bad files are reported.
        start: The position of the last image that is read already.
        boxes: A second folder whose files of the same names hold the boxes.
        grid: The axes of features that are a grid.
        box_rules: How the boxes are to be read.

    Yields:
        Position (`file`, `done`), image id and regions.
    """
    folder, rules = Path(folder), BoxRules() if box_rules is None else box_rules
    box_folder = None if boxes is None else Path(boxes)
    if box_folder is not None and not box_folder.is_dir():
        raise ValueError(f"{box_folder}: no such folder")

    def load(name: str, image_id: str) -> Regions:
        found = read_arrays(folder / name, find_regions, alone="features")
        if box_folder is not None:
            found = replace(found, boxes=_boxes_of(box_folder / name))
        return make_regions(image_id, found, rules, grid=grid)

    names = list_files(folder, SUFFIXES, leave_out=boxes)
    yield from read_folder(names, load, start=start, problems=problems)


def _boxes_of(beside: Path) -> Array:
    """The boxes in the file of this name, whichever its ending."""
    for suffix in SUFFIXES:
        path = beside.with_suffix(suffix)
        if path.is_file():
            return read_arrays(path, _find_boxes, alone="boxes")
    raise BadRegionsError("no boxes", f"there is no {beside.with_suffix('')}.npy or .npz")


def _find_boxes(names: Collection[str], get: Callable[[str], Array]) -> Array:
    for name in (*BOX_NAMES, "arr_0"):
        if name in names:
            return get(name)
    raise BadRegionsError(
        "no boxes",
        f"the file of boxes holds {', '.join(sorted(names)) or 'nothing'}, but none of "
        f"{', '.join(BOX_NAMES)}",
    )


def read_arrays(
    path: Path, take: Callable[[Collection[str], Callable[[str], Array]], T], *, alone: str
) -> T:
    """Takes arrays out of a NumPy file. Nothing pickled is ever loaded.

    Args:
        path: An `.npy` or `.npz` file.
        take: Gets the names of the arrays and a function that reads one, and makes the result.
        alone: The name that the one array of an `.npy` file goes by.

    Returns:
        What `take` makes.

    Raises:
        BadRegionsError: The file is cut off, damaged, or of another kind.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(_NPY))
            if not head.startswith((_NPY, _ZIP)):
                raise _foreign(path, head)
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return take((alone,), lambda _: loaded)
            with loaded:
                return take(loaded.files, loaded.__getitem__)
    except BadRegionsError:
        raise
    except _UNREADABLE as error:
        if "Object arrays" in str(error):
            raise _pickled(path) from error
        raise BadRegionsError(
            "unreadable file", f"{path} is cut off or damaged: {error or type(error).__name__}"
        ) from error


def _foreign(path: Path, head: bytes) -> BadRegionsError:
    """What to say of a file that does not begin as a NumPy file does."""
    if head.startswith(_PICKLE):
        return _pickled(path)
    what = f"begins with {head!r}, which no NumPy file does" if head else "is empty"
    return BadRegionsError("unreadable file", f"{path} {what}")


def _pickled(path: Path) -> BadRegionsError:
    return BadRegionsError(
        "pickled data",
        f"{path} holds Python objects, which are never loaded because they may run any program; "
        "save plain arrays in their place",
    )
