"""Image files as upright RGB pictures, whatever their kind; a bad file is an `ImageError`.

Needs Pillow and numpy alone.
"""

import glob
import io
import os
import stat
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ngsan.vision.pixels import from_array, to_rgb

ImageSource: TypeAlias = str | Path | bytes | Image.Image | NDArray[Any]
"""What can be opened: a file's path, a file's content, a picture, or an array of pixels."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""The formats that are read. Nothing else is even tried, whatever a file's name."""

_OF_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo")
ENDINGS = frozenset((*_OF_JPEG, ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"))
"""Names of image files end in one of these, in capitals or not."""

MOST_PIXELS = 100_000_000
"""Width times height that a picture may have, unless told otherwise."""

_SCANS = 20
"""How often a progressive JPEG may go over as many pixels as are allowed."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture upright, by its EXIF orientation. From 5 on, width and height change."""

_ORIENTATION = 0x0112

# Pillow's decoders answer a broken file with almost any of Python's own errors.
_BROKEN = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


class ImageError(ValueError):
    """An image cannot be read; the message is one sentence that names it."""


class Picture(NamedTuple):
    """An image, ready to be used."""

    image: Image.Image
    """Upright, RGB, in memory."""

    size: tuple[int, int]
    """Width and height of the whole image, upright; `image` may be smaller, see `near`."""


def open_image(
    source: ImageSource, *, most_pixels: int = MOST_PIXELS, near: int | None = None
) -> Image.Image:
    """Reads an image as an upright RGB picture; see `open_picture`."""
    return open_picture(source, most_pixels=most_pixels, near=near).image


def open_picture(
    source: ImageSource, *, most_pixels: int = MOST_PIXELS, near: int | None = None
) -> Picture:
    """Reads an image as an upright RGB picture, and its size.

    Of several frames the first is read. What is transparent becomes white. Grey of 16 bits is
    scaled to 8, by 4095 if no value is above that and by 65535 otherwise; whole numbers of 32 bits
    also by 255, if no value is above; floats by 1, 255 or 65535; and values beyond all these such
    that the least is black and the greatest white. EXIF that makes no sense is passed over.

    Args:
        source: A path, the bytes of a file, a Pillow image, or an array of (H, W), (H, W, 1),
            (H, W, 3) or (H, W, 4): uint8, uint16, or floats from 0 to 1.
        most_pixels: Width times height that is accepted, of a WebP half as much, whose decoder
            needs several times the memory. A file is refused by its header, before anything is
            decoded. Pillow's own limit of 179 million holds besides.
        near: The least width and height that the picture need have. A large one is then made
            smaller by a whole factor on the way, a JPEG while it is decoded, which is several
            times as fast.

    Raises:
        ImageError: It is no image of a format that is read, damaged, too large, or not there.
    """
    given = isinstance(source, bytes | Image.Image | np.ndarray)
    with reading("the image" if given else str(source)), _opened(source) as image:
        check_size(image, most_pixels)
        _check_scans(image, most_pixels)
        picture = _finish(image, near)
    return picture


@contextmanager
def reading(name: str, kinds: Sequence[str] = FORMATS) -> Iterator[None]:
    """Within it whatever goes wrong with a file is an `ImageError` that names it.

    Args:
        name: What is read.
        kinds: The formats that could have been, for the message.
    """
    try:
        with _HUSH:
            yield
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{name}: it has far too many pixels") from None
    except UnidentifiedImageError:
        told = ", ".join(kinds)
        raise ImageError(f"{name}: this is no image of a kind that is read, {told}") from None
    except MemoryError:
        raise ImageError(f"{name}: there is not enough memory to decode it") from None
    except _BROKEN as error:
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ImageError(f"{name}: the image is damaged: {said}") from None


def to_square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """The picture squashed into a square: width and height change by factors of their own.

    Args:
        image: RGB.
        size: The side of the square.

    Returns:
        (size, size, 3).
    """
    # Bicubic over all pixels that fall together. Very large pictures are made smaller by whole
    # factors first, which is faster, and with a gap of 3 there is no difference to see.
    small = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.array(small)


def find_images(paths: Sequence[str | Path]) -> Iterator[Path]:
    """The files that paths mean.

    Args:
        paths: Files, which are taken whatever their names; folders, of which and within which all
            files count that are named like images; and patterns such as `photos/**/*.jpg`.

    Yields:
        Files in the order of `paths`, and within a folder or pattern by name. Hidden files and
        folders are left out, and so is a folder that was met before on the way down, as in loops
        of links. What is not there comes as it is, for `open_image` to report.
    """
    for path in map(Path, paths):
        text = str(path)
        # The name of a file may hold the signs of a pattern.
        is_pattern = glob.has_magic(text) and not os.path.lexists(text)
        # Not Path.glob, which takes no absolute pattern and hidden files.
        found = sorted(glob.glob(text, recursive=True)) if is_pattern else []  # noqa: PTH207
        for match in map(Path, found) if found else [path]:
            if not match.is_dir():
                yield match
            elif not is_pattern or "**" not in path.parts:  # those match a folder's files as well
                yield from _in_folder(match, ())


def _in_folder(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    real = folder.resolve()
    if real in above:
        return
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:  # one that may not be read
        return
    folders = [entry for entry in entries if entry.is_dir()]
    yield from (
        entry
        for entry in entries
        if entry.suffix.lower() in ENDINGS and entry not in folders and entry.is_file()
    )
    for entry in folders:
        yield from _in_folder(entry, (*above, real))


@contextmanager
def _opened(source: ImageSource) -> Iterator[Image.Image]:
    """The image with its header read, and the file open until the block ends."""
    if isinstance(source, Image.Image):
        yield source
    elif isinstance(source, np.ndarray):
        try:
            yield from_array(source)
        except ValueError as error:
            raise ImageError(str(error)) from None
    else:
        file = io.BytesIO(source) if isinstance(source, bytes) else open_file(Path(source))
        with file, Image.open(file, formats=FORMATS) as image:
            yield image


def open_file(path: Path) -> IO[bytes]:
    """Opens a regular file; anything else is an `ImageError` that does not name it."""
    try:
        # Asked before it is opened, as opening a pipe would wait for somebody to write into it.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ImageError("it is a folder")
        if not stat.S_ISREG(mode):
            raise ImageError("it is not a regular file")
        return path.open("rb")
    except FileNotFoundError:
        raise ImageError("there is no such file") from None
    except OSError as error:
        raise ImageError(f"the file cannot be opened: {error.strerror or error}") from None


def check_size(image: Image.Image, most_pixels: int = MOST_PIXELS) -> None:
    """Raises an `ImageError` if a picture has no pixels, or too many by its header."""
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError(f"its size is {width} x {height}, so there is nothing in it")
    if image.format == "WEBP":
        most_pixels //= 2
    if width * height > most_pixels:
        raise ImageError(
            f"its size is {width} x {height}, more than the {most_pixels:,} pixels that are "
            "accepted"
        )


def _check_scans(image: Image.Image, most_pixels: int) -> None:
    """Refuses a progressive JPEG of so many scans that decoding it would take minutes."""
    file = getattr(image, "fp", None)
    if file is None or not image.info.get("progressive"):
        return
    width, height = image.size
    scans, place = 0, file.tell()
    file.seek(0)
    while block := file.read(1 << 20):
        scans += block.count(b"\xff\xda")
    file.seek(place)
    if scans * width * height > _SCANS * most_pixels:
        raise ImageError(f"{scans} scans of {width} x {height} pixels are too many")


def _finish(image: Image.Image, near: int | None) -> Picture:
    """Decodes, converts and turns."""
    size = image.size
    if near is not None:
        image.draft(None, (near, near))  # None: whatever the mode is
    before = image.size
    image.load()
    if image.size != before:  # the decoder has turned it, as that of TIFF does
        size = size[::-1]
    orientation = _orientation(image)
    shrink = 1 if near is None else max(1, min(image.size) // near)
    picture = to_rgb(image, shrink=shrink)
    if orientation in _TURNS:
        picture = picture.transpose(_TURNS[orientation])
        size = size[::-1] if orientation >= 5 else size
    elif picture is image:
        picture = image.copy()  # the caller's own, which does not hold on to the file
    picture.info = {}
    return Picture(picture, size)


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION)
    except _BROKEN:  # the pixels are there all the same
        return 1
    return value if isinstance(value, int) else 1


class _Hush:
    """Keeps Pillow's remarks on odd files back, in any number of threads at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                # Once for all: threads that each did it would undo what another one did.
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\b")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._filters.__exit__(None, None, None)


_HUSH = _Hush()
