"""Where the captions of `ngsan caption` go: lines for people, and files for programs."""

import csv
import io
import json
import os
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ngsan.durable import is_stream, write_output
from ngsan.light.photos import PhotoCaption

_UNSEEN = ("Cc", "Zl", "Zp")
_TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Signs that make text run the other way."""

_WIDEST = 40
"""Columns of a terminal that names are given; the captions of longer names stand further right."""


class CaptionOutput:
    """Where captions go: lines on standard output, or JSON and CSV."""

    def __init__(
        self, paths: Sequence[Path], *, several: bool, to_json: str | None, to_csv: str | None
    ) -> None:
        """Takes the images, whether each may have several captions, and the files to write."""
        self._several, self._json, self._csv = several, _target(to_json), _target(to_csv)
        self._to_files = to_json is not None or to_csv is not None
        self._total, self._records = len(paths), list[dict[str, Any]]()
        # Names may hold bytes that are no text, and go out as they came.
        if isinstance(sys.stdout, io.TextIOWrapper):
            utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
            sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
        self._aligned = sys.stdout is not None and sys.stdout.isatty()
        self._counts = self._to_files and sys.stderr is not None and sys.stderr.isatty()
        widths = (_width(line(str(path))) for path in paths) if self._aligned else ()
        self._width = max((width for width in widths if width <= _WIDEST), default=0)

    def add(self, path: Path, caption: PhotoCaption) -> None:
        """Takes a caption."""
        record: dict[str, Any] = {"image": str(path), **_numbers(caption)}
        if self._several:
            record["others"] = [_numbers(other) for other in caption.others]
        self._records.append(record)
        if not self._to_files:
            name = line(str(path))
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
        warn(f"{path}: {problem}")
        self._count()

    def tell(self, text: str) -> None:
        """Says something to a person, and nothing where a program reads."""
        if "-" not in (self._json, self._csv) and (self._to_files or self._aligned):
            print(line(text))

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

    def count_explained(self, done: int) -> None:
        """Shows a person how far the page is."""
        if sys.stderr is not None and sys.stderr.isatty():
            whole = sum("caption" in record for record in self._records)
            end = "\n" if done == whole else ""
            print(f"\r{done:,} of {whole:,} explained", end=end, file=sys.stderr, flush=True)

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
    table = csv.DictWriter(text, fields, extrasaction="ignore")
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
    else:
        write_output(to, content)


def _target(to: str | None) -> str | None:
    """The same, with - for whatever is standard output, such as /dev/stdout."""
    if to in (None, "-") or sys.stdout is None or not is_stream(to):
        return to
    try:
        own = os.path.samestat(Path(to).stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # it is no file
        return to
    return "-" if own else to


def warn(text: str) -> None:
    """Says something on standard error, in one line."""
    if sys.stderr is None:  # closed; print would take standard output instead
        return
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}{line(text)}", file=sys.stderr, flush=True)


def line(text: str) -> str:
    """Text without what would break a line or steer a terminal; names of files may hold it."""
    return "".join(
        repr(sign)[1:-1] if unicodedata.category(sign) in _UNSEEN or sign in _TURNING else sign
        for sign in text
    )


def _width(text: str) -> int:
    """Columns that text takes on a terminal."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return len(text) + wide - sum(unicodedata.combining(sign) > 0 for sign in text)
