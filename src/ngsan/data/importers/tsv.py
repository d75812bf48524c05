"""The tab-separated files of bottom-up attention and similar detectors, a line per image.

The columns `boxes` and `features` are 32-bit floating point numbers in base64, so that a line is
half a megabyte long (36 regions of 2048 numbers) or more.
"""

import binascii
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pybase64
from numpy.typing import NDArray

from ngsan.data.ids import canonical_id
from ngsan.data.importers.features import (
    BoxRules,
    FoundRegions,
    Item,
    Position,
    image_size,
    make_regions,
    place,
    valid_id,
    whole_number,
)
from ngsan.data.problems import Problems
from ngsan.data.store import BadRegionsError, Regions

BOTTOM_UP_FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
"""The columns of the original files."""

LXMERT_FIELDS = (
    "img_id",
    "img_h",
    "img_w",
    "objects_id",
    "objects_conf",
    "attrs_id",
    "attrs_conf",
    "num_boxes",
    "boxes",
    "features",
)
"""The columns of LXMERT's files; the height comes before the width."""

MAX_LINE = 64 * 2**20
"""Bytes after which a line is too long for this format."""

_READ_AHEAD = 4 * 2**20
_MAX_CELLS = 64
_OTHER_NAMES = {
    "img_id": "image_id",
    "img_w": "image_w",
    "img_h": "image_h",
    "width": "image_w",
    "height": "image_h",
    "num_bbox": "num_boxes",
    "bbox": "boxes",
}


def tsv_total(paths: str | Path | Sequence[str | Path]) -> int:
    """The bytes of the files; the unit of `done` in positions."""
    return sum(path.stat().st_size for path in _files(paths))


def read_tsv(
    paths: str | Path | Sequence[str | Path],
    *,
    problems: Problems,
    start: Position | None = None,
    fields: Sequence[str] = BOTTOM_UP_FIELDS,
    box_rules: BoxRules | None = None,
) -> Iterator[Item]:
    """Reads tab-separated files, one line at a time.

    Args:
        paths: A file, or several that are read one after the other.
        problems: Where bad lines are reported.
        start: The position of the last image that was read already.
        fields: The names of the columns; a header line in the file overrides it. Columns other
            than those of `BOTTOM_UP_FIELDS` are ignored; those of the size may be missing.
        box_rules: How the boxes are read.

    Yields:
        Position (`file`, `part`, `byte`, `line`, `done`), image id and regions.
    """
    rules = BoxRules() if box_rules is None else box_rules
    given = _columns(fields)
    before = 0
    for part, path in enumerate(_files(paths)):
        if start is None or part >= start["part"]:
            header = _header(path)
            columns = given if header is None else _columns(header)
            here = start if start is not None and part == start["part"] else None
            for cells, byte, number in _lines(path, here, problems):
                if number == 1 and header is not None:
                    continue
                position = {"file": str(path), "part": part, "byte": byte, "line": number}
                position["done"] = before + byte
                item = _read_line(cells, position, columns, rules, problems)
                if item is not None:
                    yield item
        before += path.stat().st_size


def _files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files, all of which exist."""
    several = [paths] if isinstance(paths, str | Path) else paths
    files = [Path(path) for path in several]
    if not files:
        raise ValueError("no file was given")
    for path in files:
        if not path.is_file():
            raise ValueError(f"{path}: no such file")
    return files


def _columns(fields: Sequence[str]) -> tuple[str, ...]:
    """The columns with the names of `BOTTOM_UP_FIELDS`, checked."""
    columns = tuple(_OTHER_NAMES.get(name, name) for name in fields)
    for name in ("image_id", "num_boxes", "boxes", "features"):
        if columns.count(name) != 1:
            raise ValueError(
                f"fields: {', '.join(fields)} must name {name} once; "
                f"the usual columns are {', '.join(BOTTOM_UP_FIELDS)}"
            )
    if ("image_w" in columns) != ("image_h" in columns):
        raise ValueError(f"fields: {', '.join(fields)} name only one side of the image")
    return columns


def _header(path: Path) -> list[str] | None:
    """The column names, if the first line of a file holds names instead of data."""
    with path.open("rb") as file:
        cells = file.readline(4096).strip().split(b"\t")
    names = [cell.decode("utf-8", "replace") for cell in cells]
    known = {_OTHER_NAMES.get(name, name) for name in names}
    return names if {"image_id", "boxes", "features"} <= known else None


def _lines(
    path: Path, start: Position | None, problems: Problems
) -> Iterator[tuple[list[memoryview], int, int]]:
    """The lines of a file after `start` that are not blank, split into cells.

    Note: the cells are views of one reused buffer, valid until the next line; allocating half a
        megabyte per line, and again for its cells, would cost as much as a large part of decoding.

    Yields:
        The cells, the byte at which the next line begins, and the line's number, from 1.
    """
    byte, number = (start["byte"], start["line"]) if start else (0, 0)
    buffer = bytearray(_READ_AHEAD)
    begin = end = 0  # bounds of what is read but not yet split into lines
    with path.open("rb", buffering=0) as file:
        file.seek(byte)
        while True:
            stop = buffer.find(b"\n", begin, end)
            if stop < 0:
                rest = end - begin
                if rest >= MAX_LINE:
                    where = place({"file": path, "line": number + 1})
                    message = f"no line end in {rest} bytes; is this a compressed or binary file?"
                    problems.report("not a table", where, message)
                    return
                larger = buffer if rest < len(buffer) else bytearray(2 * len(buffer))
                larger[:rest] = buffer[begin:end]
                buffer, begin, end = larger, 0, rest
                end += file.readinto(memoryview(buffer)[rest:])
                if end > rest:
                    continue
                if rest == 0:
                    break
                stop = end  # the last line has no end
            byte += min(stop + 1, end) - begin
            number += 1
            cells = _cells(buffer, begin, stop)
            begin = min(stop + 1, end)
            if len(cells) > 1 or bytes(cells[0]).strip():
                yield cells, byte, number
    if number == 0:
        problems.report("empty file", str(path), "it has no lines")


def _cells(buffer: bytearray, begin: int, stop: int) -> list[memoryview]:
    if stop > begin and buffer[stop - 1] == ord("\r"):
        stop -= 1
    view = memoryview(buffer)
    cells: list[memoryview] = []
    while len(cells) < _MAX_CELLS and (tab := buffer.find(b"\t", begin, stop)) >= 0:
        cells.append(view[begin:tab])
        begin = tab + 1
    return [*cells, view[begin:stop]]


def _read_line(
    cells: list[memoryview],
    position: Position,
    columns: tuple[str, ...],
    rules: BoxRules,
    problems: Problems,
) -> Item | None:
    """The image of one line, or None after a problem is reported."""
    image_id = None
    try:
        if len(cells) != len(columns):
            raise BadRegionsError(
                "wrong number of columns",
                f"{len(cells)} columns, not {len(columns)} ({', '.join(columns)}); the line may "
                "be cut off, or have other columns: name them with fields",
            )
        row = dict(zip(columns, cells, strict=True))
        image_id = valid_id(lambda cell: canonical_id(str(cell, "utf-8")), row["image_id"])
        return position, image_id, _regions(image_id, row, rules)
    except BadRegionsError as bad:
        problems.report(bad.kind, place(position, image_id), str(bad))
        return None


def _text(cell: memoryview) -> str:
    return str(cell[:1000], "utf-8", "backslashreplace")


def _regions(image_id: str, row: dict[str, memoryview], rules: BoxRules) -> Regions:
    count = whole_number("num_boxes", _text(row["num_boxes"]))
    if count < 1:
        raise BadRegionsError("no regions", f"num_boxes is {count}")
    size = None
    if "image_w" in row:
        size = image_size(_text(row["image_w"]), _text(row["image_h"]))
    boxes = _numbers("boxes", row["boxes"])
    if len(boxes) != 4 * count:
        raise BadRegionsError(
            "wrong byte count",
            f"boxes hold {len(boxes)} numbers, which is not 4 for each of num_boxes {count}",
        )
    features = _numbers("features", row["features"])
    if len(features) == 0 or len(features) % count:
        raise BadRegionsError(
            "wrong byte count",
            f"features hold {len(features)} numbers, which do not divide into num_boxes {count}",
        )
    found = FoundRegions(features.reshape(count, -1), boxes.reshape(count, 4), size)
    return make_regions(image_id, found, rules)


def _numbers(name: str, cell: memoryview) -> NDArray[np.float32]:
    """The numbers of a base64 cell; `b'...'`, as some writers left it, is unwrapped."""
    if len(cell) > 2 and bytes(cell[:2]) == b"b'" and bytes(cell[-1:]) == b"'":
        cell = cell[2:-1]
    try:
        # Thirty times as fast as `binascii`.
        return np.frombuffer(pybase64.b64decode(cell, validate=True), "<f4")
    except binascii.Error as error:
        raise BadRegionsError("broken base64", f"{name}: {error}") from error
    except ValueError as error:
        raise BadRegionsError("wrong byte count", f"{name}: {error}") from error
