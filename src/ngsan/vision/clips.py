"""Clips as frames: of video files, moving pictures, folders of pictures and lists of them.

Needs Pillow and numpy alone; video files need PyAV besides, see `ngsan.vision.videos`. A bad clip
is an `ImageError`.

Shapes: `T` frames, `S` side of the square that each is squashed to.
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

from ngsan.vision.images import (
    ENDINGS,
    ImageError,
    ImageSource,
    check_size,
    open_file,
    open_image,
    reading,
    to_square,
)
from ngsan.vision.pixels import to_rgb

ClipSource: TypeAlias = str | Path | Sequence[ImageSource] | NDArray[Any]
"""What can be opened: the path of a file or of a folder of frames, a list of images, or an array
of (T, H, W), (T, H, W, 3) or (T, H, W, 4)."""

FRAMES = 5
"""Frames that are taken of a clip, unless told otherwise."""

MOST_FRAMES = 100_000
"""Frames that a moving picture or a folder may have."""

MOST_TAKEN = 1024
"""Frames that may be taken of a clip."""

MOST_DECODED = 10_000_000_000
"""Pixels of all frames that are decoded of a clip."""

VIDEO_ENDINGS = frozenset(
    (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".ogv")
)
"""Names of video files end in one of these, in capitals or not."""

MOVING_FORMATS = ("GIF", "PNG", "WEBP")
"""The formats of pictures that may move."""

_MAY_MOVE = frozenset((".gif", ".png", ".apng", ".webp"))


def is_clip(path: str | Path) -> bool:
    """Whether a file moves: a video by its name, or a GIF, PNG or WebP of several frames."""
    path = Path(path)
    ending = path.suffix.lower()
    if ending in VIDEO_ENDINGS:
        return not path.is_dir()
    if ending not in _MAY_MOVE or not path.is_file():
        return False
    try:
        with reading(""), _opened(path) as image:
            moves = bool(getattr(image, "is_animated", False))
    except ImageError:  # whoever reads it will say what is wrong
        return False
    return moves


def find_clips(paths: Sequence[str | Path]) -> Iterator[Path]:
    """The clips that paths mean.

    Args:
        paths: Files, which are taken whatever their names, and folders. A folder that holds still
            pictures is one clip, whose frames they are; of any other folder, videos, GIFs and the
            clips of the folders within it are taken.

    Yields:
        Files and folders in the order of `paths`, and within a folder by name. What is not there
        comes as it is, for `open_clip` to report.
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from _in_folder(path, ())
        else:
            yield path


def _in_folder(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    if folder.resolve() in above:
        return
    if _frame_files(folder):
        yield folder
        return
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _in_folder(entry, (*above, folder.resolve()))
        elif entry.suffix.lower() in VIDEO_ENDINGS | {".gif"}:
            yield entry


def open_clip(source: ClipSource, *, frames: int = FRAMES, size: int = 256) -> NDArray[np.uint8]:
    """Takes frames of a clip, evenly from the first to the last.

    Args:
        source: See `ClipSource`.
        frames: How many; a clip that has fewer gives all that it has.
        size: S.

    Returns:
        (T, S, S, 3) RGB.

    Raises:
        ImageError: It is no clip, is damaged or too large, or PyAV is needed and missing.
        ValueError: `frames` is out of range.
    """
    if not 1 <= frames <= MOST_TAKEN:
        raise ValueError(f"frames: {frames} is not from 1 to {MOST_TAKEN}")
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir():
            return _of_pictures(_frame_files(path), frames, size, name=str(path))
        if path.suffix.lower() in ENDINGS | _MAY_MOVE:
            return _of_moving_picture(path, frames, size)
        from ngsan.vision.videos import read_video

        return read_video(path, frames=frames, size=size)
    if not isinstance(source, list | tuple | np.ndarray):
        raise ImageError(
            f"a clip is a path, a list of images or an array of frames, not {type(source).__name__}"
        )
    if isinstance(source, np.ndarray) and source.ndim not in (3, 4):
        raise ImageError(f"the clip: an array is (frames, height, width, 3), not {source.shape}")
    return _of_pictures(source, frames, size, name="the clip")


def evenly(count: int, most: int) -> list[int]:
    """At most so many numbers of 0 to `count` - 1, evenly, the first and the last among them."""
    if most == 1:
        return [count // 2]
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})


def _of_pictures(
    pictures: "Sequence[ImageSource] | NDArray[Any]", frames: int, size: int, *, name: str
) -> NDArray[np.uint8]:
    if not len(pictures):
        raise ImageError(f"{name}: there are no frames in it")
    if len(pictures) > MOST_FRAMES:
        raise ImageError(f"{name}: {len(pictures):,} frames are more than {MOST_FRAMES:,}")
    taken = []
    for place in evenly(len(pictures), frames):
        picture = pictures[place]
        near = None if isinstance(picture, Image.Image) else 2 * size
        try:
            taken.append(to_square(open_image(picture, near=near), size))
        except ImageError as error:
            told = f"{name}: frame {place}: " if not isinstance(picture, str | Path) else ""
            raise ImageError(f"{told}{error}") from None
    return np.stack(taken)


def _of_moving_picture(path: Path, frames: int, size: int) -> NDArray[np.uint8]:
    """Frames of a GIF, PNG or WebP; a still picture is a clip of one."""
    with reading(str(path), MOVING_FORMATS), _opened(path) as image:
        check_size(image)
        count = int(getattr(image, "n_frames", 1))
        if count > MOST_FRAMES or count * image.width * image.height > MOST_DECODED:
            raise ImageError(
                f"{count:,} frames of {image.width} x {image.height} are more than are decoded"
            )
        taken = []
        for place in evenly(count, frames):
            image.seek(place)
            taken.append(to_square(to_rgb(image.copy()), size))
    return np.stack(taken)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with open_file(path) as file, Image.open(file, formats=MOVING_FORMATS) as image:
        yield image


def _frame_files(folder: Path) -> list[Path]:
    """The still pictures right in a folder, as people count: frame 2 before frame 10."""
    found = (
        entry
        for entry in _entries(folder)
        if entry.suffix.lower() in ENDINGS - {".gif"} and entry.is_file()
    )
    return sorted(found, key=lambda entry: _as_counted(entry.name))


def _as_counted(name: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:  # one that may not be read
        return []
