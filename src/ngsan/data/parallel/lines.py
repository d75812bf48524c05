"""Reads lines of text, and pairs of them, one after the other from files of any size.

A line ends with a line feed, which a carriage return may precede; no other sign ends one, or the
lines of two files would not fit. Files whose names end with .gz are unpacked on the way.
"""

import gzip
import itertools
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from ngsan.data.problems import Problems

MOST_BYTES = 1 << 20
"""A longer line is no sentence; it is not held in memory."""


@dataclass(frozen=True)
class Line:
    """A line of a file."""

    text: str | None
    """Its text without the line's end; None if it cannot be used."""

    problem: str = ""
    """Why it cannot: "bad UTF-8" or "overlong line"."""

    message: str = ""
    """More about that."""


def read_lines(path: str | Path) -> Iterator[Line]:
    """The lines of a file.

    Raises:
        ValueError: It is a damaged .gz file.
        OSError: It cannot be read.
    """
    path = Path(path)
    number = 0
    with _open(path) as file:
        try:
            for number, line in enumerate(lines_of(file), start=1):  # noqa: B007
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: damaged after line {number}: {error}") from error


def lines_of(file: IO[bytes]) -> Iterator[Line]:
    """The lines of an open file, such as standard input, as they come."""
    begins = True
    while content := file.readline(MOST_BYTES):
        # A mark of the byte order, if there is one, begins a file and is no text.
        yield _line(file, content.removeprefix(BOM_UTF8) if begins else content)
        begins = False


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def _line(file: IO[bytes], content: bytes) -> Line:
    if not content.endswith(b"\n") and len(content) == MOST_BYTES:
        rest = file.readline(MOST_BYTES)
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(MOST_BYTES)
        return Line(None, "overlong line", f"it has more than {MOST_BYTES:,} bytes")
    try:
        return Line(content.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8"))
    except UnicodeDecodeError as error:
        return Line(None, "bad UTF-8", f"byte {error.start + 1}: {error.reason}")


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str
    where: str
    """Its files and line."""


def read_pairs(
    sources: Sequence[str | Path],
    targets: Sequence[str | Path],
    problems: Problems,
    *,
    keep_empty: bool = False,
) -> Iterator[Pair]:
    """The pairs of lines of files: the first source file with the first target file, and so on.

    Args:
        sources: Files of sentences.
        targets: As many files of their translations.
        problems: Takes note of pairs that are left out: with bad UTF-8, which stops unless such
            are skipped; overlong ones; and those of which a line is empty.
        keep_empty: Whether pairs with an empty line are kept, as tests need them.

    Raises:
        ValueError: The files do not have the same numbers of lines.
    """
    if len(sources) != len(targets) or not sources:
        raise ValueError(
            f"{len(sources)} source files and {len(targets)} target files: there must be as many "
            "of both, and at least one"
        )
    for source, target in zip(sources, targets, strict=True):
        both = itertools.zip_longest(read_lines(source), read_lines(target))
        for number, (mine, its) in enumerate(both, start=1):
            if mine is None or its is None:
                more = number + sum(1 for _ in both)
                counts = (number - 1, more) if mine is None else (more, number - 1)
                raise ValueError(
                    f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}: line k of "
                    "one must be the translation of line k of the other"
                )
            where = f"{source} and {target}, line {number}"
            pair = _pair(mine, its, where, problems, keep_empty)
            if pair is not None:
                yield pair


def _pair(
    source: Line, target: Line, where: str, problems: Problems, keep_empty: bool
) -> Pair | None:
    for side, line in (("source", source), ("target", target)):
        if line.text is None:
            overlong = line.problem == "overlong line" and not keep_empty
            (problems.leave_out if overlong else problems.report)(
                line.problem, where, f"{side}: {line.message}"
            )
            return None
        if not keep_empty and not line.text.strip():
            problems.leave_out("empty line", where, f"the {side} is empty")
            return None
    assert source.text is not None
    assert target.text is not None
    return Pair(source.text, target.text, where)
