"""A lock on a folder, so that two processes do not write into it at once."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def folder_lock(path: Path, what: str = "import into") -> Iterator[None]:
    """Holds a lock for the length of a block; it goes with the process, however that ends.

    Args:
        path: The lock's file, in the folder that is locked.
        what: What the folder is locked for, in words that go before its name.

    Raises:
        ValueError: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = take_lock(path, what)
    try:
        yield
    finally:
        release_lock(lock, path)


def take_lock(path: Path, what: str = "import into") -> IO[bytes]:
    """Takes a lock; the arguments are those of `folder_lock`."""
    while True:
        lock = path.open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one before may have removed the file after we opened it: then it locks nothing.
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        except BlockingIOError:
            lock.close()
            raise ValueError(
                f"another {what} {path.parent} is under way: wait until it has finished"
            ) from None
        except FileNotFoundError:
            pass
        lock.close()


def release_lock(lock: IO[bytes], path: Path) -> None:
    """Gives a lock back."""
    # Closing unlocks, so the file goes first: nobody else can have locked it by then.
    with lock:
        path.unlink(missing_ok=True)
