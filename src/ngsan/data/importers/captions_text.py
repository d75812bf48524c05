"""Caption files in plain text: tables (CSV or JSON lines), and the token files of Flickr.

A row of a table has an image, by id or file name, and a caption; an image may have many rows. The
column `split` is optional, further columns are ignored:

    image,caption,split
    dog.jpg,A dog runs.,train

    {"image": "dog.jpg", "captions": ["A dog runs.", "A brown dog."], "split": "train"}

A token file of Flickr8k or Flickr30k has a caption per line, after image file and number:

    1000268201_693b08cb0e.jpg#0	A child in a pink dress is climbing up a set of stairs .

Note: the published Flickr8k.token.txt has captions of "2258277193_586949ec62.jpg.1", which is not
    an image, and of images in none of the published lists. Both are skipped and counted.
"""

import csv
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ngsan.data.captions import ImageCaptions
from ngsan.data.problems import Problems, caption_text, caption_texts, entry_fields, shown
from ngsan.data.splits import canonical_split, id_and_file, random_split, read_split_lists
from ngsan.data.text_files import numbered_lines

_SEPARATORS = ",;\t"
_FLICKR_LINE = re.compile(
    r"(?P<name>[^\t]*)#(?P<number>[0-9]{1,9})[ ]*\t(?P<caption>.*)", re.DOTALL
)
_FLICKR_COPY = re.compile(r".*\.jpg\.[0-9]+")


@dataclass(slots=True)
class _Image:
    where: str
    file: str | None
    split: str | None = None
    captions: list[str] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)


def table_captions(
    path: str | Path, *, val: float = 0.1, test: float = 0.1, seed: int = 0, problems: Problems
) -> Iterator[ImageCaptions]:
    """Reads a table, whose captions are all held in memory.

    Args:
        path: JSON lines, which begin with `{`, or CSV with commas, semicolons or tabs; in UTF-8,
            with or without a byte order mark.
        val: Share of a random split for validation, used if no row has a split.
        test: Share of a random split for test.
        seed: Seed of the random split.
        problems: Where bad rows are reported.

    Yields:
        The images in the order of their first rows.
    """
    path = Path(path)
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(BOM_UTF8).lstrip()
    if start.startswith(b"["):
        raise ValueError(f"{path}: a JSON list; write one object per line instead (JSON lines)")
    images: dict[str, _Image] = {}
    for row in (json_rows if start.startswith(b"{") else csv_rows)(path, problems):
        _add_row(images, row, problems)
    if not images:
        raise ValueError(f"{path}: no image has a caption")
    drawn: dict[str, str] = {}
    if all(image.split is None for image in images.values()):
        drawn = random_split(images, val=val, test=test, seed=seed)
    for identity, image in images.items():
        split = image.split or drawn.get(identity)
        if split is None:
            message = f"image {identity} has no split, but others have"
            problems.report("missing split", image.where, message)
        elif not image.captions:
            message = f"image {identity} has no usable caption"
            problems.report("image without captions", image.where, message)
        else:
            yield ImageCaptions(identity, split, tuple(image.captions), image.file)


def _add_row(images: dict[str, _Image], row: "Row", problems: Problems) -> None:
    fields = entry_fields(row.fields, ("image",), problems, row.where)
    if fields is None:
        return
    if ("caption" in fields) == ("captions" in fields):
        message = "a line has either 'caption' or 'captions'"
        problems.report("missing key", row.where, message)
        return
    if "caption" in fields:
        text = caption_text(fields["caption"], problems, row.where)
        captions: tuple[str, ...] = () if text is None else (text,)
    else:
        captions = caption_texts(fields["captions"], problems, row.where)
    named = id_and_file(fields["image"], problems, row.where)
    if named is None:
        return
    identity, file = named
    where = f"{row.where} (image {identity})"
    split, own = None, fields.get("split")
    if own is not None and own != "":
        try:
            split = canonical_split(own)
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
    image.captions.extend(captions)


class Row(NamedTuple):
    """A row of a table."""

    where: str
    """File and line."""

    fields: dict[str, object]
    """Its values by column name."""


def json_rows(path: str | Path, problems: Problems) -> Iterator[Row]:
    """Reads JSON lines in UTF-8, one object per line; empty lines are skipped.

    Raises:
        ValueError: The last line is cut off.
    """
    for line, text in numbered_lines(path, problems):
        if not text.strip():
            continue
        where = f"{path}:{line.number}"
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError) as error:
            if not line.ended:
                byte = line.offset + len(text.encode("utf-8"))
                message = f"{where}: the file ends too early, at byte {byte}: {error}"
                raise ValueError(message) from error
            problems.report("broken JSON", where, str(error))
            continue
        fields = entry_fields(entry, (), problems, where)
        if fields is not None:
            yield Row(where, fields)


def csv_rows(
    path: str | Path,
    problems: Problems,
    *,
    image: Sequence[str] = ("image",),
    caption: Sequence[str] = ("caption",),
) -> Iterator[Row]:
    """Reads CSV, whose columns are separated by commas, semicolons or tabs.

    Args:
        path: The file, in UTF-8. Its first line names the columns, in any case.
        problems: Where bad rows are reported.
        image: Allowed names for the column of the image.
        caption: Allowed names for the column of the caption.

    Yields:
        Rows that are not empty, with column names in lower case.
    """
    lines = _CsvLines(Path(path))
    names, separator = _header(path, lines, image, caption)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        where = f"{path}:{lines.number + 1}"
        try:
            values = next(reader, None)
        except csv.Error as error:
            if lines.ended:
                raise ValueError(f"{where}: a quote that opens here is never closed") from error
            message = f"{error}, up to line {lines.number}; inside quotes, write a quote twice"
            if "new-line" in str(error):
                message = "a carriage return outside quotes, and not at the end of a line"
            problems.report("broken row", where, message)
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
        row: dict[str, object] = dict(zip(names, values, strict=True))
        row["split"] = str(row.get("split", "")).strip()
        yield Row(where, row)


class _CsvLines:
    """Lines with their ends, as the csv module needs them, counted.

    Invalid UTF-8 becomes lone surrogates, so that its row can be reported.
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
                if number == 0 and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                    raise ValueError(f"{path} is UTF-16; save it as UTF-8")
                text = line.decode("utf-8", errors="surrogateescape")
                yield text.removeprefix("\ufeff") if number == 0 else text


def _header(
    path: str | Path, lines: _CsvLines, image: Sequence[str], caption: Sequence[str]
) -> tuple[list[str], str]:
    """The column names, in lower case, and the separator."""
    text = next(lines, "")
    for separator in _SEPARATORS:
        try:
            values = next(csv.reader([text], delimiter=separator, strict=True), [])
        except csv.Error:
            continue
        names = [value.strip().lower() for value in values]
        if not set(names).isdisjoint(image) and not set(names).isdisjoint(caption):
            for name in (*image, *caption, "split"):
                if names.count(name) > 1:
                    raise ValueError(f"{path}:1: two columns are named {name!r}")
            return names, separator
    raise ValueError(
        f"{path}:1: the first line must name the columns {image[0]!r} and {caption[0]!r}, "
        f"not {shown(text)}"
    )


def flickr_captions(
    path: str | Path,
    *,
    train_list: str | Path | None = None,
    val_list: str | Path | None = None,
    test_list: str | Path | None = None,
    val: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    problems: Problems,
) -> Iterator[ImageCaptions]:
    """Reads a token file, whose captions are all held in memory.

    Args:
        path: The token file, such as Flickr8k.token.txt or results_20130124.token.
        train_list: Flickr_8k.trainImages.txt or another list with an image file per line.
        val_list: Flickr_8k.devImages.txt, or None.
        test_list: Flickr_8k.testImages.txt, or None. Without any list the split is random.
        val: Share of a random split for validation.
        test: Share of a random split for test.
        seed: Seed of the random split.
        problems: Where bad lines are reported, images in no list, and listed images without
            captions.

    Yields:
        The images in the order of the file.
    """
    listed = read_split_lists(train=train_list, val=val_list, test=test_list)
    images = _read_tokens(path, problems)
    if listed:
        splits = {identity: split for identity, (split, _) in listed.items()}
    else:
        splits = random_split(images, val=val, test=test, seed=seed)
    for identity, image in images.items():
        if identity not in splits:
            problems.leave_out("in no list", image.where, f"{image.file} is in none of the lists")
        elif image.captions:
            yield ImageCaptions(identity, splits[identity], tuple(image.captions), image.file)
        else:
            message = f"{image.file} has no usable caption"
            problems.report("image without captions", image.where, message)
    for identity, (_, where) in listed.items():
        if identity not in images:
            problems.report("image without captions", where, f"{identity} does not occur in {path}")


def _read_tokens(path: str | Path, problems: Problems) -> dict[str, _Image]:
    images: dict[str, _Image] = {}
    wrong_names: set[str] = set()
    for line, text in numbered_lines(path, problems):
        if not text.strip():
            continue
        where = f"{path}:{line.number}"
        match = _FLICKR_LINE.fullmatch(text)
        if not match or not match["name"].strip():
            message = f"expected 'file.jpg#0', a tab and the caption, not {shown(text)}"
            problems.report("broken line", where, message)
            continue
        named = id_and_file(match["name"], problems, where)
        if named is None:
            continue
        identity, file = named
        if file is None:
            if identity not in wrong_names:
                wrong_names.add(identity)
                known = _FLICKR_COPY.fullmatch(identity)
                report = problems.leave_out if known else problems.report
                report("not an image", where, f"{identity!r} is not the name of an image file")
            continue
        image = images.setdefault(identity, _Image(where, file))
        where = f"{where} (image {identity})"
        if int(match["number"]) in image.numbers:
            message = f"the image has a caption number {match['number']} already"
            problems.report("duplicate caption", where, message)
            continue
        image.numbers.add(int(match["number"]))
        caption = caption_text(match["caption"], problems, where)
        if caption is not None:
            image.captions.append(caption)
    if not images:
        raise ValueError(f"{path}: no captions; not a token file of Flickr")
    return images
