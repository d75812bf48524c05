"""The frames of a video file or an animated image, decoded in this process.

Videos need PyAV, the extra `ngsan[video]`. A bad file raises `ImageError`.

Shapes: `T` frames, `S` side of the square that each frame is resized to.
"""

import math
from collections.abc import Iterator
from importlib import import_module
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ngsan.vision.images import (
    IMAGE_SUFFIXES,
    MAX_PIXELS,
    ImageError,
    check_size,
    open_checked,
    reading,
    to_rgb,
    to_square,
)

MAX_FRAMES = 100_000
"""Limit of frames in an animated image or a folder."""

MAX_DECODED = 10_000_000_000
"""Limit of pixels in all decoded frames of a clip."""

ANIMATED_FORMATS = ("GIF", "PNG", "WEBP")
"""Image formats that can be animated."""

ANIMATED_SUFFIXES = frozenset((".gif", ".png", ".apng", ".webp"))

_CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,flv,ogg,asf,gif,apng,m4v"
)
"""Allowed containers. Playlists are excluded: they make the library open other files and URLs."""

_MAX_WHOLE = 2_000_000_000
"""Pixels up to which every frame is decoded, about two minutes of 640 x 360. In longer videos the
sampled frames are found by seeking."""

_SPARE = 4
"""Ratio of kept to sampled frames while decoding, so that the sample is even at the end."""

_PATIENCE = 600
"""Limit of frames to decode after seeking."""


def decode_clip(file: IO[bytes], suffix: str, *, frames: int, size: int) -> NDArray[np.uint8]:
    """Samples the frames of a video or an animated image; see `ngsan.vision.clips.open_clip`.

    Raises:
        ImageError: The message is without the name of the file.
    """
    if suffix.lower() in IMAGE_SUFFIXES | ANIMATED_SUFFIXES:
        return _of_animation(file, frames, size)
    return _of_video(file, frames, size)


def evenly(count: int, max_frames: int) -> list[int]:
    """At most `max_frames` of the numbers 0 to `count` - 1, evenly spaced, with both ends."""
    if max_frames == 1:
        return [count // 2]
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, max_frames))})


def _of_animation(file: IO[bytes], frames: int, size: int) -> NDArray[np.uint8]:
    """Frames of a GIF, PNG or WebP; a still image is a clip of one frame."""
    with reading("", ANIMATED_FORMATS), open_checked(file, ANIMATED_FORMATS) as image:
        check_size(image)
        count = int(getattr(image, "n_frames", 1))
        if count > MAX_FRAMES or count * image.width * image.height > MAX_DECODED:
            raise ImageError(
                f"{count:,} frames of {image.width} x {image.height} exceed the limits"
            )
        taken = []
        for place in evenly(count, frames):
            image.seek(place)
            taken.append(to_square(to_rgb(image.copy()), size))
    return np.stack(taken)


def _of_video(file: IO[bytes], frames: int, size: int) -> NDArray[np.uint8]:
    """Samples upright frames (T, S, S, 3) of a video file with PyAV."""
    av = _av()
    try:
        # As an open file and without protocols, so that no other file or URL is opened.
        options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": ""}
        with av.open(file, container_options=options) as container:
            taken = _sample(container, frames, size)
    except ImageError:
        raise
    except (av.FFmpegError, ValueError, OverflowError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"cannot decode the video: {reason}") from None
    if not taken:
        raise ImageError("no frames")
    return np.stack(taken)


def _av() -> Any:
    try:
        av = import_module("av")
    except ImportError:
        raise ImageError(
            "video files need PyAV: pip install 'ngsan[video]'; GIFs and folders of frames do not"
        ) from None
    av.logging.set_level(None)  # errors are reported by exceptions
    return av


def _sample(container: Any, frames: int, size: int) -> list[NDArray[np.uint8]]:
    streams = container.streams.video
    if not streams:
        raise ImageError("no video stream")
    stream = streams[0]
    stream.thread_type = "AUTO"
    width, height = stream.codec_context.width, stream.codec_context.height
    _check_frame(width, height)
    seconds = _seconds(container, stream)
    expected = seconds * float(stream.average_rate or 30) * width * height
    if seconds and expected > _MAX_WHOLE and frames > 1:
        found = _sample_by_seeking(container, stream, seconds, frames, size)
        if found:
            return found
        container.seek(0)
    return _sample_all(container, stream, frames, size)


def _seconds(container: Any, stream: Any) -> float:
    """Duration of the video by its header; 0 if unknown."""
    if stream.duration and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    else:
        seconds = (container.duration or 0) / 1e6
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _sample_all(container: Any, stream: Any, frames: int, size: int) -> list[NDArray[np.uint8]]:
    """Decodes all frames and keeps some, with a stride that grows with the length."""
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


def _sample_by_seeking(
    container: Any, stream: Any, seconds: float, frames: int, size: int
) -> list[NDArray[np.uint8]]:
    """Seeks to each frame, and decodes from the key frame before it."""
    taken = []
    start = float((stream.start_time or 0) * (stream.time_base or 0))
    budget = [0]
    for place in range(frames):
        # Slightly before the end, because the last frame starts before it.
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
    """The frames from here on, within limits. `budget` counts pixels over several calls."""
    spent = [0] if budget is None else budget
    for count, frame in enumerate(container.decode(stream)):
        _check_frame(frame.width, frame.height)
        spent[0] += frame.width * frame.height
        if count >= MAX_FRAMES or spent[0] > MAX_DECODED:
            raise ImageError(
                f"more than {count:,} frames of {frame.width} x {frame.height}, which exceeds the "
                "limits; shorten the video"
            )
        yield frame


def _check_frame(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageError(f"its size {width} x {height} exceeds the limit of {MAX_PIXELS:,} pixels")


def _square(frame: Any, size: int) -> NDArray[np.uint8]:
    pixels = frame.to_ndarray(format="rgb24")
    turns = round(getattr(frame, "rotation", 0) / 90) % 4
    return to_square(Image.fromarray(np.ascontiguousarray(np.rot90(pixels, turns))), size)
