"""Image files decoded in processes of their own, with limits on time and memory per file.

A file of a few kilobytes can make a decoder work for minutes, take gigabytes or crash. Here that
ends a process, which is replaced, and the file becomes an `ImageError`. Pillow images and arrays
need no decoding and stay in this process.

Shapes: `S` side of a square, `T` frames.
"""

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image

from ngsan.vision.decode_process import (
    DecodingProcess,
    Found,
    LostError,
    MoreMemoryError,
    Pixels,
)
from ngsan.vision.decode_worker import NO_MEMORY, Head
from ngsan.vision.images import (
    MAX_PIXELS,
    ImageError,
    ImageSource,
    Picture,
    open_file,
    open_picture,
    to_square,
)

_CLIP_SECONDS = 600.0
"""CPU time for a clip, many frames of which may have to be decoded."""


@dataclass(frozen=True)
class Limits:
    """What the decoding of one file may take; times are in seconds."""

    cpu_seconds: float = 8.0
    """CPU time, of all attempts."""

    seconds: float = 120.0
    """Time from the request to the answer."""

    memory: int = 1 << 29
    """Bytes of a process."""

    large_memory: int = 3 << 30
    """Bytes of a process for a file that needs more; one such file is decoded at a time."""

    quick_seconds: float = math.inf
    """Time after which the priority is lowered."""


class Squares(NamedTuple):
    """An image in the sizes that models take."""

    squares: tuple[Pixels, ...]
    """(S, S, 3) RGB for each side that was asked for."""
    size: tuple[int, int]
    """Upright width and height of the original image."""


class DecodingService:
    """A pool of decoding processes, for any number of threads. Processes start when needed.

    A process that exceeds a limit or crashes is replaced; only the file that it decoded fails.
    """

    def __init__(
        self,
        workers: int,
        limits: Limits | None = None,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Sets up a pool.

        Args:
            workers: Largest number of processes.
            limits: Of each file.
            on_lost: Called with "time", "memory" or "crash" for each file that exceeded a limit or
                ended its process.
        """
        self.limits, self._on_lost = limits or Limits(), on_lost
        self._max, self._closed, self._peak = workers, False, 0
        self._reset()
        _SERVICES.add(self)

    def start(self, count: int = 1) -> None:
        """Starts processes ahead of the first file, without waiting for them."""
        with self._changed, suppress(ImageError):  # reading a file reports it
            while len(self._all) < min(count, self._max) and not self._closed:
                self._idle.append(self._new())
                self._changed.notify()

    def close(self) -> None:
        """Ends all processes, also those at work."""
        with self._changed:
            self._closed = True
            for worker in self._all:
                worker.kill()
            self._changed.notify_all()

    def leave(self) -> None:
        """In a forked process: leaves all processes to the parent and begins without."""
        for worker in self._all:
            worker.leave()
        self._reset()

    def squares(
        self,
        source: ImageSource,
        sides: tuple[int, ...],
        *,
        max_pixels: int = MAX_PIXELS,
        low_priority: bool = False,
    ) -> Squares:
        """Reads an image once and resizes it to squares, without keeping the aspect ratio.

        Args:
            source: A path, the bytes of a file, a Pillow image, or an array; see
                `ngsan.vision.images.open_picture`.
            sides: S of each square.
            max_pixels: Limit of width times height.
            low_priority: Whether other processes go first from the beginning.

        Raises:
            ImageError: The image is unsupported, damaged or missing, or exceeds a limit.
        """
        if isinstance(source, Image.Image | np.ndarray):
            # Not reduced while it is decoded: an image that the caller has opened would stay small.
            picture = open_picture(source, max_pixels=max_pixels)
            return Squares(tuple(to_square(picture.image, side) for side in sides), picture.size)
        near = 2 * max(sides)
        arrays, size = self._read(
            source, low_priority, sides=sides, max_pixels=max_pixels, min_side=near
        )
        return Squares(tuple(arrays), size)

    def picture(
        self, source: ImageSource, *, max_pixels: int = MAX_PIXELS, min_side: int | None = None
    ) -> Picture:
        """Reads an image as an upright RGB picture; see `ngsan.vision.images.open_picture`."""
        if isinstance(source, Image.Image | np.ndarray):
            return open_picture(source, max_pixels=max_pixels, min_side=min_side)
        (pixels,), size = self._read(source, max_pixels=max_pixels, min_side=min_side)
        return Picture(Image.fromarray(pixels), size)

    def clip(self, path: str | Path, *, frames: int, side: int) -> Pixels:
        """Frames (T, S, S, 3) of a video or an animated image; see `ngsan.vision.frames`."""
        (pixels,), _ = self._read(path, sides=(side,), frames=frames, suffix=Path(path).suffix)
        return pixels

    def _read(self, source: Any, low_priority: bool = False, **wanted: Any) -> Found:
        """Decodes a file; with little memory first, as that needs no turn."""
        clip, quick = "frames" in wanted, 0.0 if low_priority else self.limits.quick_seconds
        cpu_seconds = _CLIP_SECONDS if clip else self.limits.cpu_seconds
        head: Head = {
            **wanted,
            "cpu_seconds": cpu_seconds,
            "cpu_left": cpu_seconds,
            "seconds": 2 * _CLIP_SECONDS if clip else self.limits.seconds,
        }
        try:
            with _opened(source) as (data, file):
                try:
                    little = {**head, "memory": self.limits.memory, "has_more_memory": True}
                    return self._ask(little, data, file, quick)
                except MoreMemoryError as error:  # its second attempt has the rest of its time
                    head |= {"memory": self.limits.large_memory, "cpu_left": error.cpu_left}
                with self._large:
                    return self._ask(head, data, file, quick)
        except MemoryError:
            self._on_lost("memory")
            problem = NO_MEMORY
        except LostError as error:
            self._on_lost(error.reason)
            self.start(self._peak)
            problem = str(error)
        except ImageError as error:
            problem = str(error)
        name = str(source) if isinstance(source, str | os.PathLike) else "the image"
        raise ImageError(f"{name}: {problem}")

    def _ask(self, head: Head, data: Any, file: IO[bytes] | None, quick_seconds: float) -> Found:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._idle or len(self._all) < self._max)
            if self._closed:
                raise ImageError("the decoding service is closed")
            worker = self._idle.pop() if self._idle else self._new()
            if not worker.lives:  # somebody ended it
                self._all.discard(worker)
                worker = self._new()
        try:
            return worker.ask(head, data, file, quick_seconds)
        finally:
            with self._changed:
                if worker.is_free:
                    self._idle.append(worker)
                else:  # it was lost, or this thread was interrupted
                    worker.stop()
                    self._all.discard(worker)
                self._changed.notify()

    def _new(self) -> DecodingProcess:
        try:
            worker = DecodingProcess()
        except OSError as error:
            raise ImageError(f"cannot start a process to decode it: {error}") from None
        self._all.add(worker)
        self._peak = max(self._peak, len(self._all))
        return worker

    def _reset(self) -> None:
        self._idle, self._all = list[DecodingProcess](), set[DecodingProcess]()
        self._peak = 0
        self._changed, self._large = threading.Condition(), threading.Lock()


@contextmanager
def _opened(source: Any) -> Iterator[tuple[Any, IO[bytes] | None]]:
    """The content of a file, or the open file. It is opened here, with the rights of the caller."""
    if isinstance(source, bytes | bytearray | memoryview):
        yield source, None
    elif isinstance(source, str | os.PathLike):
        with open_file(Path(source)) as file:
            yield b"", file
    else:
        raise ImageError(
            "an image is a path, a Pillow image, an array or the bytes of a file, "
            f"not {type(source).__name__}"
        )


_SERVICES: weakref.WeakSet[DecodingService] = weakref.WeakSet()


def _leave_all() -> None:
    for service in list(_SERVICES):
        service.leave()


os.register_at_fork(after_in_child=_leave_all)


@cache
def shared_service() -> DecodingService:
    """The pool of this process."""
    return DecodingService(os.cpu_count() or 1)
