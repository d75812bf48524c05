"""Captions of a dataset: the record of an image, its file, and the checks that all importers share.

A dataset folder has one `captions.jsonl` with a JSON object a line, an image each:

    {"id": "391895", "split": "train", "captions": ["A man ..."],
     "file": "COCO_val2014_000000391895.jpg", "width": 640, "height": 360}

`file`, `width` and `height` are left out when they are not known.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngsan.data.ids import canonical_id
from ngsan.data.lines import is_unicode, shown
from ngsan.data.problems import Problems
from ngsan.data.records import parse_object, read_records, write_records

CAPTIONS = "captions.jsonl"
"""Name of the file in a dataset folder."""

VOCABULARY = "vocabulary.json"
"""The vocabulary's name there."""

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class ImageCaptions:
    """An image (or a video) and what people say about it."""

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
        """Checks every value; raises a `ValueError` that names it."""
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
                raise ValueError(f"{text!r} has half a surrogate pair and cannot be written")


def write_captions(
    folder: str | Path, records: Iterable[ImageCaptions], *, overwrite: bool = False
) -> dict[str, tuple[int, int]]:
    """Writes the captions of a dataset folder, all of them or nothing.

    The records are written as they come into `captions.jsonl.partial`, which takes its final name
    when everything is on the disk.

    Args:
        folder: The dataset folder; it is made if need be.
        records: The images, each once.
        overwrite: Whether captions that are already there are replaced; their vocabulary goes
            with them.

    Returns:
        Images and captions of every split that has any.

    Raises:
        ValueError: There are captions already, an image comes twice, or no image comes at all.
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
    """Reads the captions of a dataset folder one image at a time, in the order of the file.

    Args:
        folder: The dataset folder, or the JSON lines themselves.

    Raises:
        ValueError: There are none, or a line is wrong; names file and line.
    """
    return read_records(folder, CAPTIONS, _from_json, "image")


def _to_json(record: ImageCaptions) -> str:
    entry = {"id": record.id, "split": record.split, "captions": record.captions}
    if record.file is not None:
        entry["file"] = record.file
    text = json.dumps(entry, ensure_ascii=False)
    if record.size is not None:
        text = f'{text[:-1]}, "width": {record.size[0]}, "height": {record.size[1]}}}'
    return text


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


def caption_text(
    value: object, problems: Problems, where: str, kind: str = "caption"
) -> str | None:
    """A caption with its white space squeezed to single spaces, or None if it is no caption.

    Nothing else is changed; what is wrong with the caption is reported, in which it is called by
    its `kind`, such as a question.
    """
    if not isinstance(value, str):
        problems.report("wrong type", where, f"a {kind} must be a string, not {shown(value)}")
        return None
    text = " ".join(value.split())
    if not text:
        problems.report(f"empty {kind}", where, "there is nothing in it")
        return None
    if not is_unicode(text):
        problems.report("invalid Unicode", where, f"{shown(text)} has half a surrogate pair")
        return None
    return text


def caption_texts(values: object, problems: Problems, where: str) -> tuple[str, ...]:
    """The captions of a list; what is wrong with it, or with one of them, is reported."""
    if not isinstance(values, list):
        problems.report("wrong type", where, f"captions must be a list, not {shown(values)}")
        return ()
    texts = (
        caption_text(value, problems, f"{where}, caption {number}")
        for number, value in enumerate(values, start=1)
    )
    captions = tuple(text for text in texts if text is not None)
    if not captions:
        problems.report("image without captions", where, "none is left to use")
    return captions


def entry_fields(
    entry: object, keys: tuple[str, ...], problems: Problems, where: str
) -> dict[str, object] | None:
    """The entry itself if it is an object that has the keys; otherwise None, and a report."""
    if not isinstance(entry, dict):
        problems.report("wrong type", where, f"expected an object, not {shown(entry)}")
        return None
    missing = [key for key in keys if key not in entry]
    if missing:
        problems.report("missing key", where, f"there is no {' and no '.join(map(repr, missing))}")
        return None
    return entry


def image_id(value: object, problems: Problems, where: str) -> str | None:
    """The canonical form of an id, or None and a report."""
    if isinstance(value, str | int):
        try:
            identity = canonical_id(value)
        except ValueError as error:
            problems.report("wrong id", where, str(error))
            return None
        if is_unicode(identity):
            return identity
    problems.report("wrong id", where, f"an id is a string or an integer, not {shown(value)}")
    return None


def file_name(value: object, problems: Problems, where: str) -> str | None:
    """The name of a file, or None and a report."""
    if isinstance(value, str) and value.strip() and is_unicode(value):
        return value.strip()
    problems.report("wrong file name", where, f"expected the name of a file, not {shown(value)}")
    return None


def is_length(value: object) -> bool:
    """Whether a value can be a width or a height in pixels."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
