"""Photographs with their captions, as people have them.

Captions are in a table (CSV, JSON lines or a JSON list), in COCO's or Karpathy's JSON, or in a
`.txt` file beside each picture, a caption per line. Without a file of captions, the folder of the
photographs may hold `metadata.csv` or `metadata.jsonl`, as Hugging Face's ImageFolder has them.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath

from ngsan.data.captions import ImageCaptions
from ngsan.data.folder_walk import walk
from ngsan.data.ids import canonical_id
from ngsan.data.importers.captions_json import coco_captions, karpathy_captions
from ngsan.data.importers.captions_text import Row, csv_rows, json_rows
from ngsan.data.problems import Problems, caption_text, shown
from ngsan.data.splits import canonical_split
from ngsan.data.text_files import MAX_LINE, read_items
from ngsan.vision.images import ImageError, find_images, is_file, open_file

IMAGE_NAMES = (
    "image",
    "file_name",
    "filename",
    "file",
    "path",
    "image_path",
    "image_name",
    "image_file",
    "photo",
    "picture",
    "img",
    "image_id",
    "id",
)
"""Columns that may name the picture; the first that a table has counts."""

CAPTION_NAMES = (
    "caption",
    "captions",
    "text",
    "texts",
    "sentence",
    "sentences",
    "description",
    "comment",
)
"""Columns that may have the caption."""

METADATA = ("metadata.csv", "metadata.jsonl")

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")

MAX_BAD = 0.5
"""Share of bad entries from which the file, rather than an entry, must be wrong."""


@dataclass
class CaptionedPhoto:
    """A picture and its captions."""

    path: Path

    where: str
    """The first entry of the picture: file and line."""

    captions: list[str] = field(default_factory=list)

    split: str = ""
    """"train", "val" or "test" if its entries say so."""

    @cached_property
    def id(self) -> str:
        """Changes with the file, so that what was computed of another file is not used."""
        about = self.path.stat()
        text = f"{self.path.absolute()}|{about.st_size}|{about.st_mtime_ns}"
        return "photo-" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:20]


def read_photos(
    photos: str | Path, captions: str | Path | None, problems: Problems
) -> list[CaptionedPhoto]:
    """Reads which pictures have which captions.

    Args:
        photos: The folder of the pictures.
        captions: The file of the captions, or a folder of `.txt` files; None to look for
            `metadata.csv`, `metadata.jsonl` or `.txt` files among the pictures.
        problems: Where bad entries are reported.

    Raises:
        ValueError: There are no captions, or most entries are bad.
    """
    folder = Path(photos)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of photographs")
    files = _Files(folder, problems)
    found: dict[Path, CaptionedPhoto] = {}
    entries = bad = 0
    for entry in _entries(folder, None if captions is None else Path(captions), files, problems):
        entries += 1
        path = files.find(entry.name, entry.folder)
        if path is None:
            bad += 1
            problems.report("missing picture", entry.where, f"{entry.name} is not in {folder}")
            continue
        photo = found.setdefault(path, CaptionedPhoto(path, entry.where))
        photo.split = photo.split or entry.split
        photo.captions += [text for text in entry.captions if text not in photo.captions]
    usable = [photo for photo in found.values() if photo.captions]
    if entries and bad > MAX_BAD * entries:
        first = problems.examples["missing picture"][0]
        raise ValueError(
            f"{bad:,} of {entries:,} pictures are missing ({first}): are the names of the files "
            "relative to the folder of the photographs?"
        )
    if not usable:
        raise ValueError("; ".join(("no picture has a caption", *problems.summary())))
    return usable


@dataclass(frozen=True)
class _Entry:
    """Captions of a picture, by its name."""

    where: str
    name: str
    captions: tuple[str, ...]
    folder: Path
    """What the name is relative to."""
    split: str = ""


class _Files:
    """The pictures of a folder, by whatever name captions give them."""

    def __init__(self, folder: Path, problems: Problems) -> None:
        self.folder, self._problems = folder, problems

    def find(self, name: str, base: Path) -> Path | None:
        """The file of a picture; None if there is none."""
        name = name.replace("\\", "/")
        for path in (base / name, self.folder / name):
            if is_file(path):
                return path
        return self._names.get(PurePosixPath(name).name) or self._ids.get(canonical_id(name))

    @cached_property
    def all(self) -> list[Path]:
        """All pictures of the folder; what cannot be opened is reported."""
        found = []
        for path in find_images([self.folder]):
            try:
                open_file(path).close()
                found.append(path)
            except ImageError as error:
                self._problems.report("unreadable picture or folder", str(path), str(error))
        return found

    @cached_property
    def _names(self) -> dict[str, Path]:
        return self._unique((path.name, path) for path in self.all)

    @cached_property
    def _ids(self) -> dict[str, Path]:
        return self._unique((canonical_id(path.name), path) for path in self.all)

    @staticmethod
    def _unique(pairs: Iterator[tuple[str, Path]] | chain[tuple[str, Path]]) -> dict[str, Path]:
        """The pairs whose name is of one file only."""
        found: dict[str, Path] = {}
        twice = set()
        for name, path in pairs:
            if found.setdefault(name, path) != path:
                twice.add(name)
        return {name: path for name, path in found.items() if name not in twice}


def _entries(
    folder: Path, captions: Path | None, files: _Files, problems: Problems
) -> Iterator[_Entry]:
    if captions is None:
        within = sorted(walk(folder, lambda _: None))  # `files.all` reports what cannot be read
        tables = [path for name in METADATA for path in within if path.name == name]
        if not tables:
            yield from _text_files(files, folder, problems)
        for path in tables:
            yield from _table(path, path.parent, problems)
    elif captions.is_dir():
        yield from _text_files(files, captions, problems)
    elif not captions.is_file():
        raise ValueError(f"{captions}: no such file of captions")
    elif captions.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"{captions}: captions are read from {', '.join(SUFFIXES)} files, or from .txt files "
            "beside the pictures"
        )
    elif captions.suffix.lower() == ".json":
        yield from _json(captions, folder, problems)
    else:
        yield from _table(captions, folder, problems)


def _text_files(files: _Files, folder: Path, problems: Problems) -> Iterator[_Entry]:
    """The `.txt` files of pictures, which lie beside them or at the same place in a folder."""
    found = False
    for path in files.all:
        text = path.with_suffix(".txt")
        if folder != files.folder:
            text = folder / text.relative_to(files.folder)
        if not is_file(text):
            continue
        found = True
        if text.stat().st_size > MAX_LINE:
            problems.report("overlong captions", str(text), f"it has more than {MAX_LINE:,} bytes")
            continue
        try:
            lines = text.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            problems.report("invalid UTF-8", str(text), str(error))
            continue
        except OSError as error:
            problems.report("unreadable captions", str(text), str(error.strerror))
            continue
        texts = tuple(" ".join(line.split()) for line in lines if line.strip())
        if not texts:
            problems.report("empty caption", f"{text}:1", "it has no text")
        yield _Entry(f"{text}:1", str(path.relative_to(files.folder)), texts, files.folder)
    if not found:
        raise ValueError(
            f"{folder} has no captions: pass a file of captions, or put metadata.csv, "
            "metadata.jsonl or .txt files beside the pictures"
        )


def _table(path: Path, base: Path, problems: Problems) -> Iterator[_Entry]:
    if not is_file(path):  # opening a pipe would wait
        raise ValueError(f"{path} is not a regular file: remove it, or pass a file of captions")
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"{"):
        rows = json_rows(path, problems)
    else:
        rows = csv_rows(path, problems, image=IMAGE_NAMES, caption=CAPTION_NAMES)
    for row in rows:
        if entry := _entry(row, base, problems):
            yield entry


def _json(path: Path, base: Path, problems: Problems) -> Iterator[_Entry]:
    """COCO's annotations, Karpathy's dataset, or a list of objects like the lines of a table."""
    with path.open("rb") as file:
        is_list = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if is_list:
        for _, number, item in read_items(path):
            where = f"{path}: entry {number}"
            if not isinstance(item, dict):
                problems.report("wrong type", where, f"expected an object, not {shown(item)}")
            elif entry := _entry(Row(where, item), base, problems):
                yield entry
        return
    records: Iterator[ImageCaptions]
    if any(True for _ in read_items(path, "annotations")):
        records = coco_captions([path], split="train", problems=problems)
    else:
        records = karpathy_captions(path, problems=problems)
    for record in records:
        where = f"{path}: image {record.id}"
        yield _Entry(where, record.file or record.id, record.captions, base, record.split)


def _entry(row: Row, base: Path, problems: Problems) -> _Entry | None:
    """The entry of a row, or None after reporting what is wrong."""
    fields = {str(name).strip().lower(): value for name, value in row.fields.items()}
    image = next((fields[name] for name in IMAGE_NAMES if fields.get(name) not in (None, "")), None)
    given = next((fields[name] for name in CAPTION_NAMES if fields.get(name) is not None), None)
    if not isinstance(image, str | int) or isinstance(image, bool) or given is None:
        missing = "the picture" if given is not None else "the caption"
        known = IMAGE_NAMES if given is not None else CAPTION_NAMES
        problems.report("missing key", row.where, f"{missing} has none of {', '.join(known)}")
        return None
    values = given if isinstance(given, list) else [given]
    texts = tuple(
        text for value in values if (text := caption_text(_raw(value), problems, row.where))
    )
    split = ""
    if fields.get("split"):
        try:
            split = canonical_split(fields["split"])
        except ValueError as error:
            problems.report("unknown split", row.where, str(error))
            return None
    return _Entry(row.where, str(image).strip(), texts, base, split)


def _raw(value: object) -> object:
    """A caption, which Karpathy's lists have as an object."""
    return value.get("raw") if isinstance(value, dict) else value
