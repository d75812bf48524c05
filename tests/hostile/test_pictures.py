"""Files of pictures and clips: good ones damaged at random, and every generator of `files`."""

import resource

import pytest
from PIL import Image

from ngsan.vision.clips import open_clip
from ngsan.vision.images import ImageError, open_image
from tests.hostile import files
from tests.hostile.damage import damaged_bytes
from tests.hostile.limits import bounded, seeds

pytestmark = pytest.mark.slow

SIZE = (160, 120)
FRAMES = [Image.effect_noise(SIZE, 60).convert("RGB").rotate(turn) for turn in (0, 30, 60)]
KINDS = {
    "jpeg": ("JPEG", {"quality": 80}),
    "progressive": ("JPEG", {"progressive": True}),
    "cmyk": ("JPEG", {"mode": "CMYK"}),
    "png": ("PNG", {}),
    "palette": ("PNG", {"mode": "P"}),
    "apng": ("PNG", {"save_all": True, "append_images": FRAMES[1:]}),
    "webp": ("WEBP", {}),
    "lossless": ("WEBP", {"lossless": True}),
    "gif": ("GIF", {"save_all": True, "append_images": FRAMES[1:]}),
    "bmp": ("BMP", {"mode": "P"}),
    "tiff": ("TIFF", {}),
    "lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "deflate": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    "tiff-jpeg": ("TIFF", {"compression": "jpeg"}),
}
BOMBS = {
    "scans": lambda n: files.jpeg_scans(30 * n, 500 * n, frame=(0xC0, 0xC1, 0xC9)[n % 3]),
    "progressive scans": lambda n: files.progressive_scans(60 * n),
    "segments": lambda n: files.jpeg_segments(900 * n, n % 3, 0xE0 + n % 16),
    "png": lambda n: files.png(4000 * n, 3000, depth=8, colour=(0, 2, 6)[n % 3], rows=10),
    "column": lambda n: files.png(1, 100_000 * n),
    "texts": lambda n: files.png_texts(30 * n),
    "chunks": lambda n: files.png_chunks(200 * n),
    "strips": lambda n: files.tiff_strips(50_000 * n),
    "tags": lambda n: files.tiff_tags(100 * n, 100_000),
    "tile": lambda n: files.tiff_tile(1500 * n, colour=1 + 2 * (n % 2)),
    "comments": lambda n: files.gif_comments(150 * n, 255 * (n % 2)),
    "rle": lambda n: files.bmp_rle(1500 * n, 1500 * n),
    "webp": lambda n: files.webp(900 * n),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_pictures(kind, tmp_path, tally):
    name, options = KINDS[kind]
    mode = options.get("mode", "RGB")
    rest = {key: value for key, value in options.items() if key != "mode"}
    good = files.saved(FRAMES[0].convert(mode), name, **rest)
    assert open_image(good).size == SIZE
    path = tmp_path / f"clip.{name.lower()}"
    for number, rng in seeds(kind, 400):
        content = damaged_bytes(good, rng)
        with bounded(f"{kind} {number}", ImageError):
            open_image(content, min_side=(None, 64)[number % 2])
        if number % 4 == 0:
            path.write_bytes(content)
            with bounded(f"{kind} {number}, a clip", ImageError):
                open_clip(path, frames=3, size=64)
    tally(number + 1)


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs(kind, tally):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, _ in seeds(kind, 12):
        content = BOMBS[kind](number + 1)
        with bounded(f"{kind} {number}", ImageError):
            open_image(content)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1_300_000, f"{kind}: {grown:,} kB"
    tally(number + 1)
