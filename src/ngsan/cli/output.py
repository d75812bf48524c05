"""What commands print and write: messages, progress, and records as text, JSON, JSON lines or CSV.

rich is imported only by what draws with it.
"""

import csv
import io
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ngsan.atomic_io import is_stream, make_folder, replace_output
from ngsan.cli.parser import FORMATS, complain, is_quiet

if TYPE_CHECKING:
    from rich.console import Console

Record = Mapping[str, Any]

_UNSEEN = ("Cc", "Zl", "Zp")
_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


class RecordWriter:
    """Writes records, each as it comes, to a file or to standard output.

    A file takes its name when `close` is called, and holds the records until then, also after
    Ctrl-C. A JSON file is a list of records.
    """

    def __init__(
        self,
        output: str | None,
        format: str | None = None,  # noqa: A002 (the option's name)
        *,
        text: Callable[[Record], str],
        fields: Sequence[str],
        rows: Callable[[Record], Iterable[Record]] = lambda record: [record],
        quiet: bool = False,
    ) -> None:
        """Opens the output, whose folder must exist.

        Args:
            output: The file, or None or - for standard output.
            format: One of `FORMATS`; None for what the file's ending says, else txt.
            text: Writes a record as lines of text.
            fields: The columns of CSV.
            rows: The rows of CSV of a record.
            quiet: Whether not to print where the file is.
        """
        self.path = None if output is None or _is_stdout(output) else output
        self.format = format or format_of(output)
        self.count = 0
        self._text, self._fields, self._rows, self._quiet = text, fields, rows, quiet
        self._stack = ExitStack()
        if self.path is not None:
            partial = self._stack.enter_context(replace_output(self.path))
            self._file: IO[bytes] | None = self._stack.enter_context(partial.open("wb"))
        else:  # standard output may be closed
            self._file = None if sys.stdout is None else _Stdout()  # type: ignore[assignment]

    def add(self, record: Record) -> None:
        """Writes a record."""
        first, self.count = not self.count, self.count + 1
        match self.format:
            case "txt":
                self._write(self._text(record))
            case "json":
                dumped = json.dumps(record, ensure_ascii=False, indent=1)
                self._write(("[\n " if first else ",\n ") + dumped.replace("\n", "\n "))
            case "jsonl":
                self._write(json.dumps(record, ensure_ascii=False) + "\n")
            case "csv":
                table = io.StringIO()
                writer = csv.DictWriter(table, self._fields, extrasaction="ignore")
                if first:
                    writer.writeheader()
                writer.writerows(self._rows(record))
                self._write(table.getvalue())

    def close(self) -> None:
        """Ends the output; gives the file its name."""
        if self.format == "json":
            self._write("\n]\n" if self.count else "[]\n")
        self._stack.close()
        if self.path is not None and not self._quiet:
            note(f"wrote {self.path}")

    def discard(self) -> None:
        """Leaves the file as it was."""
        with suppress(_Discarded), self._stack:
            raise _Discarded

    def _write(self, text: str) -> None:
        if self._file is not None:
            # A name that is not text goes out as the bytes that it is; JSON has its own escape.
            errors = "backslashreplace" if self.format.startswith("json") else "surrogateescape"
            self._file.write(text.encode("utf-8", errors))
            if self.path is None:
                self._file.flush()


class _Discarded(Exception):  # noqa: N818 (it is not an error)
    pass


class _Stdout:
    """Standard output as a file of bytes, also where a test has put one of text in its place."""

    def write(self, content: bytes) -> None:
        buffer = getattr(sys.stdout, "buffer", None)
        if buffer is None:
            sys.stdout.write(content.decode("utf-8", "surrogateescape"))
        else:
            sys.stdout.flush()
            buffer.write(content)

    def flush(self) -> None:
        sys.stdout.flush()


def format_of(output: str | None) -> str:
    """The format that a file's ending stands for; txt if it stands for none."""
    ending = Path(output or "").suffix.lower().removeprefix(".")
    return ending if ending in FORMATS else "txt"


def check_outputs(
    outputs: Mapping[str, str | None], inputs: Iterable[str | Path | None] = ()
) -> None:
    """Makes the folders of output files, and rejects bad paths before any work is done.

    Args:
        outputs: The files by option; None and - are skipped.
        inputs: Files that must not be overwritten.

    Raises:
        ValueError: A path is a folder, lies in a folder that cannot be written, is an input, or is
            given twice.
    """
    # Not Path.is_file, which fails where a name is too long or a folder cannot be read.
    read = {Path(one).resolve() for one in inputs if one and os.path.isfile(one)}  # noqa: PTH113
    written: set[Path] = set()
    for option, name in outputs.items():
        path = Path(name or "-")
        if name is None or name == "-" or (is_stream(name) and not path.is_dir()):
            continue
        if path.is_dir():
            raise ValueError(f"{option}: {name} is a folder; pass a file")
        if path.resolve() in read:
            raise ValueError(f"{option}: {name} is an input, which would be overwritten")
        if path.resolve() in written:
            raise ValueError(f"{option}: {name} is already another output; pass another file")
        folder = path.absolute().parent
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ValueError(f"{option}: {name}: cannot write to {folder}")
        written.add(path.resolve())
        make_folder(path.absolute().parent)


def _is_stdout(path: str) -> bool:
    """Whether a path is -, or leads to standard output, as /dev/stdout does."""
    if path == "-" or sys.stdout is None or not is_stream(path):
        return path == "-"
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # standard output is not a file
        return False


def note(text: str) -> None:
    """Prints a message about the work on standard error, unless --quiet was given."""
    if not is_quiet():
        warn(text)


def warn(text: str) -> None:
    """Prints a line on standard error."""
    if sys.stderr is None:  # closed; print would take standard output instead
        return
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    complain(f"{clear}{line(text)}")


def line(text: str) -> str:
    """The text with control characters escaped, which may be in file names."""
    return "".join(
        repr(sign)[1:-1]
        if unicodedata.category(sign) in _UNSEEN or sign in _BIDIRECTIONAL
        else sign
        for sign in text
    )


def columns(text: str) -> int:
    """The width of a text on a terminal."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return len(text) + wide - sum(unicodedata.combining(sign) > 0 for sign in text)


def open_console(*, results: bool = False) -> "Console":
    """A console on standard output; with --quiet it prints nothing but results.

    Args:
        results: Whether it prints results rather than progress.
    """
    from rich.console import Console

    return Console(quiet=is_quiet() and not results, highlight=False)


def say(console: "Console", text: str, style: str | None = None) -> None:
    """Prints a line as it is: no markup, no wrapping."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar(
    console: "Console", text: str, total: float | None
) -> Iterator[Callable[[float], None]]:
    """Shows the progress of some work.

    Args:
        console: Where to show it.
        text: What is being done.
        total: How much there is to do; None if unknown, which shows a number of images.

    Yields:
        A function that takes how much is done.
    """
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    progress_columns = (
        (TextColumn("{task.completed:,.0f} images"), TimeElapsedColumn())
        if total is None
        else (TaskProgressColumn(), TimeRemainingColumn(elapsed_when_finished=True))
    )
    with Progress(
        TextColumn("{task.description}"), BarColumn(), *progress_columns, console=console
    ) as progress:
        task = progress.add_task(text, total=total)
        yield lambda done: progress.update(task, completed=done)
