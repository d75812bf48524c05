"""Image ids. A string or an integer is an id alike, and so is the name of a COCO file."""

import re
from numbers import Integral
from pathlib import Path

PICTURES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
"""Endings of pictures."""

_VIDEOS = (".mp4", ".avi", ".webm", ".mkv", ".mov")
FILES = frozenset((*PICTURES, *_VIDEOS))
"""Endings of pictures and videos; a name that has one stands for the image without it."""

_COCO_FILE = re.compile(r"COCO_(?:train|val|test)\d{4}_(\d+)")


def canonical_id(value: str | int) -> str:
    """The one form in which an image id is stored and compared.

    A number is written without leading zeros, so 391895, "391895", "000000391895.jpg" and
    "COCO_val2014_000000391895.jpg" are the same image. Any other name stands for itself, without
    the ending of a picture or video.

    Raises:
        ValueError: There is nothing in it, or it is neither a string nor an integer.
    """
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise ValueError(f"an image id is a string or an integer, not {value!r}")
    text = str(value).strip()
    if not text:
        raise ValueError("an image id cannot be empty")
    if text.isascii() and text.isdigit():  # as most are, of which there may be many
        return str(int(text))
    while Path(text).suffix.lower() in FILES:
        text = text[: -len(Path(text).suffix)].strip()
    match = _COCO_FILE.fullmatch(text)
    if match:
        text = match[1]
    if text.isascii() and text.isdigit():
        return str(int(text))
    return text


def id_of_file(path: str | Path) -> str:
    """The image id that a file's name stands for: the name without its last extension."""
    return canonical_id(Path(path).stem)
