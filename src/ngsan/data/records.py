"""Files of records: a JSON object a line, each with an id that no other has."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ngsan.data.lines import numbered_lines, shown
from ngsan.durable import flush_folder


class Record(Protocol):
    """What a line holds."""

    @property
    def id(self) -> str:
        """Told apart from all others of the file."""


Kind = TypeVar("Kind", bound=Record)


def write_records(
    path: Path,
    lines: Iterable[tuple[str, str]],
    what: str,
    *,
    stale: Sequence[str] = (),
    overwrite: bool = False,
) -> None:
    """Writes records as they come, all of them or nothing.

    They go into a file named `.partial`, which takes its final name when everything is on the
    disk.

    Args:
        path: The file; its folder is made if need be.
        lines: The id of each record, and its line.
        what: A record's name for error messages, such as "image".
        stale: Files beside it that were made of what the file held before: they are removed.
        overwrite: Whether a file that is there is replaced.

    Raises:
        ValueError: There is such a file, a record comes twice, or none comes at all.
    """
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists already; allow overwriting, or choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    seen: set[str] = set()
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            for name, line in lines:
                if name in seen:
                    raise ValueError(f"{what} {name} comes twice")
                seen.add(name)
                file.write(line + "\n")
            if not seen:
                raise ValueError(f"there is no {what} to write")
            file.flush()
            os.fsync(file.fileno())
        for name in stale:
            path.with_name(name).unlink(missing_ok=True)
        partial.replace(path)
        flush_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def read_records(
    folder: str | Path, name: str, parse: Callable[[str], Kind], what: str
) -> Iterator[Kind]:
    """Reads records one at a time, in the order of the file.

    Args:
        folder: The dataset folder, or the JSON lines themselves.
        name: The file's name in the folder.
        parse: Makes a record of a line; raises a `ValueError` if that cannot be done.
        what: A record's name for error messages.

    Raises:
        ValueError: There is no such file, or a line is wrong; names file and line.
    """
    path = Path(folder)
    if path.is_dir() or path.suffix != ".jsonl":
        path = path / name
    if not path.is_file():
        raise ValueError(f"{path} does not exist; import {Path(name).stem} first")
    return _read(path, parse, what)


def _read(path: Path, parse: Callable[[str], Kind], what: str) -> Iterator[Kind]:
    lines: dict[str, int] = {}
    for number, _, text, _ in numbered_lines(path):
        if not text.strip():
            continue
        try:
            record = parse(text)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        before = lines.setdefault(record.id, number)
        if before != number:
            raise ValueError(f"{path}:{number}: {what} {record.id} stands in line {before} already")
        yield record


def parse_object(text: str, keys: Sequence[str]) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        ValueError: It is none, or lacks one of the keys.
    """
    try:
        entry = json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    if not isinstance(entry, dict):
        raise ValueError(f"expected a JSON object, not {shown(entry)}")
    missing = [key for key in keys if key not in entry]
    if missing:
        raise ValueError(f"{' and '.join(missing)} missing")
    return entry
