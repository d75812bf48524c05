"""Image files that are small to send and expensive to read, one function per class."""

import io
import struct
import zlib

from PIL import Image


def saved(image, kind, **options):
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _segments(content):
    """The marker segments of a JPEG up to its first scan, by marker, and the scan's data."""
    found, place = [], 2
    while True:
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4])
        found.append((marker, content[place + 4 : place + 2 + length]))
        place += 2 + length
        if marker == 0xDA:
            return found, content[place:-2]


def segment(marker, content):
    """A marker segment of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def jpeg_scans(scans, side=4000, *, frame=0xC0):
    """A colour JPEG whose every scan holds one component, most of them the same one again.

    Scans are empty, which decoders take for a file that lacks some bytes.

    Args:
        scans: Their number.
        side: Width and height.
        frame: Its kind: 0xC0 baseline, 0xC1 extended sequential, 0xC9 arithmetic.
    """
    grey, _ = _segments(saved(Image.new("L", (16, 16), 77), "JPEG", quality=50))
    tables = b"".join(segment(marker, body) for marker, body in grey if marker in (0xDB, 0xC4))
    # Three components of full size that share the tables of the grey one.
    parts = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    head = segment(frame, struct.pack(">BHHB", 8, side, side, 3) + parts)
    one, two, three = (segment(0xDA, bytes([1, number, 0, 0, 63, 0])) for number in (1, 2, 3))
    return b"\xff\xd8" + tables + head + one + two + three * (scans - 2) + b"\xff\xd9"


def progressive_scans(scans, side=1600):
    """A progressive JPEG with empty refinement scans at its end."""
    content = saved(Image.new("L", (side, side), 77), "JPEG", progressive=True, quality=50)
    start = content.rindex(b"\xff\xda")
    return content[:-2] + content[start:-2] * scans + content[-2:]


def jpeg_segments(count, size=0, marker=0xE0):
    """A JPEG with many application segments."""
    content = saved(Image.new("RGB", (64, 64), "red"), "JPEG")
    return content[:2] + segment(marker, bytes(size)) * count + content[2:]


def chunk(name, content):
    """A chunk of a PNG."""
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def png(width, height, *, rows=None, depth=8, colour=2, before=b"", interlace=0):
    """A PNG of zeros, whose rows are packed without being held in memory."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    line = 1 + -(-width * channels * depth // 8)
    pack, left, parts = zlib.compressobj(9), line * (height if rows is None else rows), []
    while left:
        some = min(left, 1 << 22)
        parts.append(pack.compress(bytes(some)))
        left -= some
    body = b"".join([*parts, pack.flush()])
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    palette = chunk(b"PLTE", bytes(768)) if colour == 3 else b""
    ends = before + palette + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + ends


def png_texts(count, size=100_000):
    """A PNG with packed texts that unpack to `size` bytes each."""
    text = b"k\0\0" + zlib.compress(bytes(size), 9)
    return png(16, 16, before=chunk(b"zTXt", text) * count)


def png_chunks(count):
    """A PNG with many empty chunks of an unknown kind."""
    return png(16, 16, before=chunk(b"abCd", b"") * count)


def tiff(width, height, entries, data=b"", *, extra=b""):
    """A little-endian TIFF; entries are (tag, type, count, value), data begins at byte 8."""
    entries = sorted([(256, 4, 1, width), (257, 4, 1, height), *entries])
    start = 8 + len(data)
    rows = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    table = struct.pack("<H", len(entries)) + rows + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", start) + data + table + extra


def tiff_strips(count):
    """A TIFF with this number of strip offsets for a few rows."""
    offsets = bytes(4 * count)
    grey = [(258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1), (278, 4, 1, 1)]
    places = [(273, 4, count, 8), (279, 4, count, 8)]
    return tiff(64, 64, [*grey, *places], offsets)


def tiff_tags(count, size):
    """A TIFF with many tags whose texts all lie at the same place."""
    grey = [(258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1), (273, 4, 1, 8)]
    notes = [(60_000 + number, 2, size, 8) for number in range(count)]
    return tiff(64, 64, [*grey, (278, 4, 1, 64), (279, 4, 1, 4096), *notes], bytes(size))


def tiff_tile(side=30_000, *, colour=3):
    """A small TIFF that is one huge packed tile."""
    pack, left, parts = zlib.compressobj(9), side * side * colour, []
    while left:
        some = min(left, 1 << 22)
        parts.append(pack.compress(bytes(some)))
        left -= some
    data = b"".join([*parts, pack.flush()])
    grey = [(258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1)]
    if colour == 3:
        bits = len(data)
        data += struct.pack("<HHH", 8, 8, 8)
        grey = [
            (258, 3, 3, 8 + bits),
            (259, 3, 1, 8),
            (262, 3, 1, 2),
            (277, 3, 1, 3),
            (284, 3, 1, 1),
        ]
        length = bits
    else:
        length = len(data)
    tiles = [(322, 4, 1, side), (323, 4, 1, side), (324, 4, 1, 8), (325, 4, 1, length)]
    return tiff(64, 64, [*grey, *tiles], data)


def gif_comments(count, size=255):
    """A GIF with many comments before its picture."""
    content = saved(Image.new("L", (16, 16), 9), "GIF")
    place = content.index(b"\x2c")
    if (control := content.find(b"\x21\xf9")) >= 0:
        place = min(place, control)
    block = b"\x21\xfe" + (bytes([size]) + b"c" * size if size else b"") + b"\0"
    return content[:place] + block * count + content[place:]


def bmp_rle(width=7000, height=7000):
    """A BMP of run lengths that stand for a large picture."""
    line = (b"\xff\x01" * -(-width // 255))[: 2 * -(-width // 255)] + b"\0\0"
    data = line * height + b"\0\1"
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(data), 0, 0, 256, 0)
    start = 14 + 40 + 1024
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + head + bytes(1024) + data


def webp(side=4000):
    """A WebP of one colour."""
    return saved(Image.new("RGBA", (side, side), (1, 2, 3, 4)), "WEBP", lossless=True, method=0)
