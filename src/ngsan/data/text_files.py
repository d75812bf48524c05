"""Reads text files: lines, JSON arrays item by item, and word vectors; .gz files are unpacked.

Shapes: `V` words, `W` width of a word vector.
"""

import gzip
import io
import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import ijson
import numpy as np
from numpy.typing import NDArray

from ngsan.data.problems import Problems

MAX_LINE = 1 << 20
"""Bytes of the longest sentence that `lines_of` accepts."""

_MAX_RECORD = 1 << 24
_CHUNK = 1 << 15
_MAX_RATIO = 64
_MIN_BOMB = 16 << 20
_MAX_DEPTH = 4096
_MAX_PLAIN = 1 << 22
_HELD = 16
_REPLACED = rb"\uffff"
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..)",
    re.DOTALL,
)


@contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading, and unpacks it if its name ends in .gz.

    Raises:
        ValueError: It is a device, which may have no end; or the .gz file is damaged or cut off,
            raised when reading.
    """
    path = Path(path)
    if path.is_char_device():
        raise ValueError(f"{path} is a device, not a file")
    if path.suffix.lower() != ".gz":
        with path.open("rb") as file:
            yield file
        return
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as packed:
            yield cast("IO[bytes]", io.BufferedReader(_Unpacked(path, raw, packed)))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged, or not a gzip file: {error}") from error


class _Unpacked(io.RawIOBase):
    """The content of a .gz file, unless it is a bomb: a small file of almost nothing but zeros."""

    def __init__(self, path: Path, raw: IO[bytes], packed: gzip.GzipFile) -> None:
        self._path, self._raw, self._packed = path, raw, packed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        return self._packed.seek(place, whence)

    def tell(self) -> int:
        return self._packed.tell()

    def readinto(self, buffer: Any) -> int:
        count = self._packed.readinto(buffer)
        if self._packed.tell() > max(_MIN_BOMB, _MAX_RATIO * self._raw.tell()):
            raise ValueError(
                f"{self._path}: unpacks to more than {_MAX_RATIO} times its size, which no text "
                "does: it is damaged"
            )
        return count


class Line(NamedTuple):
    """A line of a UTF-8 file that ends in LF or CRLF."""

    number: int
    """From 1."""

    offset: int
    """Bytes before it in the file."""

    text: str | None
    """Without the line end; None if it is unusable."""

    ended: bool
    """Whether it has a line end; the last line of a file that was cut off has none."""

    problem: str = ""
    """Why it is unusable: "invalid UTF-8" or "overlong line"."""

    message: str = ""
    """Details."""


def lines_of(file: IO[bytes], *, max_bytes: int = MAX_LINE) -> Iterator[Line]:
    """The lines of an open file as they arrive, without a byte order mark.

    Args:
        file: Such as standard input.
        max_bytes: Longer lines are unusable and not held in memory.
    """
    offset, number = 0, 0
    while content := file.readline(max_bytes):
        number += 1
        size, ended = len(content), content.endswith(b"\n")
        body = content.removeprefix(BOM_UTF8) if number == 1 else content
        if len(content) == max_bytes and not ended:
            while not ended and (rest := file.readline(max_bytes)):
                size, ended = size + len(rest), rest.endswith(b"\n")
            message = f"it has more than {max_bytes:,} bytes"
            yield Line(number, offset, None, ended, "overlong line", message)
        else:
            try:
                text = body.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
                yield Line(number, offset, text, ended)
            except UnicodeDecodeError as error:
                message = f"byte {error.start + 1} of the line: {error.reason}"
                yield Line(number, offset, None, ended, "invalid UTF-8", message)
        offset += size


def read_lines(path: str | Path, *, max_bytes: int = MAX_LINE) -> Iterator[Line]:
    """The lines of a file; see `lines_of`."""
    with open_bytes(path) as file:
        for line in lines_of(file, max_bytes=max_bytes):
            if line.number == 1 and line.text is None:
                with open_bytes(path) as again:
                    if again.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE):
                        raise ValueError(f"{path} is UTF-16; save it as UTF-8")
            yield line


def numbered_lines(
    path: str | Path, problems: Problems | None = None
) -> Iterator[tuple[Line, str]]:
    """The usable lines of a file, each with its text.

    Args:
        path: The file.
        problems: Where lines with invalid UTF-8 are reported; None raises an error.
    """
    problems = problems or Problems()
    for line in read_lines(path, max_bytes=_MAX_RECORD):
        if line.text is not None:
            yield line, line.text
            continue
        where = f"{path}:{line.number}"
        if not line.ended and line.message.endswith("unexpected end of data"):
            raise ValueError(f"{where}: the file ends too early, in a character: {line.message}")
        problems.report(line.problem, where, line.message)


def read_items(path: str | Path, *keys: str) -> Iterator[tuple[str, int, Any]]:
    """Reads the items of arrays in a JSON file without holding the file in memory.

    Args:
        path: The file, which is read once per key.
        *keys: Members of the file's object; none for a file that is an array.

    Yields:
        The key ("" for a file that is an array), the item's number from 1, and the item.

    Raises:
        ValueError: The JSON is broken or ends too early; names the file and the byte.
    """
    for key in keys or ("",):
        with _json_source(path) as source:
            items = ijson.items(source, f"{key}.item" if key else "item", use_float=True)
            for number, item in enumerate(items, start=1):
                yield key, number, _restore(item) if source.changed else item


def first_array(path: str | Path, *keys: str) -> str | None:
    """Which of some arrays the object in a JSON file has first; None if it has none.

    Raises:
        ValueError: The JSON before that is broken or ends too early.
    """
    with _json_source(path) as source:
        for name, event, _ in ijson.parse(source):
            if event == "start_array" and name in keys:
                return str(name)
    return None


@contextmanager
def _json_source(path: str | Path) -> "Iterator[_JsonSource]":
    """Opens a JSON file for the parser, whose errors become a `ValueError` with file and byte."""
    if Path(path).is_fifo():  # opening it might wait for ever, and it cannot be read twice
        raise ValueError(f"{path} is a pipe, not a file")
    with open_bytes(path) as file:
        source = _JsonSource(file)
        try:
            yield source
        except _EndlessError as error:
            raise ValueError(f"{path}: {error}: not a file of captions or questions") from None
        except (ijson.JSONError, RecursionError) as error:
            raise _broken_json(path, source.begin, error) from None


class _EndlessError(ValueError):
    """A text or a list in a JSON file is far too long to be held."""


class _JsonSource:
    """A JSON file as the parser reads it, changed where it would fail or hide a problem.

    Attributes:
        begin: Bytes before those that were read last.
        changed: Whether a lone surrogate was replaced, see `_restore`.
    """

    def __init__(self, file: IO[bytes]) -> None:
        mark = file.read(len(BOM_UTF8)) == BOM_UTF8
        self.begin = self._end = file.seek(len(BOM_UTF8) if mark else 0)
        self.changed, self._depth, self._plain = False, 0, 0
        self._file, self._sent, self._held = file, b"", b""

    def read(self, size: int) -> bytes:
        """The next bytes; empty only at the end of the file, or for a size of 0."""
        part = b""
        while size and not part:
            chunk = self._file.read(_CHUNK)
            # The parser's memory grows with the square of the depth.
            self._depth += chunk.count(b"[") + chunk.count(b"{")
            self._depth -= chunk.count(b"]") + chunk.count(b"}")
            if self._depth > _MAX_DEPTH:
                raise RecursionError("nested too deeply")
            self._plain = 0 if b'"' in chunk else self._plain + len(chunk)
            if self._plain > _MAX_PLAIN:
                raise _EndlessError(f"{_MAX_PLAIN:,} bytes without a quotation mark")
            part = self._next(chunk)
            if not chunk:
                break
        self.begin, self._end = self._end, self._end + len(part)
        return part

    def _next(self, chunk: bytes) -> bytes:
        window = self._sent + self._held + chunk
        begin, end = len(self._sent), len(window)
        if chunk:
            end = max(begin, end - _HELD)  # the next chunk shows whether a surrogate is alone
        fixed = window
        if b"\\u" in window and (b"\\ud" in window or b"\\uD" in window):
            fixed = _LONE_SURROGATE.sub(lambda match: match[0][:-6] + _REPLACED, window)
            self.changed = self.changed or fixed != window
        self._sent, self._held = window[max(0, end - _HELD) : end], window[end:]
        return fixed[begin:end]


def _restore(value: Any) -> Any:
    """Puts lone surrogates back, which the parser would turn into question marks."""
    if isinstance(value, str):
        return value.replace("\uffff", "\ud800")
    if isinstance(value, list):
        return [_restore(item) for item in value]
    if isinstance(value, dict):
        return {_restore(key): _restore(item) for key, item in value.items()}
    return value


def _broken_json(path: str | Path, begin: int, error: Exception) -> ValueError:
    """The error of a JSON file; parses it again to find the byte after `begin`."""
    parser = ijson.basic_parse_coro(found := ijson.sendable_list())
    with open_bytes(path) as file, suppress(ijson.JSONError, RecursionError, SystemError):
        source = _JsonSource(file)
        byte = source.begin
        while chunk := source.read(_CHUNK):
            for part in [chunk] if byte < begin else (chunk[k : k + 1] for k in range(len(chunk))):
                parser.send(part)
                byte += len(part)
            del found[:]
    reason = str(error).removeprefix("b'").replace("\\n", "\n").splitlines()[0]
    if "premature EOF" in reason:
        reason = "the file ends too early"
    if "UTF8" in reason:
        reason = "invalid UTF-8"
    return ValueError(f"{path}: byte {byte}: broken JSON: {reason}")


def read_vectors(
    path: str | Path, words: Sequence[str], dim: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Reads the vectors of some words from a text file such as GloVe's.

    Args:
        path: A word and its numbers per line, separated by spaces. A first line with the file's
            size, as word2vec writes it, is skipped. May be a .gz file.
        words: The words.
        dim: W.

    Returns:
        The vectors (V, W), zero for words that the file lacks; and whether it has each word (V,).
    """
    if dim < 1:
        raise ValueError(f"dim: {dim} is not at least 1")
    vectors = np.zeros((len(words), dim), np.float32)
    found = np.zeros(len(words), bool)
    places = {word: place for place, word in enumerate(words)}
    with open_bytes(path) as file:
        for number, content in enumerate(file, start=1):
            line = content.decode("utf-8", errors="replace")
            parts = line.rstrip("\r\n ").split(" ")
            if number == 1:
                if len(parts) == 2 and all(part.isdigit() for part in parts):
                    continue
                _check_width(parts, dim, path)
            if len(parts) <= dim:
                if not line.strip():
                    continue
                raise ValueError(
                    f"{path}:{number}: expected a word and {dim} numbers, not {len(parts)} parts: "
                    "the file is damaged or cut off"
                )
            # Some files have words with spaces in them, so the numbers are counted from the end.
            place = places.get(" ".join(parts[:-dim]))
            if place is None or found[place]:
                continue
            try:
                vectors[place] = np.array(parts[-dim:], np.float32)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
            if not np.isfinite(vectors[place]).all():
                raise ValueError(f"{path}:{number}: a number of {words[place]!r} is not finite")
            found[place] = True
    if not found.any():
        raise ValueError(f"{path} has none of the {len(words)} words, such as {words[:3]}")
    return vectors, found


def _check_width(parts: Sequence[str], dim: int, path: str | Path) -> None:
    numbers = 0
    for part in reversed(parts):
        try:
            float(part)
        except ValueError:
            break
        numbers += 1
    # The word itself may be a number.
    if numbers not in (dim, dim + 1) or len(parts) < dim + 1:
        raise ValueError(
            f"{path}:1: expected a word and {dim} numbers, not {numbers} numbers; set word_dim to "
            "the width of the file's vectors"
        )
