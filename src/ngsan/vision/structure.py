"""Limits on what an image file consists of, checked before a decoder sees it.

A decoder keeps an object for every segment, chunk, offset or comment, and passes over the whole
picture for every scan of a JPEG: files of a few kilobytes could otherwise take minutes or
gigabytes. Needs only the standard library.
"""

import re
import struct
from collections.abc import Callable
from typing import Any

MAX_SIDE = 1 << 17
"""Limit of width and height; a picture of one column takes many times the memory of a square."""

MAX_SCANS = 200
"""Limit of a JPEG's scans; encoders write about ten."""

MAX_SCANNED = 20
"""Limit of a JPEG's scans times pixels, as a multiple of the limit of pixels."""

MAX_SEGMENTS = 4096
"""Limit of a JPEG's segments; a colour profile takes up to 255 and each scan a few."""

MAX_CHUNKS = 1 << 18
"""Limit of a PNG's chunks; encoders write pixels in chunks of 8 kB, and frames in one or more."""

MAX_NOTES = 1000
"""Limit of a PNG's chunks that are no pixels, and of a GIF's extensions before its picture."""

MAX_COMMENTS = 1 << 20
"""Limit of the bytes of a GIF's extensions before its picture."""

MAX_VALUES = 300_000
"""Limit of the numbers in a TIFF's tags: the places of its strips or tiles."""

MIN_TILE = 1 << 20
"""Pixels that a TIFF's tile may have, whatever the size of the picture."""

_HEAD_MARKER = re.compile(rb"\xff+([^\x00\xff])", re.DOTALL)
_DATA_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)
_GIF_BLOCK = re.compile(rb"[!,;]")
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_PIXELS = (b"IDAT", b"fdAT", b"fcTL")
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_SIZES |= {16: 8, 17: 8, 18: 8}
_BYTES = (1, 2, 7)
_TILE_WIDTH, _TILE_HEIGHT = 322, 323


class StructureError(ValueError):
    """A file has too many parts; the message is one line without its name."""


def check_structure(content: Any, max_pixels: int) -> None:
    """Raises a `StructureError` if a file has more parts than any real image.

    Args:
        content: The bytes of the file, or a map of it.
        max_pixels: Limit of width times height.
    """
    for start, check in _CHECKS.items():
        if content[: len(start)] == start:
            try:
                check(content, max_pixels)
            except (IndexError, struct.error):
                return  # it is cut off, which the decoder reports
            return


def _check_jpeg(content: Any, max_pixels: int) -> None:
    scans = segments = pixels = 0
    place = 2
    while found := (_DATA_MARKER if scans else _HEAD_MARKER).search(content, place):
        code, place = found[1][0], found.end()
        segments += 1
        if segments > MAX_SEGMENTS:
            raise StructureError(f"more than {MAX_SEGMENTS:,} segments")
        if code == 0xD9 and scans:
            return
        if code in _ALONE or code == 0xD9:
            continue
        (length,) = struct.unpack_from(">H", content, place)
        if code in _FRAMES and length >= 7:
            height, width = struct.unpack_from(">HH", content, place + 3)
            pixels = max(pixels, width * height)
        elif code == 0xDA:
            scans += 1
            # A few are usual, whatever the size.
            if scans > MAX_SCANNED and (
                scans > MAX_SCANS or scans * pixels > MAX_SCANNED * max_pixels
            ):
                raise StructureError(f"too many scans: {scans} or more, of {pixels:,} pixels")
        place += max(length, 2)


def _check_png(content: Any, _: int) -> None:
    place, chunks, notes, end = 8, 0, 0, len(content)
    while place + 8 <= end:
        length, name = struct.unpack_from(">I4s", content, place)
        if name == b"IHDR":
            check_sides(*struct.unpack_from(">II", content, place + 8))
        chunks += 1
        notes += name not in _PIXELS
        if chunks > MAX_CHUNKS or notes > MAX_NOTES:
            raise StructureError(f"too many chunks: {chunks:,} or more")
        if name == b"IEND":
            return
        place += 12 + length


def _check_gif(content: Any, _: int) -> None:
    flags = content[10]
    place = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    notes = size = 0
    # Decoders pass over bytes that mean nothing.
    while (found := _GIF_BLOCK.search(content, place)) and found[0] == b"!":
        notes, place = notes + 1, found.end() + 1
        while length := content[place]:
            size, place = size + length, place + 1 + length
            if size > MAX_COMMENTS:
                raise StructureError(f"more than {MAX_COMMENTS:,} bytes of comments")
        place += 1
        if notes > MAX_NOTES:
            raise StructureError(f"more than {MAX_NOTES:,} extensions")


def _check_tiff(content: Any, max_pixels: int) -> None:
    order = "<" if content[:1] == b"I" else ">"
    big = struct.unpack_from(f"{order}H", content, 2)[0] == 43
    word, entry, head = ("Q", 20, 8) if big else ("I", 12, 2)
    (start,) = struct.unpack_from(f"{order}{word}", content, 8 if big else 4)
    (count,) = struct.unpack_from(f"{order}{'Q' if big else 'H'}", content, start)
    if count > 4096:
        raise StructureError(f"{count:,} tags")
    values = size = 0
    sides: dict[int, int] = {}
    for place in range(start + head, start + head + entry * count, entry):
        if place + entry > len(content):
            break
        tag, kind, number = struct.unpack_from(f"{order}HH{word}", content, place)
        values += 0 if kind in _BYTES else number
        size += _SIZES.get(kind, 0) * number
        if kind in (3, 4, 16) and number == 1:
            value = {3: "H", 4: "I", 16: "Q"}[kind]
            (sides[tag],) = struct.unpack_from(
                f"{order}{value}", content, place + 4 + struct.calcsize(f"={word}")
            )
        if values > MAX_VALUES:
            raise StructureError(f"more than {MAX_VALUES:,} strips, tiles or other numbers")
        if size > len(content) + (1 << 16):
            raise StructureError("its tags claim more bytes than it has")
    width, height = sides.get(256, 0), sides.get(257, 0)
    check_sides(width, height)
    tile = sides.get(_TILE_WIDTH, 0) * sides.get(_TILE_HEIGHT, 0)
    if tile > max_pixels or tile > max(MIN_TILE, 4 * width * height):
        raise StructureError(f"a tile of {tile:,} pixels for {width} x {height}")


def check_sides(width: int, height: int) -> None:
    """Raises a `StructureError` if a side is too long."""
    if max(width, height) > MAX_SIDE:
        raise StructureError(f"its size {width} x {height} has a side above {MAX_SIDE:,} pixels")


_CHECKS: dict[bytes, Callable[[Any, int], None]] = {
    b"\xff\xd8": _check_jpeg,
    b"\x89PNG": _check_png,
    b"GIF8": _check_gif,
    b"II*\0": _check_tiff,
    b"MM\0*": _check_tiff,
    b"II+\0": _check_tiff,
    b"MM\0+": _check_tiff,
}
