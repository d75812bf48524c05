"""Frames of video files, decoded by PyAV, which is an extra: `ngsan[video]`.

Shapes: `T` frames, `S` side of the square that each is squashed to.
"""

import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ngsan.vision.clips import MOST_DECODED, MOST_FRAMES, evenly
from ngsan.vision.images import MOST_PIXELS, ImageError, open_file, to_square

_CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,flv,ogg,asf,gif,apng,m4v"
)
"""What is opened. Above all no playlists, which make the library open other files and addresses."""

_WHOLE = 2_000_000_000
"""Pixels up to which every frame is decoded, some two minutes of 640 x 360. Of longer videos the
frames before and after those that are taken are passed over."""

_SPARE = 4
"""Times as many frames are held as are taken, so that these can be chosen evenly at the end."""

_PATIENCE = 600
"""Frames from one that can be sought to on, at most."""


def read_video(path: Path, *, frames: int, size: int) -> NDArray[np.uint8]:
    """Takes frames of a video, evenly from the first to the last.

    Args:
        path: The file.
        frames: How many; a video that has fewer gives all that it has.
        size: S.

    Returns:
        (T, S, S, 3) RGB, upright.

    Raises:
        ImageError: It is no video, is damaged or too large, or PyAV is missing.
    """
    try:
        file = open_file(path)
    except ImageError as error:
        raise ImageError(f"{path}: {error}") from None
    with file:
        av = _av(path)
        try:
            # Given as an open file, and with no protocol allowed: what a file points at stays shut.
            options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": ""}
            with av.open(file, container_options=options) as container:
                taken = _take(container, frames, size)
        except ImageError as error:
            raise ImageError(f"{path}: {error}") from None
        except (av.FFmpegError, ValueError, OverflowError, OSError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise ImageError(f"{path}: this is no video that can be decoded: {said}") from None
        except MemoryError:
            raise ImageError(f"{path}: there is not enough memory to decode it") from None
    if not taken:
        raise ImageError(f"{path}: there are no frames in it")
    return np.stack(taken)


def _av(path: Path) -> Any:
    try:
        av = import_module("av")
    except ImportError:
        raise ImageError(
            f"{path}: video files are decoded by PyAV: pip install 'ngsan[video]'; GIFs and "
            "folders of frames need nothing"
        ) from None
    av.logging.set_level(None)  # what is wrong is said once, by the error
    return av


def _take(container: Any, frames: int, size: int) -> list[NDArray[np.uint8]]:
    streams = container.streams.video
    if not streams:
        raise ImageError("there is no video in it")
    stream = streams[0]
    stream.thread_type = "AUTO"
    width, height = stream.codec_context.width, stream.codec_context.height
    _check_size(width, height)
    seconds = _seconds(container, stream)
    expected = seconds * float(stream.average_rate or 30) * width * height
    if seconds and expected > _WHOLE and frames > 1:
        found = _take_sought(container, stream, seconds, frames, size)
        if found:
            return found
        container.seek(0)
    return _take_all(container, stream, frames, size)


def _seconds(container: Any, stream: Any) -> float:
    """How long the video says it is; 0 if it does not."""
    if stream.duration and stream.time_base:
        told = float(stream.duration * stream.time_base)
    else:
        told = (container.duration or 0) / 1e6
    return told if math.isfinite(told) and told > 0 else 0.0


def _take_all(container: Any, stream: Any, frames: int, size: int) -> list[NDArray[np.uint8]]:
    """Decodes everything and keeps some, ever further apart the longer it gets."""
    kept: list[NDArray[np.uint8]] = []
    stride = 1
    last: Any = None
    for place, frame in enumerate(_decoded(container, stream)):
        last = None
        if place % stride:
            last = frame
            continue
        kept.append(_square(frame, size))
        if len(kept) > _SPARE * frames:
            kept, stride = kept[::2], 2 * stride
    if last is not None:
        kept.append(_square(last, size))
    return [kept[place] for place in evenly(len(kept), frames)] if kept else []


def _take_sought(
    container: Any, stream: Any, seconds: float, frames: int, size: int
) -> list[NDArray[np.uint8]]:
    """Seeks each frame, and decodes from the one before it that can be sought to."""
    taken = []
    start = float((stream.start_time or 0) * (stream.time_base or 0))
    budget = [0]
    for place in range(frames):
        # Not quite the end, as the last frame begins before it.
        goal = start + seconds * min(place / (frames - 1), 0.995)
        container.seek(int(goal * 1e6))
        found = None
        for count, frame in enumerate(_decoded(container, stream, budget)):
            found = frame
            if frame.time is None or frame.time >= goal or count >= _PATIENCE:
                break
        if found is not None:
            taken.append(_square(found, size))
    return taken


def _decoded(container: Any, stream: Any, budget: list[int] | None = None) -> Iterator[Any]:
    """The frames from here on; too many are an `ImageError`. `budget` counts over several calls."""
    spent = [0] if budget is None else budget
    for count, frame in enumerate(container.decode(stream)):
        _check_size(frame.width, frame.height)
        spent[0] += frame.width * frame.height
        if count >= MOST_FRAMES or spent[0] > MOST_DECODED:
            raise ImageError(
                f"{count:,} frames of {frame.width} x {frame.height} are decoded and there are "
                "still more: cut it shorter"
            )
        yield frame


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise ImageError(
            f"its size is {width} x {height}, more than the {MOST_PIXELS:,} pixels that are "
            "accepted"
        )


def _square(frame: Any, size: int) -> NDArray[np.uint8]:
    pixels = frame.to_ndarray(format="rgb24")
    turns = round(getattr(frame, "rotation", 0) / 90) % 4
    return to_square(Image.fromarray(np.ascontiguousarray(np.rot90(pixels, turns))), size)
