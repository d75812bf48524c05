"""A process that decodes image files, seen from the process that asks it; see `decode_worker`."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ngsan.vision.decode_worker import LENGTHS, NO_MEMORY, Head, send
from ngsan.vision.images import ImageError

Pixels: TypeAlias = NDArray[np.uint8]

Found: TypeAlias = tuple[list[Pixels], tuple[int, int]]
"""The arrays of a file, and the upright width and height of its image."""


_START_SECONDS = 120.0
"""Time for a process to start, on the busiest of machines."""

_END_SECONDS = 10.0
"""Time for a process to end after its connection has."""

_THREAD_SECONDS = 0.005
"""Time for the thread of a file to start, which is when it has a priority."""

_NICE = 10
"""How much lower the priority of a file is that takes long, see `Limits.quick_seconds`."""

_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from ngsan.vision.decode_worker import main
main()
"""

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class LostError(Exception):
    """A process was lost: "time" or "crash", and a message about it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class MoreMemoryError(MemoryError):
    """A file needs more memory."""

    def __init__(self, cpu_left: float) -> None:
        super().__init__(NO_MEMORY)
        self.cpu_left = cpu_left
        """What is left of its CPU time."""


class DecodingProcess:
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
            MoreMemoryError: It needs more memory.
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
            if answer["error"] == NO_MEMORY:
                raise MoreMemoryError(answer["cpu_left"])
            raise ImageError(answer["error"])
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
            self._socket.settimeout(max(quick_seconds, _THREAD_SECONDS))
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
            lower = os.getpriority(os.PRIO_PROCESS, process) + _NICE
            for task in Path(f"/proc/{process}/task").iterdir():
                if int(task.name) != process:
                    os.setpriority(os.PRIO_PROCESS, int(task.name), lower)

    def _lost(self, head: Head) -> LostError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        if not self._ready:
            return LostError("crash", "the process to decode it did not start")
        if self._process.returncode == -signal.SIGPROF:
            return LostError("time", _too_long(head["cpu_seconds"]))
        return LostError("crash", "damaged image: it crashed the decoder")


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
