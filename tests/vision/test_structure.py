"""Files with far too many parts are rejected before a decoder works on them."""

import time

import pytest
from PIL import Image

from ngsan.vision.images import ImageError, open_image
from tests.hostile import files

BAD = {
    "baseline scans": (lambda: files.jpeg_scans(1500, 6000), "scans"),
    "extended scans": (lambda: files.jpeg_scans(1500, 6000, frame=0xC1), "scans"),
    "arithmetic scans": (lambda: files.jpeg_scans(1500, 6000, frame=0xC9), "scans"),
    "lossless scans": (lambda: files.jpeg_scans(1500, 6000, frame=0xC3), "scans"),
    "progressive scans": (lambda: files.progressive_scans(1000, 4000), "scans"),
    "scans of a small picture": (lambda: files.jpeg_scans(500, 64), "scans"),
    "segments": (lambda: files.jpeg_segments(100_000), "segments"),
    "strips": (lambda: files.tiff_strips(1_000_000), "strips"),
    "tile": (lambda: files.tiff_tile(12_000), "tile"),
    "grey tile": (lambda: files.tiff_tile(12_000, colour=1), "tile"),
    "comments": (lambda: files.gif_comments(20_000), "extensions|comments"),
    "empty comments": (lambda: files.gif_comments(20_000, 0), "extensions"),
    "chunks": (lambda: files.png_chunks(20_000), "chunks"),
    "one column": (lambda: files.png(1, 9_000_000), "side"),
    "one row": (lambda: files.png(9_000_000, 1), "side"),
    "tags": (lambda: files.tiff_tags(3000, 1_000_000), "bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_too_many_parts(name, tmp_path):
    make, word = BAD[name]
    content = make()
    path = tmp_path / "file"
    path.write_bytes(content)
    started = time.process_time()
    for source in (content, path):
        with pytest.raises(ImageError, match=word) as raised:
            open_image(source)
        assert "\n" not in str(raised.value)
    assert time.process_time() - started < 0.5


def test_what_cameras_and_programs_write_is_read():
    photo = Image.effect_noise((900, 600), 90).convert("RGB")
    motion = files.saved(photo, "JPEG") + b"\xff\xda" * 5000  # a film behind the picture
    profile = files.saved(photo, "JPEG", icc_profile=bytes(5_000_000), comment=b"c" * 60_000)
    progressive = files.saved(photo, "JPEG", progressive=True, exif=b"Exif\0\0" + bytes(9000))
    tiles = files.saved(photo, "TIFF", compression="tiff_lzw", strip_size=900)
    text = files.saved(photo, "PNG", pnginfo=None, icc_profile=bytes(100_000))
    for content in (motion, profile, progressive, tiles, text, files.jpeg_segments(200, 60_000)):
        assert min(open_image(content).size) >= 64
