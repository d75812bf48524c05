"""`ngsan caption`: captions of photographs, printed as they come or written to a file.

Neither torch nor the packages of the other command lines are imported, which take longer than a
photograph does.
"""

import argparse
import csv
import io
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ngsan.config import DecodingConfig
from ngsan.durable import make_folder, write_bytes
from ngsan.export.loading import SHIPPED, load
from ngsan.light.photos import PHOTO_DECODING, PhotoCaption, PhotoCaptioner
from ngsan.vision.images import find_images

DESCRIPTION = """Writes a caption for each photograph: JPEG, PNG, WebP, GIF, BMP or TIFF. What
cannot be read is reported and the rest goes on; the exit status is then 1."""

_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_SEARCHING = ("beam", "n_best", "length_penalty")
_WIDEST = 40
"""Columns of a terminal that names are given; the captions of longer names stand further right."""


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    options = _parser().parse_args(arguments)
    decoding = _decoding(options)
    paths, empty = _find(options.images)
    targets = {name: getattr(options, name) for name in ("json", "csv", "explain")}
    _check_targets({name: to for name, to in targets.items() if to is not None}, paths)
    captioner = load(options.model, device=options.device, threads=options.threads)
    if not isinstance(captioner, PhotoCaptioner):
        raise ValueError(f"model: {options.model} is a model of regions and not of photographs")
    several = max(decoding.best, decoding.samples) > 1
    output = _Output(paths, several=several, to_json=options.json, to_csv=options.csv)
    captions: dict[Path, PhotoCaption] = {}
    results = captioner.stream(paths, decoding=decoding, batch_size=options.batch_size)
    try:
        for path, result in zip(paths, results, strict=True):
            if result.caption is None:
                output.report(path, str(result.problem).removeprefix(f"{path}: "))
            else:
                output.add(path, result.caption)
                captions[path] = result.caption
    finally:  # also after Ctrl-C
        output.close()
    if options.explain is not None and captions:
        _explain(options, captions, output)
    failed = sum(path not in captions for path in paths)
    if failed:
        _warn(f"{failed:,} of {len(paths):,} files could not be read")
    if failed or empty:
        sys.exit(1)


def _explain(
    options: argparse.Namespace, captions: dict[Path, PhotoCaption], output: "_Output"
) -> None:
    """Writes the page about the captions that were written."""
    from ngsan.explain import write_page  # imports torch

    page = Path(options.explain)
    model = SHIPPED if options.model is None else Path(options.model)
    written = [[best.text, *(other.text for other in best.others)] for best in captions.values()]
    write_page(model, list(captions), page, captions=written)
    output.tell(f"the page is {page}")


def _find(given: Sequence[str]) -> tuple[list[Path], int]:
    """The files that the words of a command line mean, and how many words mean none."""
    paths: list[Path] = []
    empty = []
    for word in given:
        found = list(find_images(_listed() if word == "-" else [word]))
        paths += found
        if not found:
            empty.append("the list on standard input" if word == "-" else word)
    if not paths:
        raise ValueError(f"there are no images in {', '.join(map(_line, empty))}")
    for word in empty:
        _warn(f"{word}: there are no images in it")
    return paths, len(empty)


def _listed() -> list[str]:
    """The paths on standard input: one a line, or with zeros between them as `find -print0` does.

    Bytes are read, as names need not be text of any encoding.
    """
    if sys.stdin is None:
        raise ValueError("-: standard input is closed, and a list of paths was to come from it")
    content = sys.stdin.buffer.read()
    names = content.split(b"\0") if b"\0" in content else content.splitlines()
    return [os.fsdecode(name) for name in names if name]


def _check_targets(targets: dict[str, str], paths: Sequence[Path]) -> None:
    """Finds out before the work that its result could not be written."""
    if len({Path(to).absolute() for to in targets.values()}) < len(targets):
        raise ValueError(f"{' and '.join(f'--{name}' for name in targets)} must be different files")
    if targets.get("explain") == "-":
        raise ValueError("--explain: name a file such as captions.html")
    for name, file in {name: Path(to) for name, to in targets.items() if to != "-"}.items():
        if file.is_dir():
            raise ValueError(f"--{name}: {file} is a folder: name a file")
        if file.is_file() and any(path.is_file() and path.samefile(file) for path in paths):
            raise ValueError(f"--{name}: {file} is one of the images, and would be overwritten")
        make_folder(file.parent)
        if not os.access(file.parent, os.W_OK):
            raise ValueError(f"--{name}: {file.parent} may not be written to")


class _Output:
    """Where captions go: lines on standard output, or JSON and CSV."""

    def __init__(
        self, paths: Sequence[Path], *, several: bool, to_json: str | None, to_csv: str | None
    ) -> None:
        self._several, self._json, self._csv = several, to_json, to_csv
        self._to_files = to_json is not None or to_csv is not None
        self._total, self._records = len(paths), list[dict[str, Any]]()
        # Names may hold bytes that are no text, and go out as they came.
        if isinstance(sys.stdout, io.TextIOWrapper):
            utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
            sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
        self._aligned = sys.stdout is not None and sys.stdout.isatty()
        self._counts = self._to_files and sys.stderr is not None and sys.stderr.isatty()
        widths = (_width(_line(str(path))) for path in paths) if self._aligned else ()
        self._width = max((width for width in widths if width <= _WIDEST), default=0)

    def add(self, path: Path, caption: PhotoCaption) -> None:
        """Takes a caption."""
        record: dict[str, Any] = {"image": str(path), **_numbers(caption)}
        if self._several:
            record["others"] = [_numbers(other) for other in caption.others]
        self._records.append(record)
        if not self._to_files:
            name = _line(str(path))
            for one in (caption, *caption.others):
                if self._aligned:
                    print(f"{name}{' ' * (self._width - _width(name))}  {one}", flush=True)
                    name = ""
                else:
                    print(f"{name}\t{one}", flush=True)
        self._count()

    def report(self, path: Path, problem: str) -> None:
        """Takes an image that could not be read."""
        self._records.append({"image": str(path), "error": problem})
        _warn(f"{path}: {problem}")
        self._count()

    def tell(self, text: str) -> None:
        """Says something to a person, and nothing where a program reads."""
        if "-" not in (self._json, self._csv) and (self._to_files or self._aligned):
            print(_line(text))

    def close(self) -> None:
        """Writes the files, of all that is there."""
        if self._counts:
            print(file=sys.stderr)
        if not self._records:
            return
        if self._json is not None:
            # An escape of Python's for what is no text is JSON's own.
            text = json.dumps(self._records, ensure_ascii=False, indent=1) + "\n"
            _write(self._json, text.encode("utf-8", "backslashreplace"))
        if self._csv is not None:
            _write(self._csv, _table(self._records).encode("utf-8", "surrogateescape"))
        for to in filter(None, (self._json, self._csv)):
            written = sum("caption" in record for record in self._records)
            self.tell(f"{written:,} captions are in {to}")

    def _count(self) -> None:
        if self._counts:
            done = f"\r{len(self._records):,} of {self._total:,} images"
            print(done, end="", file=sys.stderr, flush=True)


def _numbers(caption: PhotoCaption) -> dict[str, Any]:
    return {
        "caption": caption.text,
        "score": round(caption.score, 6),
        "log_probability": round(caption.log_probability, 6),
    }


def _table(records: Sequence[dict[str, Any]]) -> str:
    """CSV of one row a caption, and one for each image that could not be read."""
    text = io.StringIO()
    fields = ["image", "caption", "score", "error"]
    table = csv.DictWriter(text, fields, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for record in records:
        table.writerow(record)
        table.writerows({**record, **other} for other in record.get("others", ()))
    return text.getvalue()


def _write(to: str, content: bytes) -> None:
    if to == "-":
        if sys.stdout is not None:
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
    elif Path(to).exists() and not Path(to).is_file():  # a pipe or a device, not to be replaced
        Path(to).write_bytes(content)
    else:
        write_bytes(to, content)


def _warn(text: str) -> None:
    clear = "\r\x1b[K" if sys.stderr is not None and sys.stderr.isatty() else ""
    print(f"{clear}{_line(text)}", file=sys.stderr, flush=True)


def _line(text: str) -> str:
    """Text without what would break a line or steer a terminal; names of files may hold it."""
    return "".join(
        repr(sign)[1:-1] if unicodedata.category(sign) in ("Cc", "Zl", "Zp") else sign
        for sign in text
    )


def _width(text: str) -> int:
    """Columns that text takes on a terminal."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return len(text) + wide - sum(unicodedata.combining(sign) > 0 for sign in text)


def _decoding(options: argparse.Namespace) -> DecodingConfig:
    """How captions are to be written.

    Raises:
        ValueError: Options do not go together, or a value is out of range.
    """
    sampled = options.sample is not None
    for name in _SEARCHING if sampled else _SAMPLING:
        if getattr(options, name) is not None:
            why = "has no use with --sample" if sampled else "has a use with --sample only"
            raise ValueError(f"--{name.replace('_', '-')} {why}")
    keys: dict[str, Any] = {
        "longest": options.longest,
        "fewest": options.fewest,
        "no_repeat": options.no_repeat,
        "no_bad_ending": not options.bad_ending,
        "forbid": None if options.forbid is None else options.forbid.lower(),
        "prefix": None if options.prefix is None else options.prefix.lower(),
        **{name: getattr(options, name) for name in _SAMPLING},
        "length_penalty": options.length_penalty,
    }
    if sampled:
        keys |= {"method": "sample", "samples": options.sample}
    else:
        best = options.n_best or 1
        beam = options.beam or max(PHOTO_DECODING.beam, best)
        if best > beam:
            raise ValueError(f"--n-best {best} captions cannot come from --beam {beam}: widen it")
        keys |= {"beam": beam, "best": best}
    given = {name: value for name, value in keys.items() if value is not None}
    return replace(PHOTO_DECODING, **given)


def _at_least_one(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


_BEAM, _LONGEST, _ONCE = PHOTO_DECODING.beam, PHOTO_DECODING.longest, PHOTO_DECODING.no_repeat
_OPTIONS: tuple[tuple[str, type | Callable[[str], int], str, str], ...] = (
    ("json", str, "FILE", "write a list of objects to a file, - for standard output"),
    ("csv", str, "FILE", "write image, caption, score and error; - likewise"),
    ("explain", str, "FILE", "write an HTML page that shows where the model looked"),
    ("model", str, "DIR", "the model's folder; without it, the model that ships"),
    ("device", str, "NAME", "where PyTorch runs it, such as cuda; auto for a GPU if there is one"),
    ("threads", _at_least_one, "N", "threads of ONNX Runtime; without it, one a core"),
    ("batch-size", _at_least_one, "N", "images that the model is given at a time"),
    ("beam", _at_least_one, "N", f"captions that are followed ({_BEAM})"),
    ("n-best", _at_least_one, "N", "captions of each image, the best first (1)"),
    ("length-penalty", float, "X", "above 0 for longer captions (0)"),
    ("sample", _at_least_one, "N", "draw so many captions of each image instead"),
    ("temperature", float, "X", "sampling: above 1 more varied (1)"),
    ("top-k", int, "N", "sampling: among so many words; 0 for all (0)"),
    ("top-p", float, "X", "sampling: among the words that hold this share (1)"),
    ("seed", int, "N", "sampling: seed of the random numbers (0)"),
    ("longest", int, "N", f"most words of a caption ({_LONGEST})"),
    ("fewest", int, "N", "fewest words of a caption (0)"),
    ("no-repeat", int, "N", f"so many words in a row occur only once; 0 for no rule ({_ONCE})"),
    ("prefix", str, "TEXT", "words that every caption begins with"),
    ("forbid", str, "WORDS", "words that may not occur, with spaces between them"),
)
"""Name, kind, what stands for the value, and help; defaults are those of the decoding."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ngsan caption", description=DESCRIPTION, allow_abbrev=False
    )
    images = "files, folders, patterns such as 'photos/**/*.jpg', or - for a list of paths"
    parser.add_argument("images", metavar="PATH", nargs="+", help=images)
    for name, kind, value, text in _OPTIONS:
        parser.add_argument(f"--{name}", type=kind, metavar=value, help=text)
    parser.add_argument(
        "--bad-ending",
        action=argparse.BooleanOptionalAction,
        default=False,
        help='whether captions may end with words such as "a" or "of"; by default not',
    )
    return parser
