"""Image ids. A string, an integer and a file name of COCO can stand for the same image."""

import re
from numbers import Integral
from pathlib import Path

PICTURES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
"""File extensions of images."""

_VIDEOS = (".mp4", ".avi", ".webm", ".mkv", ".mov")
FILES = frozenset((*PICTURES, *_VIDEOS))
"""File extensions of images and videos, which are not part of an id."""

_COCO_FILE = re.compile(r"COCO_(?:train|val|test)\d{4}_(\d+)")


def canonical_id(value: str | int) -> str:
    """The form in which an image id is stored and compared.

    Numbers lose leading zeros: 391895, "391895", "000000391895.jpg" and
    "COCO_val2014_000000391895.jpg" are the same image. Other names lose their file extension.

    Raises:
        ValueError: The value is empty, or neither a string nor an integer.
    """
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise ValueError(f"an image id is a string or an integer, not {value!r}")
    text = str(value).strip()
    if not text:
        raise ValueError("an image id cannot be empty")
    if text.isascii() and text.isdigit():  # the most frequent case
        return str(int(text))
    while Path(text).suffix.lower() in FILES:
        text = text[: -len(Path(text).suffix)].strip()
    match = _COCO_FILE.fullmatch(text)
    if match:
        text = match[1]
    return str(int(text)) if text.isascii() and text.isdigit() else text


def id_of_file(path: str | Path) -> str:
    """The image id of a file: its name without the last extension."""
    return canonical_id(Path(path).stem)
