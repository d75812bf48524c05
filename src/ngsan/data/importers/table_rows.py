"""Rows of a table as they stand in the file: CSV with a header, or JSON lines."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ngsan.data.captions import entry_fields
from ngsan.data.lines import numbered_lines, shown
from ngsan.data.problems import Problems

_SEPARATORS = ",;\t"


class Row(NamedTuple):
    """A row of a table."""

    where: str
    """File and line."""

    fields: dict[str, object]
    """Its values by the names of the columns."""


def json_rows(path: str | Path, problems: Problems) -> Iterator[Row]:
    """Reads JSON lines: an object a line; empty lines are passed over.

    Args:
        path: The file, in UTF-8.
        problems: Takes lines that are no objects.

    Raises:
        ValueError: The last line is cut off.
    """
    for line in numbered_lines(path, problems):
        if not line.text.strip():
            continue
        where = f"{path}:{line.number}"
        try:
            entry = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            if not line.ended:
                byte = line.offset + len(line.text.encode("utf-8"))
                message = f"{where}: the file ends too early, at byte {byte}: {error}"
                raise ValueError(message) from error
            problems.report("broken JSON", where, str(error))
            continue
        fields = entry_fields(entry, (), problems, where)
        if fields is not None:
            yield Row(where, fields)


def csv_rows(
    path: str | Path, problems: Problems, *, image: Sequence[str] = ("image",)
) -> Iterator[Row]:
    """Reads CSV, whose columns are separated by commas, semicolons or tabs.

    Args:
        path: The file, in UTF-8. Its first line names the columns, in any case; one of them must
            be "caption".
        problems: Takes rows that cannot be used.
        image: What the column of the image may be called.

    Yields:
        Rows that are not empty, with the names of the columns in lower case.

    Raises:
        ValueError: The header lacks a column, or a quote is never closed.
    """
    lines = _CsvLines(Path(path))
    names, separator = _header(path, lines, image)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        where = f"{path}:{lines.number + 1}"
        try:
            values = next(reader, None)
        except csv.Error as error:
            if lines.ended:
                raise ValueError(f"{where}: a quote that opens here is never closed") from error
            problems.report("broken row", where, _explained(error, lines.number))
            continue
        if values is None:
            return
        if not any(value.strip() for value in values):
            continue
        if len(values) != len(names):
            message = (
                f"{len(values)} fields instead of {len(names)}; quote captions with {separator!r}"
            )
            problems.report("wrong number of fields", where, message)
            continue
        if any("\udc80" <= letter <= "\udcff" for value in values for letter in value):
            problems.report("invalid UTF-8", where, f"{shown(values)} has bytes that are not UTF-8")
            continue
        yield Row(where, dict(zip(names, values, strict=True)))


def _explained(error: csv.Error, line: int) -> str:
    if "new-line" in str(error):
        return "a carriage return that ends no line and stands in no quotes"
    return f"{error}, up to line {line}; inside quotes, write a quote twice"


class _CsvLines:
    """The lines of a file with their ends, as the csv module wants them, counted.

    Bytes that are not UTF-8 become lone surrogates, so that the row they are in can be named.
    """

    def __init__(self, path: Path) -> None:
        self.number = 0
        self.ended = False
        self._lines = self._read(path)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.ended = True
            raise StopIteration
        self.number += 1
        return line

    @staticmethod
    def _read(path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                if number == 0 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise ValueError(f"{path} is UTF-16; save it as UTF-8")
                text = line.decode("utf-8", errors="surrogateescape")
                yield text.removeprefix("\ufeff") if number == 0 else text


def _header(path: str | Path, lines: _CsvLines, image: Sequence[str]) -> tuple[list[str], str]:
    """The names of the columns, in lower case, and what separates them."""
    text = next(lines, "")
    for separator in _SEPARATORS:
        try:
            values = next(csv.reader([text], delimiter=separator, strict=True), [])
        except csv.Error:
            continue
        names = [value.strip().lower() for value in values]
        if not set(names).isdisjoint(image) and "caption" in names:
            for name in (*image, "caption", "split"):
                if names.count(name) > 1:
                    raise ValueError(f"{path}:1: two columns are named {name!r}")
            return names, separator
    raise ValueError(
        f"{path}:1: the first line must name the columns {image[0]!r} and 'caption', "
        f"not {shown(text)}"
    )
