"""Captions of a dataset folder, and the JSON lines format that captions and questions share.

`captions.jsonl` has a JSON object per line, one per image:

    {"id": "391895", "split": "train", "captions": ["A man ..."],
     "file": "COCO_val2014_000000391895.jpg", "width": 640, "height": 360}

`file`, `width` and `height` are omitted if unknown.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ngsan.atomic_io import replace_file
from ngsan.data.ids import canonical_id
from ngsan.data.problems import is_length, is_unicode, shown
from ngsan.data.text_files import numbered_lines

CAPTIONS = "captions.jsonl"
"""The file in a dataset folder."""

VOCABULARY = "vocabulary.json"
"""The vocabulary beside it."""

SPLITS = ("train", "val", "test")


class _Record(Protocol):
    @property
    def id(self) -> str: ...


Kind = TypeVar("Kind", bound=_Record)


@dataclass(frozen=True, slots=True)
class ImageCaptions:
    """An image or video and its reference captions."""

    id: str
    """In the form of `canonical_id`."""

    split: str
    """One of `SPLITS`."""

    captions: tuple[str, ...]
    """At least one; none is empty."""

    file: str | None = None
    """The image's file name, if known."""

    size: tuple[int, int] | None = None
    """Width and height in pixels, if known."""

    def __post_init__(self) -> None:
        if self.id != canonical_id(self.id):
            raise ValueError(f"id: {self.id!r} must be written {canonical_id(self.id)!r}")
        if self.split not in SPLITS:
            raise ValueError(f"split: {self.split!r} is not one of {', '.join(SPLITS)}")
        if not isinstance(self.captions, tuple) or not self.captions:
            raise ValueError(f"captions: there must be at least one, not {self.captions!r}")
        for caption in self.captions:
            if not isinstance(caption, str) or not caption.strip():
                raise ValueError(f"captions: {caption!r} is not a sentence")
        if self.file is not None and (not isinstance(self.file, str) or not self.file):
            raise ValueError(f"file: {self.file!r} is not a file name")
        if self.size is not None and not all(map(is_length, self.size)):
            raise ValueError(f"width, height: {self.size} must be integers above 0")
        for text in (self.id, self.file or "", *self.captions):
            if not is_unicode(text):
                raise ValueError(f"{text!r} has a lone surrogate")


def write_captions(
    folder: str | Path, records: Iterable[ImageCaptions], *, overwrite: bool = False
) -> dict[str, tuple[int, int]]:
    """Writes the captions of a dataset folder; a failure leaves the old file.

    Args:
        folder: The dataset folder; created if needed.
        records: The images, each once; written as they arrive.
        overwrite: Whether to replace existing captions. Their vocabulary is removed.

    Returns:
        Numbers of images and captions of every split that has any.
    """
    counts = dict.fromkeys(SPLITS, (0, 0))

    def lines() -> Iterator[tuple[str, str]]:
        for record in records:
            images, captions = counts[record.split]
            counts[record.split] = images + 1, captions + len(record.captions)
            yield record.id, _to_json(record)

    write_records(
        Path(folder) / CAPTIONS, lines(), "image", stale=(VOCABULARY,), overwrite=overwrite
    )
    return {split: count for split, count in counts.items() if count[0]}


def read_captions(folder: str | Path) -> Iterator[ImageCaptions]:
    """Reads captions image by image, in the order of the file; see `read_records`."""
    return read_records(folder, CAPTIONS, _from_json, "image")


def _to_json(record: ImageCaptions) -> str:
    entry: dict[str, Any] = {"id": record.id, "split": record.split, "captions": record.captions}
    if record.file is not None:
        entry["file"] = record.file
    if record.size is not None:
        entry["width"], entry["height"] = record.size
    return json.dumps(entry, ensure_ascii=False)


def _from_json(text: str) -> ImageCaptions:
    entry = parse_object(text, ("id", "split", "captions"))
    if not isinstance(entry["captions"], list):
        raise ValueError(f"captions must be a list, not {shown(entry['captions'])}")
    size: Any = entry.get("width"), entry.get("height")
    return ImageCaptions(
        id=canonical_id(entry["id"]),
        split=entry["split"],
        captions=tuple(entry["captions"]),
        file=entry.get("file"),
        size=None if size == (None, None) else size,
    )


def write_records(
    path: Path,
    lines: Iterable[tuple[str, str]],
    what: str,
    *,
    stale: Sequence[str] = (),
    overwrite: bool = False,
) -> None:
    """Writes a JSON lines file as records arrive; a failure leaves the old file.

    Args:
        path: The file; its folder is created if needed.
        lines: The id of each record, and its line.
        what: The name of a record for error messages, such as "image".
        stale: Files beside it that were made from the old content; they are removed.
        overwrite: Whether to replace an existing file.
    """
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists already; allow overwriting, or choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    with replace_file(path) as partial:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            for name, line in lines:
                if name in seen:
                    raise ValueError(f"{what} {name} occurs twice")
                seen.add(name)
                file.write(line + "\n")
        if not seen:
            raise ValueError(f"there is no {what} to write")
        for name in stale:
            path.with_name(name).unlink(missing_ok=True)


def read_records(
    folder: str | Path, name: str, parse: Callable[[str], Kind], what: str
) -> Iterator[Kind]:
    """Reads the records of a JSON lines file one at a time.

    Args:
        folder: The dataset folder, or the file itself.
        name: The file's name in the folder.
        parse: Makes a record of a line; raises a `ValueError` for a bad line.
        what: The name of a record for error messages.

    Raises:
        ValueError: The file is missing, or a line is wrong; names file and line.
    """
    path = Path(folder)
    if path.is_dir() or path.suffix != ".jsonl":
        path = path / name
    if not path.is_file():
        raise ValueError(f"{path} does not exist; import {Path(name).stem} first")
    return _read(path, parse, what)


def _read(path: Path, parse: Callable[[str], Kind], what: str) -> Iterator[Kind]:
    lines: dict[str, int] = {}
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        try:
            record = parse(text)
        except ValueError as error:
            raise ValueError(f"{path}:{line.number}: {error}") from error
        before = lines.setdefault(record.id, line.number)
        if before != line.number:
            raise ValueError(
                f"{path}:{line.number}: {what} {record.id} is already in line {before}"
            )
        yield record


def parse_object(text: str, keys: Sequence[str]) -> dict[str, Any]:
    """The JSON object in a line."""
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
