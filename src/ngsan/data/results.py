"""Files of results: captions to score, their references, and files for COCO's test server.

Captions are never changed: an empty caption stays empty, and white space is kept.
"""

import json
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ngsan.atomic_io import write_output
from ngsan.data.captions import read_captions
from ngsan.data.ids import canonical_id
from ngsan.data.importers.captions_text import csv_rows, json_rows
from ngsan.data.problems import Problems, entry_fields, is_unicode, shown
from ngsan.data.splits import canonical_split, id_and_file
from ngsan.data.text_files import open_bytes, read_items

ID_NAMES = ("image_id", "image", "file_name", "filename", "id")
"""Names of the key or column of the image; the first that is present counts."""

_LINES = (".jsonl", ".ndjson")
_FIRST = 1 << 16


def read_results(path: str | Path) -> dict[str, str]:
    """Reads one caption per image.

    Args:
        path: A JSON list of {"image_id": ..., "caption": ...}, as the COCO tools want it; JSON
            lines of such objects; or CSV with such columns. See `ID_NAMES` for other names.

    Returns:
        The caption by image id, in the order of the file.

    Raises:
        ValueError: An image occurs twice, or an entry is wrong; names the place.
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
                "pass one per image"
            )
        places[identity] = where
        captions[identity] = _text(fields["caption"], where, identity)
    if not captions:
        raise ValueError(f"{path}: no captions")
    return captions


def write_results(path: str | Path, captions: Mapping[str, str]) -> None:
    """Writes captions by image id as the COCO tools and the test server want them."""
    entries = []
    seen: set[str] = set()
    for name, caption in captions.items():
        identity = canonical_id(name)
        if identity in seen:
            raise ValueError(f"image {identity} occurs twice")
        seen.add(identity)
        number = identity.isascii() and identity.isdigit()
        text = _text(caption, f"image {identity}", identity)
        entries.append({"image_id": int(identity) if number else identity, "caption": text})
    write_output(path, json.dumps(entries) + "\n")


def read_references(path: str | Path, *, split: str | None = None) -> dict[str, list[str]]:
    """Reads the reference captions of images.

    Args:
        path: COCO's annotation format; JSON lines or CSV with a caption, or a list of "captions",
            per row, and any number of rows per image; a JSON list of such objects; or a dataset
            folder.
        split: Use only the images of this split, in a dataset folder or a table with a column
            "split".

    Returns:
        At least one reference by image id, in COCO's order of images or that of the first rows.

    Raises:
        ValueError: The file is wrong; names the place.
    """
    split = None if split is None else canonical_split(split)
    path = Path(path)
    if path.is_dir():
        records = [record for record in read_captions(path) if split in (None, record.split)]
        references = {record.id: list(record.captions) for record in records}
    elif _kind(path) == "document":
        if split is not None:
            raise ValueError(f"{path} has no split {split!r}; choose images with a list of ids")
        references = _coco_references(path)
    else:
        references = _table_references(path, split)
    if not references:
        which = "" if split is None else f" of split {split}"
        raise ValueError(f"{path}: no image{which} has references")
    return references


def read_image_ids(path: str | Path) -> list[str]:
    """The ids of the "images" of a COCO file, with or without annotations, in its order."""
    document = read_json(Path(path))
    images = document.get("images") if isinstance(document, dict) else None
    if not isinstance(images, list) or not images:
        raise ValueError(f"{path}: there are no 'images' in it")
    return [
        _identity(_object(item, f"{path}: images entry {number}"), str(path), ("id",))
        for number, item in enumerate(images, start=1)
    ]


def _coco_references(path: Path) -> dict[str, list[str]]:
    document = read_json(path)
    listed: dict[str, None] = {}
    captions: dict[str, list[str]] = {}
    for number, item in enumerate(_array(document, "images"), start=1):
        where = f"{path}: images entry {number}"
        fields = _object(item, where)
        if "sentences" in fields:
            raise ValueError(
                f"{path} is in Karpathy's format; import it with 'ngsan data captions karpathy' "
                "and pass the dataset folder"
            )
        listed[_identity(fields, where, ("id",))] = None
    name = str(path)  # once, as there are many places to name
    for number, item in enumerate(_array(document, "annotations"), start=1):
        where = f"{name}: annotations entry {number}"
        fields = _object(item, where, "image_id", "caption")
        identity = _identity(fields, where, ("image_id",))
        captions.setdefault(identity, []).append(_text(fields["caption"], where, identity))
    if not captions:
        raise ValueError(f"{path}: there are no 'annotations' in it: not a caption file of COCO")
    unknown = captions.keys() - listed.keys()
    if listed and unknown:
        some = ", ".join(sorted(unknown)[:3])
        raise ValueError(f"{path}: {len(unknown)} images have captions but are not listed: {some}")
    return {identity: captions[identity] for identity in listed or captions if identity in captions}


def _array(document: Any, key: str) -> list[Any]:
    array = document.get(key) if isinstance(document, dict) else None
    return array if isinstance(array, list) else []


def _table_references(path: Path, split: str | None) -> dict[str, list[str]]:
    references: dict[str, list[str]] = {}
    files: dict[str, str] = {}
    for where, fields in _entries(path):
        identity, file = _identity_and_file(fields, where)
        if file is not None and files.setdefault(identity, file) != file:
            raise ValueError(
                f"{where}: {file} and {files[identity]} would be the same image, {identity}: give "
                "them different names"
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


def _entries(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """The rows of a table or the objects of a JSON list, each with its place."""
    kind = _kind(path)
    if kind == "lines":
        yield from json_rows(path, Problems())
    elif kind == "csv":
        yield from csv_rows(path, Problems(), image=ID_NAMES)
    elif kind == "list":
        for number, item in enumerate(read_json(path), start=1):
            where = f"{path}: entry {number}"
            yield where, _object(item, where)
    else:
        raise ValueError(
            f"{path} is a JSON object; expected a list of objects with 'image_id' and 'caption', "
            "as in COCO's result format, or one such object per line"
        )


def _kind(path: Path) -> str:
    """Whether a file is a JSON "list", a "document" such as COCO's, JSON "lines" or "csv"."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} cannot be read twice: save it to a file first")
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


def read_json(path: Path) -> Any:
    """The content of a JSON file; twice as fast as reading it item by item."""
    with open_bytes(path) as file:
        content = file.read()
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        list(read_items(path))  # raises an error that names the byte
        raise ValueError(f"{path}: broken JSON: {error}") from error


def _object(item: object, where: str, *keys: str) -> dict[str, object]:
    """The entry itself, if it is an object with these keys."""
    if not isinstance(item, dict) or not item.keys() >= set(keys):
        entry_fields(item, keys, Problems(), where)  # raises
    return cast("dict[str, object]", item)


def _identity(fields: Mapping[str, object], where: str, names: tuple[str, ...] = ID_NAMES) -> str:
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
        return str(value), None  # its canonical form, and much faster
    # A wrong id raises an error here, so the result is never None.
    return cast("tuple[str, str | None]", id_and_file(value, Problems(), where))


def _text(value: object, where: str, identity: str) -> str:
    if not isinstance(value, str):
        raise ValueError(
            f"{where} (image {identity}): wrong type: a caption must be a string, "
            f"not {shown(value)}"
        )
    if not value.isascii() and not is_unicode(value):
        raise ValueError(
            f"{where} (image {identity}): invalid Unicode: {shown(value)} has a lone surrogate"
        )
    return value


# COCO's captioning test server

IMAGES = {"val2014": 40_504, "test2014": 40_775}
"""Number of images in each of the server's sets."""

_NAME = re.compile(r"captions_(?P<images>val2014|test2014)_(?P<algorithm>\S+)_results\.json")
_EXPECTED = "captions_{val2014,test2014}_ALGORITHM_results.json"


@dataclass(frozen=True)
class Submission:
    """The findings of `check_submission`."""

    problems: tuple[str, ...]
    """What the server would reject or score wrongly, each with its count and an example."""

    warnings: tuple[str, ...]
    """What the server would ignore."""

    checked: tuple[str, ...]
    """What was checked, a line per file."""


def is_submission(name: str) -> bool:
    """Whether the server accepts a file of this name."""
    return _NAME.fullmatch(name) is not None


def check_submission(path: str | Path, references: str | Path | None = None) -> Submission:
    """Checks a result file, or a zip archive of both, against the rules of the server.

    Args:
        path: The file or the archive.
        references: A COCO file with the required "images": the annotations of val2014, or the
            image information of test2014. Without it only their number is checked. For an
            archive, its name must contain the name of the set.
    """
    path = Path(path)
    wanted = None if references is None else frozenset(read_image_ids(references))
    of = _images_of(references)
    check = _Check(references)
    if path.suffix.lower() == ".zip":
        if wanted is not None and of is None:
            raise ValueError(f"{references}: its name has none of {', '.join(IMAGES)}")
        for name, data in check.members(path):
            check.file(name, data, wanted if _images_of(name) == of else None)
    else:
        with open_bytes(path) as file:
            check.file(path.name, file.read(), wanted)
    return Submission(_lines(check.problems), _lines(check.warnings), tuple(check.checked))


def _images_of(name: str | Path | None) -> str | None:
    """The set in a file's name."""
    text = "" if name is None else Path(name).name
    return next((images for images in IMAGES if images in text), None)


def _lines(problems: Problems) -> tuple[str, ...]:
    return tuple(
        f"{count:,} x {kind}, such as {problems.examples[kind][0]}"
        if count > 1
        else f"{kind}: {problems.examples[kind][0]}"
        for kind, count in problems.counts.items()
    )


class _Check:
    def __init__(self, references: str | Path | None) -> None:
        self.references = references
        self.problems, self.warnings = Problems(skip=True), Problems(skip=True)
        self.checked: list[str] = []

    def members(self, path: Path) -> Iterator[tuple[str, bytes]]:
        """The result files of an archive, which must hold both and nothing else."""
        report, seen = self.problems.report, dict[str, str]()
        try:
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    match = _NAME.fullmatch(name)
                    if match is None:
                        inner = _NAME.fullmatch(PurePosixPath(name).name)
                        kind = "file not at the top" if inner else "unexpected file"
                        report(kind, path.name, f"{name}; expected {_EXPECTED}")
                        continue
                    if match["images"] in seen:
                        message = f"{seen[match['images']]} and {name}"
                        report("two files of one set", path.name, message)
                    seen[match["images"]] = name
                    yield name, archive.read(name)
        except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError) as error:
            report("broken archive", path.name, str(error))
            return
        for images in IMAGES.keys() - seen.keys():
            message = f"there is no captions_{images}_ALGORITHM_results.json in it"
            report("missing file", path.name, message)
        if len({name.replace(images, "") for images, name in seen.items()}) > 1:
            report("algorithm has two names", path.name, " and ".join(seen.values()))

    def file(self, name: str, data: bytes, wanted: Collection[str] | None) -> None:
        """Checks a result file, whose images must be those wanted, if given."""
        report, match = self.problems.report, _NAME.fullmatch(name)
        if match is None:
            report("wrong file name", name, f"expected {_EXPECTED}")
        try:
            entries = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            report("not JSON", name, str(error))
            return
        if not isinstance(entries, list):
            report("not a list", name, f"expected a list, not {shown(entries)}")
            return
        ids = self._entries(entries, name)
        which = "not their number, as the name has no set"
        if wanted is not None:
            which = f"the images of {self.references}"
            for kind, odd in (
                ("missing image", set(wanted) - ids),
                ("unknown image", ids - set(wanted)),
            ):
                for identity in sorted(odd, key=int if all(map(str.isdigit, odd)) else None):
                    report(kind, name, f"{identity}, compared with {self.references}")
        elif match is not None:
            expected = IMAGES[match["images"]]
            which = f"their number, {expected:,}"
            if len(ids) != expected:
                message = f"{len(ids):,} images instead of {expected:,}"
                report("wrong number of images", name, message)
        self.checked.append(f"{name}: {len(entries):,} captions; types, duplicates, {which}")

    def _entries(self, entries: list[object], name: str) -> set[str]:
        """Checks every entry; returns the images that have one."""
        report, first = self.problems.report, dict[int, int]()
        for number, entry in enumerate(entries, start=1):
            where = f"{name}: entry {number}"
            fields = entry_fields(entry, ("image_id", "caption"), self.problems, where)
            if fields is None:
                continue
            identity, caption = fields["image_id"], fields["caption"]
            if not isinstance(caption, str):
                report("wrong type", where, f"a caption must be a string, not {shown(caption)}")
            elif not caption.strip():
                report("empty caption", where, f"image {shown(identity)}")
            elif not is_unicode(caption):
                report("invalid Unicode", where, f"{shown(caption)}: a lone surrogate")
            if more := [shown(key) for key in fields if key not in ("image_id", "caption")]:
                self.warnings.report("further keys", where, ", ".join(more))
            if not isinstance(identity, int) or isinstance(identity, bool):
                report("wrong id", where, f"an image_id must be an integer, not {shown(identity)}")
            elif first.setdefault(identity, number) != number:
                message = f"image {identity} is in entry {first[identity]} already"
                report("duplicate image", where, message)
        return set(map(str, first))
