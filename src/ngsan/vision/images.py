"""Image files as upright RGB pictures, whatever their kind; a bad file raises `ImageError`.

Needs only Pillow and numpy.

Shapes: `H` and `W` are the height and width of an image.
"""

import io
import mmap
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

from ngsan.vision.patterns import ALL, expand, is_pattern
from ngsan.vision.structure import StructureError, check_sides, check_structure

ImageSource: TypeAlias = str | Path | bytes | bytearray | Image.Image | NDArray[Any]
"""Anything that can be opened: a path, the bytes of a file, a Pillow image, or a pixel array."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""The supported formats; others are rejected whatever the file's name."""

_JPEG_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo")
IMAGE_SUFFIXES = frozenset(
    (*_JPEG_SUFFIXES, ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff")
)
"""Suffixes of image files, in any case."""

MAX_PIXELS = 100_000_000
"""Default limit of width times height."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Makes an image upright, by EXIF orientation. From 5 on, width and height are swapped."""

_ORIENTATION = 0x0112

_WHITES = {"I;16": (4095, 65535), "I": (255, 4095, 65535), "F": (1, 255, 65535)}
"""Candidates for the white value of images with more than 8 bits, by mode."""


_STRIP = 1 << 22
"""Number of pixels of a large image that are converted at a time."""

# Pillow's decoders raise almost any of Python's errors for a broken file.
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
    """An image cannot be read; the message is one line that names it."""


class Picture(NamedTuple):
    """A decoded image."""

    image: Image.Image
    """Upright, RGB, in memory."""
    size: tuple[int, int]
    """Upright width and height of the whole image; `image` may be smaller, see `min_side`."""


def open_image(
    source: ImageSource, *, max_pixels: int = MAX_PIXELS, min_side: int | None = None
) -> Image.Image:
    """Reads an image as an upright RGB picture; see `open_picture`."""
    return open_picture(source, max_pixels=max_pixels, min_side=min_side).image


def open_picture(
    source: ImageSource | IO[bytes],
    *,
    max_pixels: int = MAX_PIXELS,
    min_side: int | None = None,
) -> Picture:
    """Reads an image as an upright RGB picture, and its size.

    Only the first frame is read. Transparent pixels become white. 16-bit grey is divided by 4095
    if no value is above that, else by 65535. 32-bit integers are divided by 255, 4095 or 65535,
    floats by 1, 255 or 65535. If values are beyond that, the minimum becomes black and the maximum
    white. Invalid EXIF data are ignored.

    Args:
        source: A path, the bytes of a file, an open file, a Pillow image, or an array of (H, W),
            (H, W, 1), (H, W, 3) or (H, W, 4): uint8, uint16, or floats from 0 to 1.
        max_pixels: Limit of width times height; half of it for WebP, whose decoder needs several
            times the memory. Checked in the header before decoding. Pillow's own limit of 179
            million applies, too.
        min_side: Width and height that suffice. A larger image may be reduced by an integer factor
            during decoding, but not below this. Several times faster for JPEG.

    Raises:
        ImageError: The format is unsupported, or the file is damaged, too large or missing.
    """
    name = str(source) if isinstance(source, str | os.PathLike) else "the image"
    with reading(name), _opened(source, max_pixels) as image:
        check_size(image, max_pixels)
        picture = _finish(image, min_side)
    return picture


@contextmanager
def reading(name: str, kinds: Sequence[str] = FORMATS) -> Iterator[None]:
    """Turns all errors of reading a file into an `ImageError` that names it.

    Args:
        name: Name of the file.
        kinds: The supported formats, for the message.
    """
    try:
        with _QUIET:
            yield
    except (ImageError, StructureError) as error:
        raise ImageError(f"{name}: {error}") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{name}: far too many pixels") from None
    except UnidentifiedImageError:
        raise ImageError(
            f"{name}: unsupported image format; supported are {', '.join(kinds)}"
        ) from None
    except MemoryError:
        raise ImageError(f"{name}: not enough memory to decode it") from None
    except _BROKEN as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ImageError(f"{name}: damaged image: {reason}") from None


def to_square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """Resizes an RGB image to (size, size, 3), without keeping the aspect ratio."""
    # Bicubic with antialiasing. Very large images are first reduced by an integer factor, which is
    # faster; with a gap of 3 no difference is visible.
    small = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.array(small)


def find_images(paths: Sequence[str | Path]) -> Iterator[Path]:
    """Expands paths to image files.

    Args:
        paths: Files of any name; folders, which are searched recursively for files with an image
            suffix; and patterns such as `photos/**/*.jpg`.

    Yields:
        Files in the order of `paths`, and within a folder or pattern by name. Hidden files and
        folders, and links to a parent folder, are skipped. Missing files, pipes, links to
        nothing, and folders that cannot be read, are yielded, too; `open_image` reports them.
    """
    for given in paths:
        if not str(given):  # "" would mean the current folder
            yield Path()
            continue
        path = Path(given)
        found, unread = expand(str(path)) if is_pattern(str(path)) else ([path], [])
        for match in found or ([] if unread else [path]):
            if not is_folder(match):
                yield match
            elif match == path or ALL not in path.parts:  # it matches the files in folders, too
                yield from _in_folder(match)
        yield from unread


def _in_folder(top: Path) -> Iterator[Path]:
    """The image files in a folder; a loop rather than a recursion, as folders may be very deep."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(top, ())]
    while waiting:
        folder, above = waiting.pop()
        real = os.path.realpath(folder)
        if real in above:
            continue
        try:
            pictures, folders = _look_into(folder)
        except OSError:
            yield folder
            continue
        yield from sorted(pictures)
        waiting += [(path, (*above, real)) for path in sorted(folders, reverse=True)]


def _look_into(folder: Path) -> tuple[list[Path], list[Path]]:
    """What is named like an image in a folder, and the folders in it; nothing that is hidden."""
    pictures, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                folders.append(path)
            elif path.suffix.lower() in IMAGE_SUFFIXES:  # pipes, too; reading reports them
                pictures.append(path)
    return pictures, folders


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry leads to a folder, also where its path is too long to be looked at."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere
        return False


def list_folder(folder: Path) -> list[Path]:
    """What is in a folder, by name, without hidden entries.

    Raises:
        ImageError: The folder cannot be read; the message is without its name.
    """
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise ImageError(f"cannot read the folder: {error.strerror or error}") from None


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder; unlike `Path.is_dir`, False if that cannot be found out."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: Path) -> bool:
    """Whether a path leads to a regular file; False if that cannot be found out."""
    return os.path.isfile(path)  # noqa: PTH113


@contextmanager
def _opened(source: ImageSource | IO[bytes], max_pixels: int) -> Iterator[Image.Image]:
    """The image with its header read; the file stays open within the block."""
    if isinstance(source, Image.Image):
        yield source
    elif isinstance(source, np.ndarray):
        try:
            yield from_array(source)
        except ValueError as error:
            raise ImageError(str(error)) from None
    else:
        if isinstance(source, bytes | bytearray):
            source = io.BytesIO(source)
        file = open_file(Path(source)) if isinstance(source, str | os.PathLike) else source
        with file, open_checked(file, FORMATS, max_pixels) as image:
            yield image


def open_checked(
    file: IO[bytes], kinds: Sequence[str], max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Reads an image's header, after a check of its structure."""
    if isinstance(file, io.BytesIO):
        check_structure(file.getvalue(), max_pixels)
    elif os.fstat(file.fileno()).st_size:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            check_structure(content, max_pixels)
    return Image.open(file, formats=tuple(kinds))


def open_file(path: Path) -> IO[bytes]:
    """Opens a regular file; otherwise raises an `ImageError` without the name."""
    try:
        # Checked before opening, because opening a pipe would wait for a writer.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            list_folder(path)
            raise ImageError("is a folder")
        if not stat.S_ISREG(mode):
            raise ImageError("not a regular file")
        return path.open("rb")
    except FileNotFoundError:
        raise ImageError("file not found") from None
    except OSError as error:
        raise ImageError(f"cannot open the file: {error.strerror or error}") from None
    except ImageError:
        raise
    except ValueError as error:  # such as a name with a zero in it
        raise ImageError(f"cannot open the file: {error}") from None


def check_size(image: Image.Image, max_pixels: int = MAX_PIXELS) -> None:
    """Raises an `ImageError` if an image has no pixels, or too many."""
    width, height = image.size
    check_sides(width, height)
    if width < 1 or height < 1:
        raise ImageError(f"empty image of size {width} x {height}")
    if image.format == "WEBP":
        max_pixels //= 2
    if width * height > max_pixels:
        raise ImageError(f"its size {width} x {height} exceeds the limit of {max_pixels:,} pixels")


def _finish(image: Image.Image, min_side: int | None) -> Picture:
    """Decodes, converts to RGB and rotates."""
    size = image.size
    if min_side is not None:
        image.draft(None, (min_side, min_side))  # None keeps the mode
    before = image.size
    image.load()
    if image.size != before:  # the decoder has rotated it, as for TIFF
        size = size[::-1]
    orientation = _orientation(image)
    shrink = 1 if min_side is None else max(1, min(image.size) // min_side)
    picture = to_rgb(image, shrink=shrink)
    if orientation in _TURNS:
        picture = picture.transpose(_TURNS[orientation])
        size = size[::-1] if orientation >= 5 else size
    elif picture is image:
        picture = image.copy()  # a copy does not keep the file open
    picture.info = {}
    return Picture(picture, size)


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION)
    except _BROKEN:  # the pixels may still be fine
        return 1
    return value if isinstance(value, int) else 1


class _Quiet:
    """Suppresses Pillow's warnings, in any number of threads at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                # Once for all threads: the filters are global.
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\b")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._filters.__exit__(None, None, None)


_QUIET = _Quiet()


def to_rgb(image: Image.Image, *, shrink: int = 1) -> Image.Image:
    """A decoded image as RGB; returns the image itself if possible.

    Transparent pixels become white. Grey of more than 8 bits is scaled, see `to_bytes`.

    Args:
        image: The image.
        shrink: Integer factor to reduce the image by. The work is done in strips, so that a large
            image is never in memory twice.
    """
    values = _range_of(image) if _deep_mode(image) in _WHITES else (0.0, 0.0)
    width, height = image.size
    if shrink == 1 and (image.mode == "RGB" or width * height <= _STRIP):
        return _convert(image, values)
    small = Image.new("RGB", (-(-width // shrink), -(-height // shrink)))
    for top, bottom in _strips(width, height, shrink):
        strip = image.crop((0, top, width, bottom))
        strip.info = image.info  # may contain a transparent colour
        small.paste(_convert(strip, values).reduce(shrink), (0, top // shrink))
    return small


def _strips(width: int, height: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """First row and end row of each strip."""
    rows = max(1, _STRIP // (width * multiple)) * multiple
    for top in range(0, height, rows):
        yield top, min(height, top + rows)


def _deep_mode(image: Image.Image) -> str:
    return "I;16" if image.mode.startswith("I;16") else image.mode


def _range_of(image: Image.Image) -> tuple[float, float]:
    """Minimum and maximum, without a copy of the whole image."""
    lows, highs = [], []
    for top, bottom in _strips(*image.size):
        values = np.asarray(image.crop((0, top, image.width, bottom)), np.float32)
        values = np.nan_to_num(values, nan=0.0)
        lows.append(float(values.min()))
        highs.append(float(values.max()))
    return min(lows), max(highs)


def _convert(image: Image.Image, values: tuple[float, float]) -> Image.Image:
    """As RGB; `values` is the range of the whole image, if it has more than 8 bits."""
    mode = _deep_mode(image)
    if mode in _WHITES:
        whole = _scaled(np.asarray(image), _WHITES[mode], *values)
        return Image.fromarray(whole).convert("RGB")
    if mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        if mode == "La":
            image = image.convert("LA")
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert("RGB")
    return image if mode == "RGB" else image.convert("RGB")


def to_bytes(values: NDArray[Any], whites: tuple[int, ...]) -> NDArray[np.uint8]:
    """Scales values of any range to 0 to 255.

    Args:
        values: Numbers of any type; NaN becomes 0.
        whites: Candidates for the white value, ascending. The first one that no value exceeds is
            used; without one, or with a negative value, the minimum becomes black and the maximum
            white.
    """
    found = np.nan_to_num(values.astype(np.float32), nan=0.0)
    return _scaled(values, whites, float(found.min()), float(found.max()))


def _scaled(
    values: NDArray[Any], whites: tuple[int, ...], low: float, high: float
) -> NDArray[np.uint8]:
    """See `to_bytes`; `low` and `high` are the range of the whole image."""
    values = np.nan_to_num(values.astype(np.float32), nan=0.0)
    fitting = [white for white in whites if high <= white]
    if low >= 0 and fitting:
        low, high = 0.0, float(fitting[0])
    # Halves, because the span of the largest floats would overflow.
    span = np.float32(max(high / 2 - low / 2, float(np.finfo(np.float32).tiny)))
    return ((values / 2 - np.float32(low / 2)) / span * 255 + 0.5).astype(np.uint8)


def from_array(array: NDArray[Any]) -> Image.Image:
    """A pixel array as an image.

    Args:
        array: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4): uint8, uint16, or floats from 0 to 1.
    """
    shape = array.shape
    if not (array.ndim == 2 or (array.ndim == 3 and shape[2] in (1, 3, 4))) or not array.size:
        raise ValueError(f"shape {shape} is not (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    if array.ndim == 3 and shape[2] == 1:
        array = array[:, :, 0]
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):  # also False for NaN
            raise ValueError(
                f"floats must be from 0 to 1, not from {low:g} to {high:g}; use uint8 for 0 to 255"
            )
        array = (array.astype(np.float32) * 255 + 0.5).astype(np.uint8)
    elif array.dtype == np.uint16:
        array = to_bytes(array, _WHITES["I;16"])
    elif array.dtype != np.uint8:
        raise ValueError(f"the type must be uint8, uint16 or float, not {array.dtype}")
    return Image.fromarray(np.ascontiguousarray(array))
