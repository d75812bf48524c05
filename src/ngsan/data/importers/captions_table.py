"""Captions in a table of one's own: CSV with a header, or JSON lines.

A row has an image, by id or file name, and a caption; an image may have many rows. A column
`split` is optional, further columns are passed over:

    image,caption,split
    dog.jpg,A dog runs.,train

    {"image": "dog.jpg", "captions": ["A dog runs.", "A brown dog."], "split": "train"}
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ngsan.data.captions import (
    ImageCaptions,
    caption_text,
    caption_texts,
    entry_fields,
)
from ngsan.data.importers.table_rows import csv_rows, json_rows
from ngsan.data.problems import Problems
from ngsan.data.splits import canonical_split, id_and_file, random_split


@dataclass(slots=True)
class _Image:
    where: str
    file: str | None
    split: str | None = None
    captions: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Row:
    where: str
    image: object
    split: object
    captions: tuple[str, ...]


def table_captions(
    path: str | Path,
    *,
    val: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    problems: Problems,
) -> Iterator[ImageCaptions]:
    """Reads a table, whose captions are all held in memory.

    Args:
        path: JSON lines, which begin with `{`, or CSV whose columns are separated by commas,
            semicolons or tabs; in UTF-8, with or without a byte order mark.
        val: Share of a random split for validation, when no row tells a split.
        test: Share of a random split for test.
        seed: Of the random split.
        problems: Takes what is wrong with the rows.

    Yields:
        The images in the order in which they first come.

    Raises:
        ValueError: The header lacks a column, a quote is never closed, or the last line is cut off.
    """
    images: dict[str, _Image] = {}
    for row in _rows(Path(path), problems):
        _add(images, row, problems)
    if not images:
        raise ValueError(f"{path}: there is no image with a caption in it")
    dealt: dict[str, str] = {}
    if all(image.split is None for image in images.values()):
        dealt = random_split(images, val=val, test=test, seed=seed)
    for identity, image in images.items():
        split = image.split or dealt.get(identity)
        if split is None:
            message = f"image {identity} has no split, but others have"
            problems.report("missing split", image.where, message)
        elif not image.captions:
            message = f"image {identity} has no caption that can be used"
            problems.report("image without captions", image.where, message)
        else:
            yield ImageCaptions(identity, split, tuple(image.captions), image.file)


def _add(images: dict[str, _Image], row: _Row, problems: Problems) -> None:
    """Takes a row."""
    named = id_and_file(row.image, problems, row.where)
    if named is None:
        return
    identity, file = named
    where = f"{row.where} (image {identity})"
    split = None
    if row.split is not None and row.split != "":
        try:
            split = canonical_split(row.split)
        except ValueError as error:
            problems.report("unknown split", where, str(error))
            return
    image = images.setdefault(identity, _Image(row.where, file))
    if image.split and split and image.split != split:
        message = f"the row says {split}, earlier rows said {image.split}"
        problems.report("conflicting split", where, message)
        return
    if image.file and file and image.file != file:
        message = f"{file} and {image.file} have the same id; give the images distinct names"
        problems.report("conflicting file", where, message)
        return
    image.file = image.file or file
    image.split = image.split or split
    image.captions.extend(row.captions)


def _rows(path: Path, problems: Problems) -> Iterator[_Row]:
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"["):
        raise ValueError(f"{path}: a JSON list; write one object a line instead (JSON lines)")
    if start.startswith(b"{"):
        return _json_rows(path, problems)
    return _csv_rows(path, problems)


def _json_rows(path: Path, problems: Problems) -> Iterator[_Row]:
    for where, entry in json_rows(path, problems):
        fields = entry_fields(entry, ("image",), problems, where)
        if fields is None:
            continue
        if ("caption" in fields) == ("captions" in fields):
            message = "a line has either 'caption' or 'captions'"
            problems.report("missing key", where, message)
            continue
        if "caption" in fields:
            text = caption_text(fields["caption"], problems, where)
            captions: tuple[str, ...] = () if text is None else (text,)
        else:
            captions = caption_texts(fields["captions"], problems, where)
        yield _Row(where, fields["image"], fields.get("split"), captions)


def _csv_rows(path: Path, problems: Problems) -> Iterator[_Row]:
    for where, fields in csv_rows(path, problems):
        text = caption_text(fields["caption"], problems, where)
        split = str(fields["split"]).strip() if "split" in fields else None
        yield _Row(where, fields["image"], split, () if text is None else (text,))
