"""Image files decoded in processes of their own, with limits on time and memory per file.

A file of a few kilobytes can make a decoder work for minutes, take gigabytes or crash. Here that
ends a process, which is replaced, and the file becomes an `ImageError`. Pillow images and arrays
need no decoding and stay in this process.

Shapes: `S` side of a square, `T` frames.
"""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ngsan.vision.decode_worker import LENGTHS, NO_MEMORY, Head, send
from ngsan.vision.images import (
    MAX_PIXELS,
    ImageError,
    ImageSource,
    Picture,
    open_file,
    open_picture,
    to_square,
)

Pixels: TypeAlias = NDArray[np.uint8]

_START_SECONDS = 120.0
"""Time for a process to start, on the busiest of machines."""

_CLIP_SECONDS = 600.0
"""CPU time for a clip, many frames of which may have to be decoded."""

_NICE = 10
"""Priority of a file that takes long, where `Limits.quick_seconds` asks for it."""

_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from ngsan.vision.decode_worker import main
main()
"""

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True)
class Limits:
    """What the decoding of one file may take; times are in seconds."""

    cpu_seconds: float = 20.0
    """CPU time."""

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


Found: TypeAlias = tuple[list[Pixels], tuple[int, int]]
"""The arrays of a file, and the upright width and height of its image."""


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
        self, source: ImageSource, sides: tuple[int, ...], *, max_pixels: int = MAX_PIXELS
    ) -> Squares:
        """Reads an image once and resizes it to squares, without keeping the aspect ratio.

        Args:
            source: A path, the bytes of a file, a Pillow image, or an array; see
                `ngsan.vision.images.open_picture`.
            sides: S of each square.
            max_pixels: Limit of width times height.

        Raises:
            ImageError: The image is unsupported, damaged or missing, or exceeds a limit.
        """
        if isinstance(source, Image.Image | np.ndarray):
            # Not reduced while it is decoded: an image that the caller has opened would stay small.
            picture = open_picture(source, max_pixels=max_pixels)
            return Squares(tuple(to_square(picture.image, side) for side in sides), picture.size)
        near = 2 * max(sides)
        arrays, size = self._read(source, sides=sides, max_pixels=max_pixels, min_side=near)
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
        """Frames (T, S, S, 3) of a video or an animated image; see `ngsan.vision.clips`."""
        (pixels,), _ = self._read(path, sides=(side,), frames=frames, suffix=Path(path).suffix)
        return pixels

    def _read(self, source: Any, **wanted: Any) -> Found:
        """Decodes a file; with little memory first, as that needs no turn."""
        clip = "frames" in wanted
        head: Head = {
            **wanted,
            "cpu_seconds": _CLIP_SECONDS if clip else self.limits.cpu_seconds,
            "seconds": 2 * _CLIP_SECONDS if clip else self.limits.seconds,
        }
        try:
            with _opened(source) as (data, file):
                with suppress(MemoryError):
                    return self._ask({**head, "memory": self.limits.memory}, data, file)
                with self._large:
                    return self._ask({**head, "memory": self.limits.large_memory}, data, file)
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

    def _ask(self, head: Head, data: Any, file: IO[bytes] | None) -> Found:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._idle or len(self._all) < self._max)
            if self._closed:
                raise ImageError("the decoding service is closed")
            worker = self._idle.pop() if self._idle else self._new()
            if not worker.lives:  # somebody ended it
                self._all.discard(worker)
                worker = self._new()
        try:
            return worker.ask(head, data, file, self.limits.quick_seconds)
        finally:
            with self._changed:
                if worker.is_free:
                    self._idle.append(worker)
                else:  # it was lost, or this thread was interrupted
                    worker.stop()
                    self._all.discard(worker)
                self._changed.notify()

    def _new(self) -> "_Worker":
        try:
            worker = _Worker()
        except OSError as error:
            raise ImageError(f"cannot start a process to decode it: {error}") from None
        self._all.add(worker)
        self._peak = max(self._peak, len(self._all))
        return worker

    def _reset(self) -> None:
        self._idle, self._all = list[_Worker](), set[_Worker]()
        self._peak = 0
        self._changed, self._large = threading.Condition(), threading.Lock()


class LostError(Exception):
    """A process was lost: "time" or "crash", and a message about it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Worker:
    """A process, and the connection to it."""

    def __init__(self) -> None:
        paths = [*sys.path, str(Path(__file__).parents[2])]
        with ExitStack() as stack:
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            # In a process group of its own, which Ctrl-C in a terminal does not end.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, json.dumps(paths)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
                process_group=0,
            )
            self._socket = ours.dup()
        self._ready, self.is_free = False, True
        self._end = weakref.finalize(self, _end, self._process, self._socket)

    def ask(self, head: Head, data: Any, file: IO[bytes] | None, quick_seconds: float) -> Found:
        """The answer to a request.

        Raises:
            LostError: The process has to be replaced.
            ImageError: The file cannot be read; the message is without its name.
            MemoryError: It needs more memory.
        """
        self.is_free = False
        try:
            if not self._ready:
                self._socket.settimeout(_START_SECONDS)
                self._receive(math.inf, _START_SECONDS)
                self._ready = True
            self._socket.settimeout(head["seconds"])
            send(self._socket, head, (data,), file)
            answer, content = self._receive(quick_seconds, head["seconds"])
        except TimeoutError:
            raise LostError("time", _too_long(head["seconds"])) from None
        except OSError:
            raise self._lost(head) from None
        self.is_free = True
        if "error" in answer:
            raise MemoryError if answer["error"] == NO_MEMORY else ImageError(answer["error"])
        return _split(content, answer["shapes"]), (answer["size"][0], answer["size"][1])

    @property
    def lives(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends the process, and whoever waits for its answer."""
        self._process.kill()

    def stop(self) -> None:
        """Ends the process, and closes the connection, which nobody uses."""
        self._end()

    def leave(self) -> None:
        """Leaves the process to the parent of this one."""
        self._end.detach()
        self._process.returncode = 0
        self._socket.close()

    def _receive(self, quick_seconds: float, seconds: float) -> tuple[Head, bytearray]:
        if quick_seconds < seconds:
            self._socket.settimeout(quick_seconds)
            try:
                self._socket.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                self._lower_priority()
        self._socket.settimeout(seconds)
        length, size = LENGTHS.unpack(self._receive_exactly(LENGTHS.size))
        head = json.loads(self._receive_exactly(length))
        return head, self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytearray:
        content = bytearray(size)
        view = memoryview(content)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionError
            view = view[count:]
        return content

    def _lower_priority(self) -> None:
        """Lets other processes go first; on Linux, where it ends with the thread that decodes."""
        process = self._process.pid
        with suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                if int(task.name) != process:
                    os.setpriority(os.PRIO_PROCESS, int(task.name), _NICE)

    def _lost(self, head: Head) -> LostError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        if not self._ready:
            return LostError("crash", "the process to decode it did not start")
        if self._process.returncode == -signal.SIGPROF:
            return LostError("time", _too_long(head["cpu_seconds"]))
        return LostError("crash", "damaged image: it crashed the decoder")


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


def _too_long(seconds: float) -> str:
    return f"decoding took more than {seconds:g} seconds"


def _split(content: bytearray, shapes: list[list[int]]) -> list[Pixels]:
    numbers, arrays, start = np.frombuffer(content, np.uint8), [], 0
    for shape in shapes:
        end = start + math.prod(shape)
        arrays.append(numbers[start:end].reshape(shape))
        start = end
    return arrays


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    process.kill()
    process.wait()
    connection.close()


_SERVICES: weakref.WeakSet[DecodingService] = weakref.WeakSet()


def _leave_all() -> None:
    for service in list(_SERVICES):
        service.leave()


os.register_at_fork(after_in_child=_leave_all)


@cache
def shared_service() -> DecodingService:
    """The pool of this process."""
    return DecodingService(os.cpu_count() or 1)
