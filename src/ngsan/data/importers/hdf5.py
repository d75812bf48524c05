"""Features in one HDF5 file, in the layouts that other captioners and VQA models use.

1. Rows: `features` or `image_features` holds all images, dense (images, N, D), as rows of any
   length, or as one list (all regions, D) with `pos_boxes` (images, 2) as its bounds; `boxes` or
   `image_bb` has the same form; `image_id`, `width`, `height` and `num_boxes` have one number per
   image.
2. Pairs: the datasets `{id}_features` and `{id}_boxes`, two per image.
3. Groups: a group per image, with `features`, `bbox`, and the size as datasets or attributes.
"""

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ngsan.data.ids import canonical_id
from ngsan.data.importers.features import (
    BOX_NAMES,
    COUNT_NAMES,
    FEATURE_NAMES,
    MAX_BYTES,
    SIDE_NAMES,
    Array,
    BoxRules,
    FoundRegions,
    GridAxes,
    Item,
    Position,
    find_regions,
    image_size,
    make_regions,
    place,
    too_large,
    valid_id,
    whole_number,
)
from ngsan.data.problems import Problems
from ngsan.data.store import BadRegionsError

ID_NAMES = ("image_id", "image_ids", "img_id", "ids")

_CHUNK_CACHE = 64 * 2**20
_GZIP, _SHUFFLE, _FLETCHER32, _LZF = 1, 2, 3, 32000
_FILTERS = {_GZIP, _SHUFFLE, _FLETCHER32, _LZF}
_GZIP_RATIO = 1032
_SMALL_CHUNK = 1 << 24
_SLACK = 64
_FEATURES, _BOXES = "_features", "_boxes"

# What h5py raises for files that were cut off or changed.
_UNREADABLE = (
    ArithmeticError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class _Layout:
    """How the images of a file are found."""

    unit: str
    """What a position names: "row" or "key"."""

    entries: Sequence[Any]
    """The rows or keys, in order."""

    image_id: Callable[[Any], str | int]
    load: Callable[[Any], FoundRegions]


def hdf5_total(path: str | Path, *, ids: Sequence[str | int] | None = None) -> int:
    """The number of images; the unit of `done` in positions."""
    with _open(Path(path)) as file:
        return len(_layout(file, ids).entries)


def read_hdf5(
    path: str | Path,
    *,
    problems: Problems,
    start: Position | None = None,
    ids: Sequence[str | int] | None = None,
    grid: GridAxes = "hwd",
    box_rules: BoxRules | None = None,
) -> Iterator[Item]:
    """Reads an HDF5 file, whose layout is detected from its names.

    Args:
        path: The file.
        problems: Where bad images are reported.
        start: The position of the last image that was read already.
        ids: The id of each row, for files of rows without ids.
        grid: The axes of features that are a grid.
        box_rules: How the boxes are read.

    Yields:
        Position (`file`, `row` or `key`, `done`), image id and regions.
    """
    rules = BoxRules() if box_rules is None else box_rules
    with _open(Path(path)) as file:
        layout = _layout(file, ids)
        for done, entry in enumerate(layout.entries, start=1):
            if start is not None and entry <= start[layout.unit]:
                continue
            position: Position = {"file": str(path), layout.unit: entry, "done": done}
            image_id = None
            try:
                image_id = valid_id(lambda entry: canonical_id(layout.image_id(entry)), entry)
                regions = make_regions(image_id, _loaded(layout.load, entry), rules, grid=grid)
            except BadRegionsError as bad:
                problems.report(bad.kind, place(position, image_id), str(bad))
                continue
            yield position, image_id, regions


def _h5py() -> Any:
    try:
        return import_module("h5py")
    except ImportError as error:
        raise ValueError("HDF5 files need h5py: pip install 'ngsan[hdf5]'") from error


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    h5py = _h5py()
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        file = h5py.File(path, "r", rdcc_nbytes=_CHUNK_CACHE)
    except OSError as error:
        raise ValueError(f"{path}: cut off, or not an HDF5 file: {error}") from error
    with file:
        yield file


def _loaded(load: Callable[[Any], FoundRegions], entry: Any) -> FoundRegions:
    try:
        return load(entry)
    except BadRegionsError:
        raise
    except _UNREADABLE as error:
        raise BadRegionsError("unreadable data", f"cut off or damaged: {error}") from error


class _LayoutError(ValueError):
    """The file is readable but has an unknown layout."""


def _layout(file: Any, ids: Sequence[str | int] | None) -> _Layout:
    """Detects the layout of a file; a `ValueError` names what the file holds."""
    h5py = _h5py()
    try:
        names = set(file)
        if any(isinstance(_get(file, name), h5py.Dataset) for name in names & set(FEATURE_NAMES)):
            return _rows(file, names, ids)
        if any(name.endswith(_FEATURES) for name in names):
            return _pairs(file, names)
        if any(isinstance(_get(file, name), h5py.Group) for name in sorted(names)):
            return _groups(file, sorted(names))
    except (_LayoutError, BadRegionsError) as error:
        raise ValueError(f"{file.filename}: {error}") from error
    except _UNREADABLE as error:
        raise ValueError(f"{file.filename}: cut off or damaged: {error}") from error
    shown = ", ".join(sorted(names)[:8]) or "nothing"
    raise ValueError(
        f"{file.filename}: unknown layout, it holds {shown}. Known are: rows (image_id, width, "
        "height, num_boxes, boxes, features; or image_features, image_bb), pairs ({id}_features, "
        "{id}_boxes), and a group per image (features, bbox)"
    )


def _get(group: Any, name: str) -> Any:
    """A dataset or group of the file itself; a `BadRegionsError` if its data would lie elsewhere.

    A file from a stranger could otherwise have any file of this machine imported.
    """
    h5py = _h5py()
    link = group.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        raise BadRegionsError("link", f"{name} is a link, which is not followed: save a copy")
    found = group[name]
    if isinstance(found, h5py.Dataset) and (found.external or found.is_virtual):
        raise BadRegionsError(
            "data elsewhere", f"the data of {name} lie in another file: save them in this one"
        )
    return found


def _read(dataset: Any, where: Any = ()) -> Array:
    """A part of a dataset, unless it is far larger than the regions of an image."""
    if not isinstance(dataset, _h5py().Dataset):
        raise BadRegionsError("wrong type", f"{dataset.name} is a group, not numbers")
    if isinstance(where, slice):
        count = (where.stop - where.start) * math.prod(dataset.shape[1:])
    else:
        count = math.prod(dataset.shape[0 if where == () else 1 :])
    _check_numbers(dataset.name, dataset.dtype, count)
    chunk = math.prod(dataset.chunks or ())
    if chunk * dataset.dtype.itemsize > MAX_BYTES:  # it is unpacked as a whole
        raise too_large(f"{dataset.name} has chunks of {chunk:,} numbers")
    if dataset.chunks:
        _check_chunks(dataset, where)
    part: Array = dataset[where]
    return part


def _check_chunks(dataset: Any, where: Any) -> None:
    """Rejects packed chunks that unpack to more than a chunk has; HDF5 itself would unpack all."""
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    if unknown := sorted({*filters} - _FILTERS):
        raise BadRegionsError(
            "unknown packing", f"{dataset.name} is packed with filter {unknown[0]}: use gzip or lzf"
        )
    if _GZIP not in filters:
        return
    if filters.count(_GZIP) > 1:
        raise BadRegionsError("unknown packing", f"{dataset.name} is packed with gzip twice")
    height, full = dataset.chunks[0], math.prod(dataset.chunks) * dataset.dtype.itemsize
    rows = slice(None) if where == () else where
    rows = rows if isinstance(rows, slice) else slice(rows, rows + 1)
    first, end, _ = rows.indices(dataset.shape[0])
    axes = zip(dataset.shape[1:], dataset.chunks[1:], strict=True)
    starts = (range(first // height * height, end, height), *(range(0, *axis) for axis in axes))
    for corner in itertools.product(*starts):
        packed = dataset.id.get_chunk_info_by_coord(corner).size
        if packed * _GZIP_RATIO <= max(full, _SMALL_CHUNK):
            continue
        skipped, content = dataset.id.read_direct_chunk(corner)
        if skipped >> filters.index(_GZIP) & 1:  # it is not packed
            continue
        try:
            unpacked = zlib.decompressobj().decompress(content, full + _SLACK + 1)
        except zlib.error as error:
            raise BadRegionsError("unreadable data", f"cut off or damaged: {error}") from error
        if len(unpacked) > full + _SLACK:
            raise too_large(f"a chunk of {dataset.name} unpacks to more than its {full:,} bytes")


def _read_attribute(group: Any, name: str) -> Any:
    attribute = group.attrs.get_id(name)
    _check_numbers(f"attribute {name}", attribute.dtype, math.prod(attribute.shape))
    return group.attrs[name]


def _check_numbers(name: str, kind: Any, count: int) -> None:
    """Rejects too many numbers, and lists of lists, which may all be the same long one."""
    if count * kind.itemsize > MAX_BYTES:
        raise too_large(f"{name} has {count:,} numbers")
    if kind.hasobject and count > 1:
        raise BadRegionsError("wrong type", f"{name} holds {kind}, not numbers")


def _pairs(file: Any, there: set[str]) -> _Layout:
    keys = {name.removesuffix(_FEATURES) for name in there if name.endswith(_FEATURES)}
    keys |= {name.removesuffix(_BOXES) for name in there if name.endswith(_BOXES)}

    def load(key: str) -> FoundRegions:
        names = [name for name in ("features", "boxes") if f"{key}_{name}" in there]
        return find_regions(names, lambda name: _read(_get(file, f"{key}_{name}")))

    return _Layout("key", sorted(keys), str, load)


def _groups(file: Any, groups: list[str]) -> _Layout:
    def load(key: str) -> FoundRegions:
        group = _get(file, key)
        names = {*group, *group.attrs} if isinstance(group, _h5py().Group) else ()
        return find_regions(
            names,
            lambda name: (
                _read(_get(group, name)) if name in group else _read_attribute(group, name)
            ),
        )

    return _Layout("key", groups, str, load)


def _rows(file: Any, there: set[str], ids: Sequence[str | int] | None) -> _Layout:
    """The layout of one array for all images, after a check that the arrays fit together."""

    def first(names: Sequence[str]) -> Any:
        return next((_get(file, name) for name in names if name in there), None)

    features, boxes = first(FEATURE_NAMES), first(("image_bb", *BOX_NAMES))
    bounds, counts, id_set = first(("pos_boxes",)), first(COUNT_NAMES), first(ID_NAMES)
    sides = next(
        ([_get(file, name) for name in pair] for pair in SIDE_NAMES if set(pair) <= there), []
    )
    if ids is None and id_set is None:
        raise _LayoutError(
            f"no image ids (none of {', '.join(ID_NAMES)}): pass the id of each row with ids"
        )
    if features.ndim == 2 and bounds is None:
        raise _LayoutError(
            f"{features.name} is {features.shape}, which is one vector per image, or lacks "
            "pos_boxes, the bounds of each image's regions"
        )
    total = len(features if bounds is None else bounds)
    parts = [counts, id_set, *sides, boxes if bounds is None else None]
    lengths = {part.name.lstrip("/"): len(part) for part in parts if part is not None}
    for name, length in (lengths if ids is None else {**lengths, "ids": len(ids)}).items():
        if length != total:
            raise _LayoutError(
                f"{name} has {length} rows, but there are features of {total} images"
            )

    def image_id(row: int) -> str | int:
        value: Any = _read(id_set, row) if ids is None else ids[row]
        if isinstance(value, bytes):
            return value.decode("utf-8")
        found: str | int = int(value) if isinstance(value, np.integer) else value
        return found

    def load(row: int) -> FoundRegions:
        count = None if counts is None else whole_number("num_boxes", _read(counts, row))
        size = image_size(*(_read(side, row) for side in sides)) if sides else None
        where = row if bounds is None else _bounds(_read(bounds, row), (features, boxes))
        real = count if bounds is None else None  # only rows of equal length are padded
        some = None if boxes is None else _part("boxes", _read(boxes, where), real, width=4)
        vectors = _read(features, where)
        if vectors.ndim == 1 and real is None and some is not None:
            real = len(some)
        return FoundRegions(_part("features", vectors, real), some, size, count)

    return _Layout("row", range(total), image_id, load)


def _bounds(pair: Array, arrays: Sequence[Any]) -> slice:
    """The place of an image's regions in the list of all."""
    first, end = (whole_number("pos_boxes", bound) for bound in pair)
    total = min(len(array) for array in arrays if array is not None)
    if not 0 <= first < end <= total:
        raise BadRegionsError(
            "bad bounds", f"pos_boxes are ({first}, {end}), but there are {total} regions"
        )
    return slice(first, end)


def _part(name: str, value: Array, count: int | None, width: int | None = None) -> Array:
    """The features or boxes of one image as (N, D).

    Args:
        name: "features" or "boxes", for messages.
        value: (N, D), padded (more than N, D), flat (N * D,), or a grid, which stays as it is.
        count: N, if known.
        width: D, if known.
    """
    if value.ndim == 2 and count is not None and len(value) > count:
        return value[:count]
    if value.ndim != 1:
        return value
    if count is None and width is not None:
        count = len(value) // width
    if count is None:
        raise BadRegionsError("no boxes", "nor num_boxes: features cannot be separated")
    if count < 1 or len(value) == 0 or len(value) % count:
        raise BadRegionsError(
            "wrong byte count",
            f"{name} hold {len(value)} numbers, which do not divide into {count} regions",
        )
    return value.reshape(count, -1)
