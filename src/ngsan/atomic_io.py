"""Atomic file output, folder locks and sealed manifests.

A file or folder is written under a temporary name beside its own, flushed to the disk, and renamed
last. A reader, or a restart after a kill, finds either the old content or the new one.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

PARTIAL = ".partial"
"""Suffix of temporary names."""

MAX_SMALL = 1 << 24
"""Bytes of the largest manifest, vocabulary or similar file that is read."""

_MAX_LINKS = 40
"""Symbolic links followed in a row, as in Linux."""

_DIGEST = "digest"


# Files


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`, which replaces it when the block ends without error.

    A failing block leaves nothing behind. A kill may leave the temporary file, see
    `remove_partials`. The folder must exist.
    """
    path = Path(path)
    # The process id keeps two processes that write the same file apart.
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    partial.unlink(missing_ok=True)
    try:
        yield partial
        flush(partial)
        partial.replace(path)
        flush_folder(path.parent)
    finally:
        # Also after success: renaming a hard link of a file to the file itself does nothing.
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def replace_output(path: str | Path) -> Iterator[Path]:
    """Like `replace_file`, for a path that the user gave on the command line.

    A symbolic link stays and its target is replaced. A pipe, a device or an open file, such as
    /dev/stdout, cannot be replaced: the block writes to it directly.
    """
    if is_stream(path):
        yield Path(path)
        return
    with replace_file(os.path.realpath(path)) as partial:  # Path.resolve hides circular links
        yield partial


def write_output(path: str | Path, content: bytes | str) -> None:
    """Writes a file that the user named; see `replace_output`. Text is written as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    if is_stream(path):
        Path(path).write_bytes(data)
        return
    with replace_output(path) as partial:
        write_unseen(partial, data, name=path)


def is_stream(path: str | Path) -> bool:
    """Whether a path leads to a pipe, a device or an open file.

    Raises:
        OSError: The symbolic links are circular.
    """
    at = Path(path).absolute()
    for _ in range(_MAX_LINKS):
        if at.parts[1:2] in (("dev",), ("proc",)):
            return True
        if not at.is_symlink():
            return at.exists() and not at.is_file()
        at = at.parent / at.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Replaces a file; an `OSError` names it and leaves the old content."""
    with replace_file(path) as partial:
        write_unseen(partial, content, name=path)


def write_text(path: str | Path, text: str) -> None:
    """Replaces a file by UTF-8 text, with its line ends unchanged."""
    write_bytes(path, text.encode())


def write_unseen(path: Path, content: bytes, *, name: str | Path | None = None) -> None:
    """Writes and flushes a file that nobody reads yet.

    Args:
        path: A temporary name, or a path in a temporary folder.
        content: The bytes to write.
        name: The file name for an `OSError`; None for `path`.
    """
    with _naming(Path(name or path)), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_small(path: str | Path, max_bytes: int = MAX_SMALL) -> bytes:
    """Reads a file that belongs to a folder, which may come from anywhere.

    Raises:
        OSError: It cannot be read.
        ValueError: It is a pipe or a device, or has more than `max_bytes`.
    """
    check_regular(path)
    if (size := Path(path).stat().st_size) > max_bytes:
        raise ValueError(f"{path} has {size:,} bytes, more than {max_bytes:,}: it is damaged")
    return Path(path).read_bytes()


def check_regular(path: str | Path) -> None:
    """Raises a `ValueError` for a pipe or a device, which could be read for ever."""
    mode = Path(path).stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{path} is not a regular file")


def append_line(path: str | Path, line: str) -> None:
    """Appends a line to a JSON lines file, creates it if needed, and flushes it.

    An incomplete last line, left by a kill, is removed first. A file has one writer at a time.
    """
    path = Path(path)
    make_folder(path.parent)
    with _naming(path), path.open("a+b") as file:
        file.seek(0)
        content = file.read()
        ended = content.rfind(b"\n") + 1
        whole = is_whole(content[ended:])
        if not whole:
            file.truncate(ended)
        file.write(b"\n" * whole + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def is_whole(line: bytes) -> bool:
    """Whether a line is complete JSON; an object that was cut off never is."""
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


def remove_partials(path: str | Path) -> None:
    """Removes the temporary files that kills left beside `path`, which has one writer at a time."""
    path = Path(path)
    for left in path.parent.iterdir():
        if left.name.startswith(f"{path.name}.") and left.name.endswith(PARTIAL):
            left.unlink(missing_ok=True)


# Folders


@contextmanager
def replace_folder(target: str | Path) -> Iterator[Path]:
    """Yields a new folder beside `target`, which replaces it when the block ends without error.

    All files in it are flushed first. A failing block leaves nothing behind; what a kill left is
    removed by the next call.
    """
    target = Path(target)
    partial = target.with_name(f".{target.name}.{os.getpid()}{PARTIAL}")
    for left in target.parent.glob(f".{target.name}.*{PARTIAL}"):
        if left == partial or not _is_running(left.name.split(".")[-2]):
            shutil.rmtree(left, ignore_errors=True)
    make_folder(partial)
    try:
        yield partial
        for path in partial.rglob("*"):
            if path.is_dir():
                flush_folder(path)
            else:
                flush(path)
        flush_folder(partial)
        exchange_folder(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def exchange_folder(new: Path, target: Path) -> None:
    """Renames a finished folder to `target`; a folder that is there already is removed.

    Note: a kill between the two renames leaves `new` complete and the old folder under the name of
        the target with `.old` appended.
    """
    old = target.with_name(f"{target.name}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    flush_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def make_folder(folder: str | Path) -> None:
    """Creates a folder and its parents, and flushes their names."""
    folder = Path(folder).absolute()
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in new:
        flush_folder(path.parent)


def flush(path: str | Path) -> None:
    """Flushes the content of a file to the disk."""
    with Path(path).open("rb") as file, _naming(Path(path)):
        os.fsync(file.fileno())


def flush_folder(folder: str | Path) -> None:
    """Flushes the names in a folder, and what was renamed in it, to the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with _naming(Path(folder)):
            os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # unsupported by the file system
            raise
    finally:
        os.close(number)


# Locks


@contextmanager
def folder_lock(path: Path, what: str = "import into") -> Iterator[None]:
    """Holds a lock during a block. It ends with the process, whatever ends that.

    Args:
        path: The lock file, in the folder that is locked.
        what: The action for the error message, written before the folder's name.

    Raises:
        ValueError: Another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = take_lock(path, what)
    try:
        yield
    finally:
        release_lock(lock, path)


def take_lock(path: Path, what: str = "import into") -> IO[bytes]:
    """Acquires a lock; see `folder_lock`."""
    while True:
        lock = path.open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file after we opened it.
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
    """Releases a lock."""
    # Closing unlocks, so the file goes first: nobody else can have locked it by then.
    with lock:
        path.unlink(missing_ok=True)


# Sealed manifests


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file in hexadecimal; `sha256sum` prints the same."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(path: str | Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, as a manifest records them."""
    return {"bytes": Path(path).stat().st_size, "sha256": sha256_of(path)}


def check_file(path: str | Path, entry: Mapping[str, Any], *, content: bool = True) -> None:
    """Compares a file with its `file_entry`.

    Args:
        path: The file.
        entry: What `file_entry` returned when it was written; further keys are ignored.
        content: Whether to read the file and compare its SHA-256 as well as its size.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: Its size or its content differs.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: copy it again")
    if (size := path.stat().st_size) != entry["bytes"]:
        raise ValueError(
            f"{path} has {size:,} bytes instead of {entry['bytes']:,}: it was cut off or changed"
        )
    if content and sha256_of(path) != entry["sha256"]:
        raise ValueError(f"{path} is damaged: its SHA-256 is not {entry['sha256']}")


def seal(content: Mapping[str, Any]) -> str:
    """The JSON text of a manifest with a digest over all of it."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, _DIGEST: digest}, indent=1, sort_keys=True) + "\n"


def read_sealed(path: str | Path) -> dict[str, Any]:
    """Reads the text that `seal` made and checks it byte by byte.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: It is damaged or was changed.
    """
    text = read_small(path)
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it has no keys and values")
        whole = {name: content[name] for name in content if name != _DIGEST}
        if seal(whole).encode() == text:
            return whole
        reason = "its text does not match its digest"
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error)
    raise ValueError(f"{path} is damaged: {reason}")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Adds the file's name to an `OSError` without one, such as a full disk.

    It also replaces a temporary name, which means nothing to the user.
    """
    try:
        yield
    except OSError as error:
        named = error.filename is not None and not str(error.filename).endswith(PARTIAL)
        if error.errno is None or named:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
