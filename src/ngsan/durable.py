"""Files that are on the disk wholly or not at all, whatever ends the process or the machine.

A file is written under a temporary name beside its own, sent to the disk, and only then given its
name; whoever reads meanwhile, or after a kill, finds the old file or the new one.
"""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".partial"
"""How temporary names end."""

_MOST_LINKS = 40
"""Links that are followed one after the other, as Linux does."""


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Gives a temporary path to write to; when the block ends well, it takes the name `path`.

    Args:
        path: The file to make or to replace. Its folder must be there.

    Yields:
        Where to write: a name beside `path` that is free. Nothing of it is left when the block
        fails; a kill may leave it, see `remove_partials`.
    """
    path = Path(path)
    # Two processes that write the same file do not write into each other's.
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
def replacing_output(path: str | Path) -> Iterator[Path]:
    """Like `replacing`, for a file that somebody has named on a command line.

    A link stays, and what it leads to is replaced. A pipe, a device or an open file, such as
    /dev/stdout, cannot be replaced: it is written to as it is.
    """
    if is_stream(path):
        yield Path(path)
        return
    with replacing(os.path.realpath(path)) as partial:  # Path.resolve has no OSError for circles
        yield partial


def write_output(path: str | Path, content: bytes | str) -> None:
    """Writes a file that somebody has named on a command line; see `replacing_output`.

    Args:
        path: The file. Its folder must be there.
        content: Text is written in UTF-8, its line ends as they are.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_stream(path):
        Path(path).write_bytes(data)
        return
    with replacing_output(path) as partial:
        write_unseen(partial, data, name=path)


def is_stream(path: str | Path) -> bool:
    """Whether a path leads to a pipe, a device or an open file, which is not to be replaced.

    Raises:
        OSError: It leads through links in a circle.
    """
    at = Path(path).absolute()
    for _ in range(_MOST_LINKS):
        if at.parts[1:2] in (("dev",), ("proc",)):
            return True
        if not at.is_symlink():
            return at.exists() and not at.is_file()
        at = at.parent / at.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes a file whole; an `OSError` names it and leaves the old one as it was."""
    with replacing(path) as partial:
        write_unseen(partial, content, name=path)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file in UTF-8 whole, its line ends as they are."""
    write_bytes(path, text.encode())


def write_unseen(path: Path, content: bytes, *, name: str | Path | None = None) -> None:
    """Writes a file, and sends it to the disk, where nobody looks yet.

    Args:
        path: A temporary name, or a place in a folder with one.
        content: What to write.
        name: What to call the file in an `OSError`; None for `path`.
    """
    with _naming(Path(name or path)), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def append_line(path: str | Path, line: str) -> None:
    """Adds a line to a file of JSON lines, which is made if need be, and sends it to the disk.

    What a kill left of a line before is removed; if it is whole but for its end, it stays.

    Args:
        path: The file, which has one writer at a time.
        line: Without the end of line.
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
    """Whether a line is JSON to its end; what a kill left of an object never is."""
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


def flush(path: str | Path) -> None:
    """Sends a file's content to the disk."""
    with Path(path).open("rb") as file, _naming(Path(path)):
        os.fsync(file.fileno())


def flush_folder(folder: str | Path) -> None:
    """Sends a folder's names, and what was renamed in it, to the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with _naming(Path(folder)):
            os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems know no such thing
            raise
    finally:
        os.close(number)


def make_folder(folder: str | Path) -> None:
    """Makes a folder, and those it lies in, such that they last."""
    folder = Path(folder).absolute()
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in new:
        flush_folder(path.parent)


def remove_partials(path: str | Path) -> None:
    """Removes what kills left of writing `path`, a file with one writer at a time."""
    path = Path(path)
    for left in path.parent.iterdir():
        if left.name.startswith(f"{path.name}.") and left.name.endswith(PARTIAL):
            left.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Puts a file's name into an `OSError` that has none, such as that of a full disk.

    A temporary name gives way to it, too: nobody asked for such a file.
    """
    try:
        yield
    except OSError as error:
        named = error.filename is not None and not str(error.filename).endswith(PARTIAL)
        if error.errno is None or named:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
