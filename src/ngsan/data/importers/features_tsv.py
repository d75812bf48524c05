"""The tab-separated files of bottom-up attention and its relatives, a line an image.

The columns `boxes` and `features` are 32-bit floating point numbers in base64, so that a line is
half a megabyte long (36 regions of 2048 numbers) or more.
"""

import binascii
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.data.ids import canonical_id
from ngsan.data.importers.features_import import Item, Position, place
from ngsan.data.importers.region_boxes import (
    BadRegionsError,
    BoxRules,
    FoundRegions,
    image_size,
    make_regions,
    whole_number,
)
from ngsan.data.problems import Problems
from ngsan.data.store import Regions

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
"""The columns of files with the detector's classes; mind that the height comes first."""

LONGEST_LINE = 64 * 2**20
"""Bytes after which we no longer believe that a line end will come."""

_READ_AHEAD = 4 * 2**20
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
    """The bytes of the files; `done` of a position counts towards it."""
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
        start: The position of the last image that is read already.
        fields: The names of the columns. A first line that names the columns goes before this.
            Columns other than those of `BOTTOM_UP_FIELDS` are not looked into; those of the
            image's size may be missing.
        box_rules: How the boxes are to be read.

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
    """The files as paths, each known to exist."""
    several = [paths] if isinstance(paths, str | Path) else paths
    files = [Path(path) for path in several]
    if not files:
        raise ValueError("no file was given")
    for path in files:
        if not path.is_file():
            raise ValueError(f"{path}: no such file")
    return files


def _columns(fields: Sequence[str]) -> tuple[str, ...]:
    """The columns by the names of `BOTTOM_UP_FIELDS`, checked."""
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
    """The column names, if the first line of a file holds names in place of data."""
    with path.open("rb") as file:
        cells = file.readline(4096).strip().split(b"\t")
    names = [cell.decode("utf-8", "replace") for cell in cells]
    known = {_OTHER_NAMES.get(name, name) for name in names}
    return names if {"image_id", "boxes", "features"} <= known else None


def _lines(
    path: Path, start: Position | None, problems: Problems
) -> Iterator[tuple[list[memoryview], int, int]]:
    """The lines of a file after `start` that are not blank, cut into cells.

    Note: the cells are views of one buffer that is used again and again, because a new half
        megabyte for each line, and again for its cells, takes a quarter of the time that decoding
        does. They are gone when the next line is asked for.

    Yields:
        The cells, the byte at which the next line begins, and the line's number, from 1.
    """
    byte, number = (start["byte"], start["line"]) if start else (0, 0)
    buffer = bytearray(_READ_AHEAD)
    begin = end = 0  # bounds of what is read but not yet cut into lines
    with path.open("rb", buffering=0) as file:
        file.seek(byte)
        while True:
            stop = buffer.find(b"\n", begin, end)
            if stop < 0:
                rest = end - begin
                if rest >= LONGEST_LINE:
                    where = place({"file": path, "line": number + 1})
                    message = f"no line end in {rest} bytes; is this a packed or binary file?"
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
        problems.report("empty file", str(path), "there is not one line in it")


def _cells(buffer: bytearray, begin: int, stop: int) -> list[memoryview]:
    """Views of a line's cells."""
    if stop > begin and buffer[stop - 1] == ord("\r"):
        stop -= 1
    view = memoryview(buffer)
    cells = []
    while (tab := buffer.find(b"\t", begin, stop)) >= 0:
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
                "be cut off, or its columns be others: name them with fields",
            )
        row = dict(zip(columns, cells, strict=True))
        try:
            image_id = canonical_id(str(row["image_id"], "utf-8"))
        except ValueError as error:
            raise BadRegionsError("bad image id", str(error)) from error
        return position, image_id, _regions(image_id, row, rules)
    except BadRegionsError as bad:
        problems.report(bad.kind, place(position, image_id), str(bad))
        return None


def _text(cell: memoryview) -> str:
    return str(cell[:1000], "utf-8", "backslashreplace")


def _regions(image_id: str, row: dict[str, memoryview], rules: BoxRules) -> Regions:
    """The regions of a line's cells."""
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
        return decode_floats(cell)
    except binascii.Error as error:
        raise BadRegionsError("broken base64", f"{name}: {error}") from error
    except ValueError as error:
        raise BadRegionsError("wrong byte count", f"{name}: {error}") from error


def decode_floats(text: bytes | memoryview) -> NDArray[np.float32]:
    """32-bit floating point numbers from base64.

    Note: `binascii` goes character by character, and an import would spend most of its time
        there. For long texts we look two characters up at a time, in tables that hold their 12
        bits where they belong in a little-endian word of 24. Four such words are three numbers.

    Args:
        text: Base64 without line ends, as RFC 4648 has it.

    Returns:
        (n,) float32, read-only or not.

    Raises:
        binascii.Error: It is not base64.
        ValueError: It does not hold a whole number of numbers.
    """
    if len(text) % 4:
        raise binascii.Error(f"{len(text)} characters are not a multiple of 4")
    blocks = (len(text) - 1) // 16 if len(text) >= _LONG_TEXT else 0
    tail = binascii.a2b_base64(text[16 * blocks :], strict_mode=True)
    if len(tail) % 4:
        raise ValueError(f"{12 * blocks + len(tail)} bytes are not a multiple of 4")
    numbers = np.empty(3 * blocks + len(tail) // 4, "<u4")
    numbers[3 * blocks :] = np.frombuffer(tail, "<u4")
    pairs = np.frombuffer(text, "<u2", count=8 * blocks).reshape(-1, 4, 2)
    triples = numbers[: 3 * blocks].reshape(-1, 3)
    # In parts whose intermediate results stay in the processor's cache.
    parts = (slice(begin, begin + _PART) for begin in range(0, blocks, _PART))
    if not all(_decode_blocks(pairs[part], triples[part]) for part in parts):
        binascii.a2b_base64(text, strict_mode=True)  # says what is wrong
        raise binascii.Error("not base64")
    return numbers.view("<f4")


def _decode_blocks(pairs: NDArray[np.uint16], numbers: NDArray[np.uint32]) -> bool:
    """Decodes blocks of sixteen characters.

    Args:
        pairs: (blocks, 4, 2) of two characters each.
        numbers: (blocks, 3), to be written to.

    Returns:
        Whether all characters are base64.
    """
    # No index can be out of bounds; "wrap" is the quickest way not to have it checked.
    words = _FIRST_PAIR.take(pairs[..., 0], mode="wrap")
    words |= _SECOND_PAIR.take(pairs[..., 1], mode="wrap")  # (blocks, 4)
    np.bitwise_or(words[:, 0], words[:, 1] << 24, out=numbers[:, 0])
    np.bitwise_or(words[:, 1] >> 8, words[:, 2] << 16, out=numbers[:, 1])
    np.bitwise_or(words[:, 2] >> 16, words[:, 3] << 8, out=numbers[:, 2])
    return bool(words.max() < _NOT_BASE64)


def _pair_tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """For any two characters as a number of 16 bits, what they add to a word of three bytes."""
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    six_bits = np.full(256, -1)
    six_bits[np.frombuffer(alphabet.encode(), np.uint8)] = np.arange(64)
    second, first = (six_bits[part] for part in np.divmod(np.arange(1 << 16), 256))
    bits = first << 6 | second
    bad = (first < 0) | (second < 0)
    # The first pair is byte 0 and the upper half of byte 1, the second the rest; byte 0 is lowest.
    first_pair = bits >> 4 | (bits & 0xF) << 12
    second_pair = bits >> 8 << 8 | (bits & 0xFF) << 16
    return (
        np.where(bad, _NOT_BASE64, first_pair).astype(np.uint32),
        np.where(bad, _NOT_BASE64, second_pair).astype(np.uint32),
    )


_LONG_TEXT = 4096
_PART = 8192
_NOT_BASE64 = 1 << 31
_FIRST_PAIR, _SECOND_PAIR = _pair_tables()
