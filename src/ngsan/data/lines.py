"""Text files line by line, and texts as error messages show them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ngsan.data.problems import Problems

_SURROGATE = re.compile("[\ud800-\udfff]")
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Line(NamedTuple):
    """A line of a text file."""

    number: int
    """From 1."""

    offset: int
    """Where it begins, in bytes."""

    text: str
    """Without its end of line."""

    ended: bool
    """Whether it has an end of line; the last one of a file that was cut off has none."""


def numbered_lines(path: str | Path, problems: Problems | None = None) -> Iterator[Line]:
    """The lines of a UTF-8 file, with or without a byte order mark, ended by LF or CRLF.

    Args:
        path: The file.
        problems: Takes lines that are not UTF-8, which are left out; None: they are errors.
    """
    problems = problems or Problems()
    offset = 0
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith(_UTF16_MARKS):
                raise ValueError(f"{path} is UTF-16; save it as UTF-8")
            body = line.removeprefix(_UTF8_MARK) if number == 1 else line
            ended = body.endswith(b"\n")
            try:
                text = body.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                where = f"{path}:{number}"
                byte = offset + len(line) - len(body) + error.start
                if not ended and error.reason == "unexpected end of data":
                    message = f"{where}: the file ends too early, in a character at byte {byte}"
                    raise ValueError(message) from error
                problems.report("invalid UTF-8", where, f"byte {byte}: {error.reason}")
            else:
                yield Line(number, offset, text, ended)
            offset += len(line)


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: it has no half of a surrogate pair."""
    return not _SURROGATE.search(text)


def shown(value: object) -> str:
    """A value for an error message, cut short."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
