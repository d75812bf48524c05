"""Captions to be scored and the references to score them by, as they stand in people's files.

Nothing about a caption is changed on the way: an empty caption stays, and so does white space.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from ngsan.data.captions import entry_fields, read_captions
from ngsan.data.ids import canonical_id
from ngsan.data.importers.json_stream import stream_items
from ngsan.data.importers.table_rows import csv_rows, json_rows
from ngsan.data.lines import is_unicode, shown
from ngsan.data.problems import Problems
from ngsan.data.splits import canonical_split, id_and_file
from ngsan.durable import write_output

__all__ = ["read_image_ids", "read_references", "read_results", "write_results"]

ID_NAMES = ("image_id", "image", "file_name", "filename", "id")
"""What the key or column of the image may be called; the first that is there counts."""

_LINES = (".jsonl", ".ndjson")
_FIRST = 1 << 16

_Entry = tuple[str, dict[str, object]]
_Items = Iterator[tuple[str, int, Any]]


def read_results(path: str | Path) -> dict[str, str]:
    """Reads one caption for each of some images.

    Args:
        path: A JSON list of {"image_id": ..., "caption": ...}, as the COCO tools want it; JSON
            lines of such objects; or CSV with such columns. Other names of the image are those of
            `ID_NAMES`.

    Returns:
        The caption by image id, in the order of the file.

    Raises:
        ValueError: An image comes twice, or something is wrong with an entry or with the file;
            names the place.
    """
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder; expected a file of captions")
    captions: dict[str, str] = {}
    places: dict[str, str] = {}
    for where, fields in _entries(Path(path)):
        identity = _identity(fields, where)
        if "caption" not in fields:
            raise ValueError(f"{where} (image {identity}): missing key: there is no 'caption'")
        if identity in places:
            raise ValueError(
                f"{where}: image {identity} has a caption already, at {places[identity]}; "
                "give each image one"
            )
        places[identity] = where
        captions[identity] = _text(fields["caption"], where, identity)
    if not captions:
        raise ValueError(f"{path}: there is no caption in it")
    return captions


def read_references(path: str | Path, *, split: str | None = None) -> dict[str, list[str]]:
    """Reads the references of images.

    Args:
        path: COCO's annotation format; JSON lines or CSV with a caption, or a list of "captions",
            a row, and any number of rows an image; a JSON list of such objects; or a dataset
            folder.
        split: Leave out all images but those of this split, of a dataset folder or of a table
            with a column "split".

    Returns:
        At least one reference by image id; images in the order of COCO's list of images, or else
        in the order in which they come first.

    Raises:
        ValueError: Something is wrong with the file; names the place.
    """
    split = None if split is None else canonical_split(split)
    path = Path(path)
    if path.is_dir():
        records = [record for record in read_captions(path) if split in (None, record.split)]
        references = {record.id: list(record.captions) for record in records}
    elif _is_document(path):
        if split is not None:
            raise ValueError(f"{path} knows no split {split!r}; choose images with a list of ids")
        references = _coco_references(path)
    else:
        references = _table_references(path, split)
    if not references:
        which = "" if split is None else f" of split {split}"
        raise ValueError(f"{path}: there is no image{which} with references in it")
    return references


def read_image_ids(path: str | Path) -> list[str]:
    """The ids of the "images" of a COCO file, with annotations or without, in its order.

    Raises:
        ValueError: There are none, or one of them is wrong.
    """
    ids = [
        _identity(_object(item, where), where, ("id",))
        for key, number, item in _items(Path(path))
        if key == "images" and (where := f"{path}: images entry {number}")
    ]
    if not ids:
        raise ValueError(f"{path}: there are no 'images' in it")
    return ids


def write_results(path: str | Path, captions: Mapping[str, str]) -> None:
    """Writes captions as the COCO tools and the test server want them, all of them or nothing.

    Args:
        path: The file. Ids that are whole numbers are written as numbers.
        captions: The caption by image id.
    """
    entries = []
    seen: set[str] = set()
    for name, caption in captions.items():
        identity = canonical_id(name)
        if identity in seen:
            raise ValueError(f"image {identity} comes twice")
        seen.add(identity)
        number = identity.isascii() and identity.isdigit()
        where = f"image {identity}"
        entries.append(
            {
                "image_id": int(identity) if number else identity,
                "caption": _text(caption, where, identity),
            }
        )
    write_output(path, json.dumps(entries) + "\n")


def _coco_references(path: Path) -> dict[str, list[str]]:
    """The captions of an annotation file by image, in the order of its images."""
    listed: dict[str, list[str]] = {}
    captions: dict[str, list[str]] = {}
    keys = set()
    name = str(path)  # once, as there are many places to name
    for key, number, item in _items(path):
        keys.add(key)
        if key == "images":
            where = f"{name}: images entry {number}"
            fields = _object(item, where)
            if "sentences" in fields:
                raise ValueError(
                    f"{path} is of Karpathy's format; bring it into a dataset folder with "
                    f"'ngsan data captions karpathy', and give the folder"
                )
            listed[_identity(fields, where, ("id",))] = []
        elif key == "annotations":
            where = f"{name}: annotations entry {number}"
            fields = _object(item, where, "image_id", "caption")
            identity = _identity(fields, where, ("image_id",))
            captions.setdefault(identity, []).append(_text(fields["caption"], where, identity))
    if "annotations" not in keys:
        raise ValueError(f"{path}: there are no 'annotations' in it: not a caption file of COCO")
    unknown = captions.keys() - listed.keys()
    if "images" in keys and unknown:
        some = ", ".join(sorted(unknown)[:3])
        raise ValueError(f"{path}: {len(unknown)} images have captions but are not listed: {some}")
    return {identity: captions[identity] for identity in listed or captions if identity in captions}


def _table_references(path: Path, split: str | None) -> dict[str, list[str]]:
    """The captions of a table by image, in the order in which the images come first."""
    references: dict[str, list[str]] = {}
    files: dict[str, str] = {}
    for where, fields in _entries(path):
        identity, file = _identity_and_file(fields, where)
        if file is not None and files.setdefault(identity, file) != file:
            raise ValueError(
                f"{where}: {file} and {files[identity]} would be the same image, {identity}: name "
                "them apart"
            )
        if split is not None:
            if not fields.get("split"):
                raise ValueError(f"{where} (image {identity}): it has no split; wanted {split!r}")
            try:
                own = canonical_split(fields["split"])
            except ValueError as error:
                raise ValueError(f"{where} (image {identity}): {error}") from error
            if own != split:
                continue
        if ("caption" in fields) == ("captions" in fields):
            raise ValueError(
                f"{where} (image {identity}): missing key: a row has either 'caption' or 'captions'"
            )
        texts = fields["captions"] if "captions" in fields else [fields["caption"]]
        if not isinstance(texts, list) or not texts:
            raise ValueError(
                f"{where} (image {identity}): wrong type: captions must be a list with at least "
                f"one, not {shown(texts)}"
            )
        captions = [_text(text, where, identity) for text in texts]
        references.setdefault(identity, []).extend(captions)
    return references


def _entries(path: Path) -> Iterator[_Entry]:
    """The rows of a table or the objects of a JSON list, and where they stand."""
    kind = _kind(path)
    if kind == "lines":
        yield from json_rows(path, Problems())
    elif kind == "csv":
        yield from csv_rows(path, Problems(), image=ID_NAMES)
    elif kind == "list":
        for _, number, item in _items(path):
            where = f"{path}: entry {number}"
            yield where, _object(item, where)
    else:
        raise ValueError(
            f"{path} is a JSON object; expected a list of objects with 'image_id' and 'caption', "
            "as in COCO's result format, or one such object a line"
        )


def _is_document(path: Path) -> bool:
    return _kind(path) == "document"


def _kind(path: Path) -> str:
    """Whether a file is a JSON "list", a "document" as COCO's, JSON "lines" or "csv"."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file that can be read twice: write it to one first")
    with path.open("rb") as file:
        line = file.readline(_FIRST).removeprefix(b"\xef\xbb\xbf")
        while line.isspace():
            line = file.readline(_FIRST)
    if not line:
        raise ValueError(f"{path} is empty")
    if path.suffix.lower() in _LINES:
        return "lines"
    start = line.lstrip()[:1]
    if start == b"[":
        return "list"
    if start != b"{":
        return "csv"
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return "document"  # one of several lines, or of a single long one
    return "lines" if {"images", "annotations"}.isdisjoint(first) else "document"


def _items(path: Path) -> _Items:
    """The items of the arrays of a JSON file as `stream_items` gives them, but quicker.

    The plain parser takes less than half the time, and all the memory; what it cannot read is
    left to the other, whose errors tell the place.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        yield from stream_items(path)
        return
    arrays = document if isinstance(document, dict) else {"": document}
    for key, items in arrays.items():
        if isinstance(items, list):
            for number, item in enumerate(items, start=1):
                yield key, number, item


def _object(item: object, where: str, *keys: str) -> dict[str, object]:
    """The entry itself, if it is an object that has the keys."""
    if not isinstance(item, dict) or not item.keys() >= set(keys):
        entry_fields(item, keys, Problems(), where)  # raises
    return cast("dict[str, object]", item)


def _identity(fields: Mapping[str, object], where: str, names: tuple[str, ...] = ID_NAMES) -> str:
    """The image of an entry."""
    return _identity_and_file(fields, where, names)[0]


def _identity_and_file(
    fields: Mapping[str, object], where: str, names: tuple[str, ...] = ID_NAMES
) -> tuple[str, str | None]:
    """The image of an entry, and its file if it is named by one."""
    for name in names:
        if name in fields:
            break
    else:
        raise ValueError(f"{where}: missing key: there is no {' or '.join(map(repr, names))}")
    value = fields[name]
    if type(value) is int:
        return str(value), None  # its canonical form, and much quicker
    # What cannot be an id is raised, so there always is one.
    return cast("tuple[str, str | None]", id_and_file(value, Problems(), where))


def _text(value: object, where: str, identity: str) -> str:
    """A caption, unchanged."""
    if not isinstance(value, str):
        raise ValueError(
            f"{where} (image {identity}): wrong type: a caption must be a string, "
            f"not {shown(value)}"
        )
    if not value.isascii() and not is_unicode(value):
        raise ValueError(
            f"{where} (image {identity}): invalid Unicode: {shown(value)} has half a surrogate pair"
        )
    return value
