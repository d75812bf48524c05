"""The process that decodes image files for `ngsan.vision.decoding`, one after the other.

The main thread waits for requests and notices at once when the other side is gone; each file is
decoded in a thread of its own, so that a slow one can be given a lower priority.

A message is the lengths of a head and of the data, the head as JSON, and the data. A request comes
with the content of a file, or with an open file; the data of an answer are arrays, one after the
other.
"""

import ctypes
import io
import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ngsan.vision.images import (
    FORMATS,
    ImageError,
    open_checked,
    open_picture,
    reading,
    to_square,
)

Head: TypeAlias = dict[str, Any]

LENGTHS = struct.Struct("!IQ")

NO_MEMORY = "not enough memory to decode it"
"""How the message of an `ImageError` ends when memory was short."""

_STACK = 1 << 21
_MANY_BYTES = 10_000_000
_BYTES_PER_PIXEL = 12
"""What decoders need at most, roughly."""


def serve(connection: socket.socket) -> None:
    """Answers requests until the other side is gone."""
    threading.stack_size(_STACK)
    threading.excepthook = lambda _: os._exit(1)
    send(connection, {}, ())
    while request := receive(connection):
        threading.Thread(target=_answer, args=(connection, *request), daemon=True).start()
        del request
    os._exit(0)  # whatever is being decoded


def send(
    connection: socket.socket, head: Head, parts: Sequence[Any], file: IO[bytes] | None = None
) -> None:
    """Sends a message; `parts` are its data."""
    text = json.dumps(head).encode()
    size = sum(memoryview(part).nbytes for part in parts)
    lengths = LENGTHS.pack(len(text), size)
    if file is None:
        connection.sendall(lengths)
    else:
        socket.send_fds(connection, [lengths], [file.fileno()])
    connection.sendall(text)
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket) -> tuple[Head, bytes | IO[bytes]] | None:
    """The next message, with its data or the file that came with it; None at the end."""
    lengths, files, _, _ = socket.recv_fds(connection, LENGTHS.size, 1)
    if len(lengths) < LENGTHS.size:
        return None
    length, size = LENGTHS.unpack(lengths)
    head: Head = json.loads(connection.recv(length, socket.MSG_WAITALL))
    if not files:
        return head, connection.recv(size, socket.MSG_WAITALL)
    file = os.fdopen(files[0], "rb")
    file.seek(0)  # where it stands is shared with the other side, which may ask twice
    return head, file


def _answer(connection: socket.socket, head: Head, source: bytes | IO[bytes]) -> None:
    """Decodes a file within its limits; SIGPROF ends the process after too much CPU time."""
    signal.setitimer(signal.ITIMER_PROF, max(head["cpu_left"], 0.01))  # 0 would be no limit
    _limit_memory(head["memory"])
    again = source if isinstance(source, bytes) else os.fdopen(os.dup(source.fileno()), "rb")
    try:
        arrays, size = _decode(source, head)
        answer: Head = {"size": size, "shapes": [array.shape for array in arrays]}
    except ImageError as error:
        short = head.get("has_more_memory") and _may_lack_memory(again, head["memory"])
        message = NO_MEMORY if short else str(error).removeprefix("the image: ")
        arrays, answer = [], {"error": message}
    except MemoryError:
        arrays, answer = [], {"error": NO_MEMORY}
    answer["cpu_left"], _ = signal.setitimer(signal.ITIMER_PROF, 0)
    _limit_memory(-1)  # the next file may come before what this one took is free
    large = "error" in answer or sum(array.nbytes for array in arrays) > _MANY_BYTES
    if large or answer["size"][0] * answer["size"][1] > _MANY_BYTES:
        del source, again
        release_memory()
    with suppress(OSError):
        send(connection, answer, arrays)


def _decode(source: Any, head: Head) -> tuple[list[NDArray[np.uint8]], tuple[int, int]]:
    if "frames" in head:
        from ngsan.vision.frames import decode_clip

        (side,) = head["sides"]
        return [decode_clip(source, head["suffix"], frames=head["frames"], size=side)], (0, 0)
    picture = open_picture(source, max_pixels=head["max_pixels"], min_side=head["min_side"])
    if "sides" not in head:
        return [np.asarray(picture.image)], picture.size
    return [to_square(picture.image, side) for side in head["sides"]], picture.size


def _may_lack_memory(source: bytes | IO[bytes], memory: int) -> bool:
    """Whether a file that was reported as damaged may have needed more memory than `memory`."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    is_webp = False
    try:
        with reading("the image"):  # also of what cannot be read, such as a damaged disk
            file.seek(0)
            is_webp = file.read(4) == b"RIFF"  # its decoder fails before it reports a size
            file.seek(0)
            with open_checked(file, FORMATS) as image:
                return image.width * image.height * _BYTES_PER_PIXEL > memory
    except ImageError:
        return is_webp


def _limit_memory(size: int) -> None:
    """Limits the writable memory of this process, where the system supports it; -1 for no limit."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


def release_memory() -> None:
    """Returns memory that is free to the system, where the C library supports it."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    """Serves the socket that is this process's standard input."""
    for name in FORMATS:  # before the first file comes; otherwise Pillow would import all it knows
        import_module(f"PIL.{name.title() if name != 'WEBP' else 'WebP'}ImagePlugin")
    serve(socket.socket(fileno=0))
