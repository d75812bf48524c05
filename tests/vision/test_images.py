"""Pictures of every kind that Pillow writes, and hostile files."""

import io
import os
import random
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ngsan.vision.images import (
    FORMATS,
    ImageError,
    find_images,
    open_image,
    open_picture,
    to_square,
)

RED, GREEN, BLUE, GREY = (220, 30, 40), (20, 200, 60), (10, 40, 210), (128, 128, 128)


def quarters(size=(64, 48)):
    """Red and green above, blue and grey below."""
    width, height = size
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2], pixels[: height // 2, width // 2 :] = RED, GREEN
    pixels[height // 2 :, : width // 2], pixels[height // 2 :, width // 2 :] = BLUE, GREY
    return Image.fromarray(pixels)


def corners(image):
    """The pixels in the middle of each quarter."""
    width, height = image.size
    places = [(1, 1), (3, 1), (1, 3), (3, 3)]
    return [image.getpixel((width * x // 4, height * y // 4)) for x, y in places]


def assert_like(image, expected, tolerance):
    assert image.mode == "RGB"
    difference = np.abs(np.asarray(image).astype(int) - np.asarray(expected).astype(int))
    assert difference.max() <= tolerance


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width, height, *, body=b"", depth=8, colour=2):
    """A PNG whose header claims a given size."""

    def chunk(name, content):
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", body) + chunk(b"IEND", b"")


LOSSLESS = {
    "png": ("PNG", {}),
    "webp": ("WEBP", {"lossless": True}),
    "bmp": ("BMP", {}),
    "tiff": ("TIFF", {}),
    "tiff-lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "gif": ("GIF", {}),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_formats_are_exact(name):
    kind, options = LOSSLESS[name]
    assert_like(open_image(saved(quarters(), kind, **options)), quarters(), 0)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_jpeg(options):
    smooth = Image.fromarray(np.full((40, 56, 3), (200, 90, 30), np.uint8))
    assert_like(open_image(saved(smooth, "JPEG", quality=95, **options)), smooth, 3)


def test_only_the_first_frame_is_read():
    other = Image.new("RGB", (64, 48), "black")
    for kind in ("GIF", "TIFF", "WEBP", "MPO", "PNG"):
        options = {"WEBP": {"lossless": True}, "MPO": {"quality": 100, "subsampling": 0}}
        many = saved(
            quarters(), kind, save_all=True, append_images=[other], **options.get(kind, {})
        )
        assert_like(open_image(many), quarters(), 4 if kind == "MPO" else 0)


def test_grey_one_bit_and_palette():
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (8, 1))
    grey = Image.fromarray(ramp)
    expected = np.repeat(ramp[:, :, None], 3, 2)
    for kind in ("PNG", "BMP", "TIFF", "GIF"):
        assert_like(open_image(saved(grey, kind)), expected, 0)
    bits = grey.point(lambda value: 255 * (value > 100), "1")
    assert_like(open_image(saved(bits, "PNG")), np.where(expected > 100, 255, 0), 0)
    assert_like(open_image(saved(bits, "TIFF")), np.where(expected > 100, 255, 0), 0)
    palette = quarters().quantize(4)
    assert_like(open_image(saved(palette, "PNG")), palette.convert("RGB"), 0)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_transparency_becomes_white(kind):
    pixels = np.zeros((8, 4, 4), np.uint8)
    pixels[..., 0] = 200
    pixels[..., 3] = np.array([0, 51, 204, 255])
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    found = open_image(saved(Image.fromarray(pixels), kind, **options))
    share = pixels[..., 3:].astype(float) / 255
    expected = share * pixels[..., :3] + (1 - share) * 255
    assert_like(found, expected.round(), 1)


def test_transparency_of_palettes_grey_and_single_colours():
    palette = quarters().quantize(4)
    index = palette.getpixel((0, 0))
    for kind in ("PNG", "GIF"):
        found = open_image(saved(palette, kind, transparency=index))
        assert corners(found)[0] == (255, 255, 255)
        assert corners(found)[1] == GREEN
    in_bytes = saved(
        palette, "PNG", transparency=bytes([0 if i == index else 255 for i in range(4)])
    )
    assert corners(open_image(in_bytes))[0] == (255, 255, 255)
    assert corners(open_image(saved(quarters(), "PNG", transparency=RED)))[0] == (255, 255, 255)
    grey = Image.fromarray(np.array([[7, 90], [7, 90]], np.uint8))
    assert open_image(saved(grey, "PNG", transparency=7)).getpixel((0, 0)) == (255, 255, 255)
    with_alpha = Image.merge("LA", (grey, Image.new("L", (2, 2), 0)))
    assert open_image(saved(with_alpha, "PNG")).getpixel((1, 1)) == (255, 255, 255)


def test_cmyk_with_and_without_adobe_s_inversion():
    plain = Image.merge("CMYK", [Image.new("L", (16, 16), value) for value in (0, 200, 250, 10)])
    expected = np.full((16, 16, 3), [round(245 * (255 - c) / 255) for c in (0, 200, 250)])
    content = saved(plain, "JPEG", quality=100)  # Pillow writes Adobe's marker, and inverted
    assert b"Adobe" in content
    assert_like(open_image(content), expected, 4)
    assert_like(open_image(saved(plain, "TIFF")), expected, 2)
    # Without the marker as well: all common programs take four channels as inverted.
    start = content.index(b"\xff\xee")
    length = struct.unpack(">H", content[start + 2 : start + 4])[0]
    assert_like(open_image(content[:start] + content[start + 2 + length :]), expected, 4)


def test_sixteen_bits():
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    expected = np.repeat((ramp / 257.0)[:, :, None], 3, 2)
    for kind in ("PNG", "TIFF"):
        assert_like(open_image(saved(Image.fromarray(ramp), kind)), expected.round(), 1)
    twelve = ramp // 16
    assert_like(open_image(saved(Image.fromarray(twelve), "TIFF")), expected.round(), 1)
    swapped = Image.frombytes("I;16B", (8, 8), ramp.astype(">u2").tobytes())
    assert_like(open_image(swapped), expected.round(), 1)
    # Three colours of sixteen bits, as Pillow cannot write them.
    rows = b"".join(b"\0" + np.repeat(row, 3).astype(">u2").tobytes() for row in ramp)
    assert_like(open_image(png(8, 8, body=zlib.compress(rows), depth=16)), expected.round(), 1)


def test_whole_numbers_and_floats_of_32_bits():
    ramp = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    expected = np.repeat((ramp * 255)[:, :, None], 3, 2).round()
    for factor in (1, 255, 65535):
        assert_like(open_image(saved(Image.fromarray(ramp * factor), "TIFF")), expected, 1)
    for factor in (255, 65535, 2**31 - 200):
        whole = (ramp.astype(np.float64) * factor).astype(np.int32)
        assert_like(open_image(saved(Image.fromarray(whole), "TIFF")), expected, 1)
    assert_like(open_image(Image.fromarray(ramp * 2e6 - 1e6)), expected, 1)
    wild = np.array([[np.nan, -np.inf], [np.inf, 3]], np.float32)
    assert open_image(Image.fromarray(wild)).size == (2, 2)
    assert_like(open_image(Image.fromarray(np.zeros((4, 4), np.int32))), np.zeros((4, 4, 3)), 0)


UPRIGHT = [RED, GREEN, BLUE, GREY]
SEEN = {
    1: [0, 1, 2, 3],
    2: [1, 0, 3, 2],
    3: [3, 2, 1, 0],
    4: [2, 3, 0, 1],
    5: [0, 2, 1, 3],
    6: [2, 0, 3, 1],
    7: [3, 1, 2, 0],
    8: [1, 3, 0, 2],
}
"""Which quarter of the stored pixels each quarter of the upright picture shows (EXIF, 4.6.4)."""


def exif(orientation, order="<"):
    """An EXIF block with one entry, by hand."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    return mark + struct.pack(f"{order}IH", 8, 1) + entry + struct.pack(f"{order}I", 0)


def with_exif(jpeg, block):
    content = b"Exif\0\0" + block
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content + jpeg[2:]


@pytest.mark.parametrize("orientation", SEEN)
@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation(orientation, order):
    block = exif(orientation, order)
    stored = quarters((64, 48))
    expected = [UPRIGHT[quarter] for quarter in SEEN[orientation]]
    size = (48, 64) if orientation >= 5 else (64, 48)
    files = [
        with_exif(saved(stored, "JPEG", quality=100, subsampling=0), block),
        saved(stored, "PNG", exif=b"Exif\0\0" + block),
        saved(stored, "WEBP", lossless=True, exif=b"Exif\0\0" + block),
        saved(stored, "TIFF", tiffinfo={0x0112: orientation}),
        saved(stored, "TIFF", tiffinfo={0x0112: orientation}, compression="tiff_lzw"),
    ]
    for content in files:
        picture = open_picture(content)
        assert picture.size == picture.image.size == size
        for found, colour in zip(corners(picture.image), expected, strict=True):
            assert np.abs(np.subtract(found, colour)).max() <= 4


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"II*\0",
        b"nonsense" * 10,
        exif(0),
        exif(9),
        exif(65535),
        b"II*\0" + struct.pack("<IH", 8, 65535) + b"\0" * 20,
        b"II*\0" + struct.pack("<I", 2**32 - 1),
        b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, 2, 1000, 4),
        b"II*\0" + struct.pack("<IHHHIf", 8, 1, 0x0112, 11, 1, float("nan")) + b"\0" * 4,
        b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x8769, 4, 1, 8) + b"\0" * 4,
    ],
)
def test_invalid_exif_is_ignored(block):
    content = with_exif(saved(quarters(), "JPEG", quality=100, subsampling=0), block)
    assert_like(
        open_image(content), open_image(saved(quarters(), "JPEG", quality=100, subsampling=0)), 0
    )


def test_min_side_reduces_large_jpegs(tmp_path):
    pixels = np.tile(np.linspace(0, 255, 4000, dtype=np.uint8)[None, :, None], (3000, 1, 3))
    block = exif(6)
    path = tmp_path / "large.jpg"
    path.write_bytes(with_exif(saved(Image.fromarray(pixels), "JPEG"), block))
    picture = open_picture(path, min_side=512)
    assert picture.size == (3000, 4000)
    assert 512 <= min(picture.image.size) < 1024
    whole = to_square(open_image(path), 64).astype(int)
    assert np.abs(to_square(picture.image, 64).astype(int) - whole).max() <= 3


def test_squares_are_averages():
    # Stripes of one pixel: without antialiasing they would come out black or white.
    stripes = np.zeros((1000, 2000, 3), np.uint8)
    stripes[:, ::2] = 255
    square = to_square(Image.fromarray(stripes), 50)
    assert square.shape == (50, 50, 3)
    assert square.dtype == np.uint8
    assert np.abs(square.astype(int) - 127).max() <= 12
    assert square.flags.writeable
    squashed = Image.fromarray(to_square(quarters((640, 48)), 64))
    for found, colour in zip(corners(squashed), UPRIGHT, strict=True):
        assert found == colour
    assert to_square(Image.new("RGB", (1, 1), RED), 8)[3, 3].tolist() == list(RED)


def test_arrays_and_pillow_images():
    pixels = np.asarray(quarters())
    assert_like(open_image(pixels), pixels, 0)
    assert_like(open_image(pixels.astype(np.float64) / 255), pixels, 0)
    assert_like(open_image(pixels.astype(np.float16) / 255), pixels, 1)
    assert_like(open_image(pixels.astype(np.uint16) * 257), pixels, 1)
    assert_like(open_image(pixels[::2, ::-1]), pixels[::2, ::-1], 0)
    grey = np.repeat(pixels[:, :, :1], 3, 2)
    assert_like(open_image(pixels[:, :, 0]), grey, 0)
    assert_like(open_image(pixels[:, :, :1]), grey, 0)
    opaque = np.concatenate((pixels, np.full_like(pixels[:, :, :1], 255)), 2)
    assert_like(open_image(opaque), pixels, 0)
    given = quarters()
    assert_like(open_image(given), given, 0)
    assert open_image(given) is not given
    shapes = [pixels[None], pixels[:, :, :2], pixels[:0]]
    types = [pixels.astype(np.int64), pixels.astype(np.float32), np.zeros((2, 2), bool)]
    for array in (*shapes, *types, np.full((2, 2), np.nan)):
        with pytest.raises(ImageError, match="the image: "):
            open_image(array)


def test_invalid_images(tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("<html>404</html>")
    (tmp_path / "print.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (tmp_path / "other.png").write_bytes(saved(quarters(), "PPM"))
    (tmp_path / "icon.png").write_bytes(saved(quarters(), "ICO"))
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing")
    names = ["empty.jpg", "text.jpg", "print.jpg", "other.png", "icon.png", "pipe.jpg", "loop.jpg"]
    for name in [*names, "gone.jpg", "missing.jpg", ".", "a\0b.jpg", "x" * 5000]:
        with pytest.raises(ImageError) as caught:
            open_image(str(tmp_path / name))
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
        assert "\n" not in str(caught.value)
    for content in (b"", b"\0", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"GIF89a", b"BM", b"II*\0"):
        with pytest.raises(ImageError):
            open_image(content)
    with pytest.raises(ImageError, match="file not found"):
        open_image("http://example.invalid/photo.jpg")


def test_format_is_detected_by_content(tmp_path):
    for kind in FORMATS:
        path = tmp_path / f"{kind}.txt"
        path.write_bytes(saved(quarters(), kind))
        assert open_image(path).size == (64, 48)


def test_truncated_files():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    for kind in FORMATS:
        content = saved(noise, kind)
        with pytest.raises(ImageError):
            open_image(content[: len(content) // 2])


def bombs():
    """Small files that claim huge sizes, by name."""
    yield "png", png(60000, 60000, body=zlib.compress(bytes(10**6)))
    yield "png of its largest size", png(2**31 - 1, 2**31 - 1)
    yield "thin png", png(2**31 - 1, 1)
    yield "gif", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0) + bytes(6) + (
        b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x4c\x01\x00;"
    )  # fmt: skip
    yield "gif whose frame is vast", b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + (
        bytes(6) + b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x4c\x01\x00;"
    )  # fmt: skip
    yield (
        "bmp",
        b"BM"
        + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0),
    )
    jpeg = bytearray(saved(quarters(), "JPEG"))
    start = jpeg.index(b"\xff\xc0")
    jpeg[start + 5 : start + 9] = struct.pack(">HH", 65500, 65500)
    yield "jpeg", bytes(jpeg)
    webp = bytearray(saved(quarters(), "WEBP", lossless=True))
    start = webp.index(b"VP8L") + 9
    webp[start : start + 4] = struct.pack("<I", 16383 | 16383 << 14)
    yield "webp", bytes(webp)
    canvas = 16383
    frame = saved(Image.new("RGB", (16, 16)), "WEBP")[12:]
    content = b"WEBPVP8X" + struct.pack("<IBxxx", 10, 2) + (canvas.to_bytes(3, "little") * 2)
    content += b"ANIM" + struct.pack("<IIH", 6, 0, 0)
    one = bytes(6) + (15).to_bytes(3, "little") * 2 + bytes(4) + frame
    content += b"ANMF" + struct.pack("<I", len(one)) + one
    yield "moving webp", b"RIFF" + struct.pack("<I", len(content)) + content

    def tiff(*entries):
        rows = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(entries))
        return b"II*\0" + struct.pack("<IH", 8, len(entries)) + rows + bytes(4)

    common = ((258, 8), (259, 1), (262, 1), (277, 1))
    yield "tiff", tiff((256, 60000), (257, 60000), *common, (273, 8), (278, 60000), (279, 100))
    yield "tiff of vast tiles", tiff(
        (256, 8), (257, 8), *common[:1], (259, 5), *common[2:], (322, 60000), (323, 60000),
        (324, 8), (325, 100),
    )  # fmt: skip


BOMBS = dict(bombs())


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bombs_are_rejected_by_their_headers(name):
    began = time.perf_counter()
    with pytest.raises(ImageError):
        open_image(BOMBS[name])
    assert time.perf_counter() - began < 2


def test_the_limit_of_pixels_can_be_chosen():
    content = saved(quarters(), "PNG")
    assert open_image(content, max_pixels=64 * 48).size == (64, 48)
    for source in (content, quarters(), np.asarray(quarters())):
        with pytest.raises(ImageError, match="64 x 48 exceeds the limit of 3,071 pixels"):
            open_image(source, max_pixels=64 * 48 - 1)


def test_no_warning_between_pillow_s_limit_and_ours():
    rows = zlib.compress(bytes((12_001 // 8 + 1) * 8_000), 9)
    content = png(12_000, 8_000, body=rows, depth=1, colour=0)
    assert open_image(content).size == (12_000, 8_000)


def test_too_many_scans_are_rejected():
    content = saved(Image.new("L", (8000, 8000)), "JPEG", progressive=True)
    start = content.rindex(b"\xff\xda")
    scan = content[start:-2]
    with pytest.raises(ImageError, match="scans"):
        open_image(content[:-2] + scan * 100 + content[-2:])


MUTATIONS = 300


def mutated(chance):
    """A picture of a random kind and mode, damaged in a random way."""
    kind = chance.choice(FORMATS)
    modes = {
        "JPEG": ["RGB", "L", "CMYK"],
        "PNG": ["RGB", "RGBA", "P", "L", "LA", "I;16", "1"],
        "WEBP": ["RGB", "RGBA"],
        "GIF": ["P", "L"],
        "BMP": ["RGB", "P", "L", "1"],
        "TIFF": ["RGB", "RGBA", "CMYK", "I;16", "F", "1", "LAB", "YCbCr"],
    }
    mode = chance.choice(modes[kind])
    noise = Image.frombytes("RGB", (40, 30), chance.randbytes(3600))
    if mode in ("I;16", "F"):
        image = noise.convert("L").convert("I" if mode == "I;16" else "F").convert(mode)
    elif mode == "LAB":
        image = Image.merge("LAB", noise.split())
    else:
        image = noise.convert(mode)
    options = {}
    if kind == "TIFF":
        packed = ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"]
        options["compression"] = chance.choice(packed)
    if kind in ("JPEG", "PNG", "WEBP") and chance.random() < 0.5:
        options["exif"] = b"Exif\0\0" + exif(chance.randint(0, 9))
    if kind in ("GIF", "PNG") and chance.random() < 0.3 and mode not in ("I;16", "1"):
        options |= {"save_all": True, "append_images": [image.rotate(90)]}
    content = bytearray(saved(image, kind, **options))
    # Most important bytes are near the beginning.
    reach = chance.choice([32, 128, len(content)])
    for _ in range(chance.choice([1, 1, 3, 20])):
        place = chance.randrange(min(reach, len(content)) or 1)
        way = chance.randrange(5)
        if way == 0 and content:
            content[place] ^= 1 << chance.randrange(8)
        elif way == 1:
            content[place : place + 4] = chance.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
        elif way == 2:
            del content[place : place + chance.randrange(1, 20)]
        elif way == 3:
            content[place:place] = chance.randbytes(chance.randrange(1, 20))
        else:
            del content[max(place, 1) :]
    return bytes(content)


def test_mutated_files_give_an_image_or_an_image_error():
    chance = random.Random(7)
    opened = 0
    for number in range(MUTATIONS):
        content = mutated(chance)
        began = time.perf_counter()
        try:
            picture = open_picture(content, min_side=chance.choice([None, 16]))
        except ImageError:
            picture = None
        assert time.perf_counter() - began < 3, number
        if picture is not None:
            assert picture.image.mode == "RGB"
            assert to_square(picture.image, 16).shape == (16, 16, 3)
            opened += 1
    assert MUTATIONS // 10 < opened < MUTATIONS


LIMITED = """
import sys
from pathlib import Path
from ngsan.vision.images import ImageError, open_image
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        open_image(path)
        print("opened", path)
    except ImageError:
        pass
status = Path("/proc/self/status").read_text().split()
print(int(status[status.index("VmHWM:") + 1]) // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_decompression_bombs_need_little_memory(tmp_path):
    for number, content in enumerate(BOMBS.values()):
        (tmp_path / f"{number}.jpg").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "opened" not in done.stdout
    assert int(done.stdout) < 200


def test_reading_needs_no_torch():
    words = "import sys, ngsan.vision.images; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", words], check=True, timeout=60)


def test_threads_restore_the_warning_filters():
    before = list(warnings.filters)
    content = [saved(quarters(), kind) for kind in FORMATS]

    def work():
        for _ in range(30):
            for one in content:
                open_image(one)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def test_find_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.jpg", "a.PNG", "notes.txt", ".hidden.jpg", "deep/er/c.webp", "deep/d.tiff",
                 ".cache/e.jpg", "deep/[1].jpg", "other/f.jpeg"):  # fmt: skip
        path = Path("photos", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    Path("photos/deep/up").symlink_to(tmp_path / "photos")
    Path("photos/deep/side").symlink_to(tmp_path / "photos" / "other")
    Path("photos/dir.jpg").mkdir()

    def found(*paths):
        return [path.as_posix().removeprefix("photos/") for path in find_images(paths)]

    in_deep = ["deep/[1].jpg", "deep/d.tiff", "deep/er/c.webp", "deep/side/f.jpeg"]
    assert found("photos") == ["a.PNG", "b.jpg", *in_deep, "other/f.jpeg"]
    assert found("photos/notes.txt", "photos/b.jpg") == ["notes.txt", "b.jpg"]
    assert found("photos/*.jpg") == ["b.jpg"]
    assert found("photos/deep/[1].jpg") == ["deep/[1].jpg"]
    assert found("photos/**/*.webp")[0] == "deep/er/c.webp"
    assert found("photos/missing.jpg", "no*thing") == ["missing.jpg", "no*thing"]
    assert found(str(tmp_path / "photos" / "other" / "*"))[0].endswith("other/f.jpeg")
    assert found("photos/dir.jpg") == []


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "CMYK", "I;16", "I", "F", "1"])
def test_reduction_in_strips_equals_reduction_of_the_whole(mode, monkeypatch):
    """Equals converting the whole image first and then averaging."""
    from ngsan.vision import images as pixels

    random = np.random.default_rng(3)
    shape = (53, 91)
    if mode in ("I;16", "I", "F"):
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        picture = Image.fromarray((random.random(shape) * 60_000).astype(kind))
    else:
        bands = {"RGB": 3, "RGBA": 4, "CMYK": 4, "LA": 2}.get(mode)
        size = shape if bands is None else (*shape, bands)
        start = mode if bands else "L"
        picture = Image.fromarray(random.integers(0, 256, size).astype(np.uint8), start)
        picture = picture.convert(mode)
    assert picture.mode == mode
    whole = pixels.to_rgb(picture).reduce(4)
    monkeypatch.setattr(pixels, "_STRIP", 91 * 12)
    found = pixels.to_rgb(picture, shrink=4)
    assert found.size == whole.size == (23, 14)
    assert np.array_equal(np.asarray(found), np.asarray(whole))


def test_min_side_makes_a_large_picture_small():
    picture = Image.new("RGBA", (4000, 1000), (10, 20, 30, 255))
    found = open_picture(saved(picture, "PNG"), min_side=100)
    assert found.size == (4000, 1000)
    assert found.image.size == (400, 100)
    assert found.image.getpixel((7, 7)) == (10, 20, 30)


def test_pixel_limit_is_halved_for_webp():
    content = saved(Image.new("RGB", (100, 60)), "WEBP")
    assert open_image(content, max_pixels=12_000).size == (100, 60)
    with pytest.raises(ImageError, match="exceeds the limit of 5,999 pixels"):
        open_image(content, max_pixels=11_999)


def test_a_folder_that_cannot_be_read_is_yielded_and_reported(closed_folder):
    above = closed_folder.parent
    quarters().save(above / "a.png")
    found = list(find_images([above]))
    assert found == [above / "a.png", closed_folder]
    open_image(found[0])
    with pytest.raises(ImageError, match="closed: cannot read the folder: Permission denied"):
        open_image(found[1])


def test_pipes_links_to_nothing_and_paths_beyond_the_limit_are_yielded(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing")
    monkeypatch.chdir(tmp_path)
    for _ in range(22):
        Path("d" * 200).mkdir()
        os.chdir("d" * 200)
    os.chdir(tmp_path)
    gone, pipe, deep = find_images([tmp_path])
    assert (gone.name, pipe.name, deep.name) == ("gone.jpg", "pipe.jpg", "d" * 200)
    for path, problem in ((gone, "not found"), (pipe, "not a regular"), (deep, "name too long")):
        with pytest.raises(ImageError, match=f"(?i){problem}"):
            open_image(path)


def test_folders_of_any_depth_and_names_of_any_length(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):
        Path("d").mkdir()
        os.chdir("d")
    quarters().save("a.png")
    os.chdir(tmp_path)
    (found,) = find_images(["."])
    assert open_image(found).size == (64, 48)
    subprocess.run(["rm", "-rf", "d"], check=True)
    too_long = "n" * 5000
    assert list(find_images([too_long, "a\0b", ""])) == [Path(too_long), Path("a\0b"), Path()]
    for path in (too_long, "a\0b"):
        with pytest.raises(ImageError, match="cannot open the file"):
            open_image(path)
