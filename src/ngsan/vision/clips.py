"""Clips as frames: video files, animated images, folders of images and lists of them.

Needs Pillow and numpy; video files also need PyAV, the extra `ngsan[video]`. A bad clip raises
`ImageError`.

Shapes: `T` frames, `S` side of the square that each frame is resized to.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ngsan.vision.decoding import shared_service
from ngsan.vision.frames import ANIMATED_FORMATS, ANIMATED_SUFFIXES, MAX_FRAMES, evenly
from ngsan.vision.images import (
    IMAGE_SUFFIXES,
    ImageError,
    ImageSource,
    is_folder,
    list_folder,
    open_checked,
    open_file,
    reading,
)

ClipSource: TypeAlias = str | Path | Sequence[ImageSource] | NDArray[Any]
"""Anything that can be opened: the path of a file or of a folder of frames, a list of images, or an
array of (T, H, W), (T, H, W, 3) or (T, H, W, 4)."""

FRAMES = 5
"""Default number of frames to sample."""

MAX_SAMPLED = 1024
"""Limit of frames to sample."""

VIDEO_SUFFIXES = frozenset(
    (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".ogv")
)
"""Suffixes of video files, in any case."""


def is_clip(path: str | Path) -> bool:
    """Whether a file is a clip: a video by its suffix, or a GIF, PNG or WebP of several frames."""
    path = Path(path)
    ending = path.suffix.lower()
    if ending in VIDEO_SUFFIXES:
        return not is_folder(path)
    if ending not in ANIMATED_SUFFIXES or not os.path.isfile(path):  # noqa: PTH113
        return False
    try:
        with reading(""), _opened(path) as image:
            moves = bool(getattr(image, "is_animated", False))
    except ImageError:  # reading it will report the error
        return False
    return moves


def find_clips(paths: Sequence[str | Path]) -> Iterator[Path]:
    """Expands paths to clips.

    Args:
        paths: Files of any name, and folders. A folder with still images is one clip, with the
            images as frames. Other folders are searched recursively for videos, GIFs and folders
            of frames.

    Yields:
        Files and folders in the order of `paths`, and within a folder by name. Missing files are
        yielded, and so are folders that cannot be read; `open_clip` reports them.
    """
    for given in paths:
        path = Path(given)
        if str(given) and is_folder(path):
            yield from _in_folder(path)
        else:
            yield path


def _in_folder(top: Path) -> Iterator[Path]:
    """The clips in a folder; a loop rather than a recursion, as folders may be very deep."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(top, ())]
    while waiting:
        path, above = waiting.pop()
        real = os.path.realpath(path)
        if not is_folder(path):
            yield path
            continue
        if real in above:
            continue
        try:
            entries = list_folder(path)
            frames = _frame_files(path)
        except ImageError:
            yield path
            continue
        if frames:
            yield path
            continue
        waiting += [
            (entry, (*above, real))
            for entry in reversed(entries)
            if is_folder(entry) or entry.suffix.lower() in VIDEO_SUFFIXES | {".gif"}
        ]


def open_clip(source: ClipSource, *, frames: int = FRAMES, size: int = 256) -> NDArray[np.uint8]:
    """Samples frames evenly from the first to the last.

    Args:
        source: See `ClipSource`.
        frames: Number of frames; a shorter clip gives all its frames.
        size: S.

    Returns:
        (T, S, S, 3) RGB.

    Raises:
        ImageError: The clip is unsupported, damaged or too large, or PyAV is missing.
        ValueError: `frames` is out of range.
    """
    if not 1 <= frames <= MAX_SAMPLED:
        raise ValueError(f"frames: {frames} is not from 1 to {MAX_SAMPLED}")
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if is_folder(path):
            try:
                files = _frame_files(path)
            except ImageError as error:
                raise ImageError(f"{path}: {error}") from None
            return _of_images(files, frames, size, name=str(path))
        return shared_service().clip(path, frames=frames, side=size)
    if not isinstance(source, list | tuple | np.ndarray):
        raise ImageError(
            f"a clip must be a path, a list of images or an array, not {type(source).__name__}"
        )
    if isinstance(source, np.ndarray) and source.ndim not in (3, 4):
        raise ImageError(
            f"the clip: the array must be (frames, height, width, 3), not {source.shape}"
        )
    return _of_images(source, frames, size, name="the clip")


def _of_images(
    pictures: "Sequence[ImageSource] | NDArray[Any]", frames: int, size: int, *, name: str
) -> NDArray[np.uint8]:
    if not len(pictures):
        raise ImageError(f"{name}: no frames")
    if len(pictures) > MAX_FRAMES:
        raise ImageError(f"{name}: {len(pictures):,} frames exceed the limit of {MAX_FRAMES:,}")
    taken: list[NDArray[np.uint8]] = []
    for place in evenly(len(pictures), frames):
        picture = pictures[place]
        try:
            taken += shared_service().squares(picture, (size,)).squares
        except ImageError as error:
            prefix = f"{name}: frame {place}: " if not isinstance(picture, str | Path) else ""
            raise ImageError(f"{prefix}{error}") from None
    return np.stack(taken)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with open_file(path) as file, open_checked(file, ANIMATED_FORMATS) as image:
        yield image


def _frame_files(folder: Path) -> list[Path]:
    """The still images in a folder in natural order: frame 2 before frame 10."""
    found = (
        entry
        for entry in list_folder(folder)
        if entry.suffix.lower() in IMAGE_SUFFIXES - {".gif"} and entry.is_file()
    )
    return sorted(found, key=lambda entry: _natural_key(entry.name))


def _natural_key(name: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]
