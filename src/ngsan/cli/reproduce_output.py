"""What `ngsan reproduce` makes and shows: runs, tables, the figure of weights and the examples."""

import dataclasses
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable

from ngsan.atomic_io import folder_lock, write_text
from ngsan.cli.output import note, open_console, warn
from ngsan.cli.train_view import TrainView
from ngsan.data.pictures import PictureStore
from ngsan.metrics.spice import Spice
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.tables import EXAMPLES, WEIGHTS, Table

if TYPE_CHECKING:
    from ngsan.reproduce.report import Report
    from ngsan.reproduce.runs import Wanted

_LOCK = ".lock"
"""The file that marks a folder in which runs are being made."""

_LABEL = 12
"""Minimum width of a label."""

_BORDER = 3
"""Width that a column takes beside its content."""


def make_missing(
    runs: "Sequence[Wanted]",
    keep: Collection[str],
    folder: Path,
    *,
    jobs: int,
    after: "Callable[[Wanted, Ledger], str]" = lambda run, ledger: "",
) -> Ledger:
    """Makes the runs that the ledger of a folder lacks.

    Args:
        runs: The runs.
        keep: Keys of runs whose folders stay.
        folder: The ledger's folder.
        jobs: Runs at a time.
        after: Called after every run with it and the ledger; returns an addition to the message.

    Returns:
        The ledger with the runs.
    """
    from ngsan.reproduce.making import make_runs

    with writing(folder) as ledger, TrainView(open_console()) as view:

        def on_run(run: "Wanted", done: int, of: int) -> None:
            text = f"{done} of {of}: finished {run.label}, seed {run.config.seed}"
            text += after(run, ledger)
            view.write({"event": "note", "text": text})

        def listen(entry: Any) -> None:
            # The model will be removed, so its folder is not shown.
            view.write({**entry, "model": None} if entry["event"] == "end" else entry)

        make_runs(runs, ledger, jobs=jobs, keep=keep, listen=listen, on_run=on_run)
    return ledger


@contextmanager
def writing(folder: str | Path) -> Iterator[Ledger]:
    """The ledger of a folder, locked for writing; exits with a message if it is interrupted."""
    from ngsan.train.run import InterruptedRunError

    try:
        # A ledger has one writer at a time. It is read again: another may have written until now.
        with folder_lock(Path(folder) / _LOCK, "ngsan reproduce in"):
            yield Ledger(folder)
    except (InterruptedRunError, KeyboardInterrupt) as error:
        # Ctrl-C comes as the latter where runs are processes of their own, or between two runs.
        number = error.number if isinstance(error, InterruptedRunError) else signal.SIGINT
        name = signal.Signals(number).name
        warn(f"ngsan reproduce: stopped by {name}; the same command resumes")
        raise SystemExit(128 + number) from None


def write_table(table: Table, wanted: "Sequence[Wanted]", ledger: Ledger, split: str) -> None:
    """Prints a table, and writes it as Markdown, CSV and a figure beside its ledger.

    Args:
        table: The table.
        wanted: Its runs.
        ledger: The finished runs.
        split: The split to show; empty for the table's own.

    Raises:
        ValueError: None of the runs is finished, or was measured on the split.
    """
    from ngsan.reproduce.figures import draw
    from ngsan.reproduce.runs import describe_others

    report, base = write_text_of(table, wanted, ledger, split)
    if not report.lines:
        others = describe_others(table, wanted, ledger)
        raise ValueError(f"no run of table {table.name} is finished in {ledger.folder}{others}")
    _print_table(report)
    written = f"{base}.md, .csv"
    try:
        draw(report, base.with_suffix(".png"))
        written += " and .png"
    except ValueError as error:  # Matplotlib is an extra
        warn(str(error))
    note(f"wrote {written}")


def write_text_of(
    table: Table, wanted: "Sequence[Wanted]", ledger: Ledger, split: str
) -> "tuple[Report, Path]":
    """Writes a table as Markdown and CSV if a run is finished; see `write_table`.

    Returns:
        The report, and the path of its files without their endings.
    """
    from ngsan.reproduce.report import build_report, to_csv, to_markdown

    report = build_report(dataclasses.replace(table, split=split or table.split), wanted, ledger)
    base = ledger.folder / (f"{table.name}-{split}" if split else table.name)
    if report.lines:
        if split not in ("", "val", report.split):
            raise ValueError(f"--split: no run of table {table.name} was measured on {split!r}")
        write_text(Path(f"{base}.md"), to_markdown(report))
        write_text(Path(f"{base}.csv"), to_csv(report))
    return report, base


def measure_spice(
    table: Table, wanted: "Sequence[Wanted]", ledger: Ledger, split: str, spice: Spice
) -> None:
    """Computes SPICE of the finished runs of a table whose captions are kept.

    Args:
        table: The table.
        wanted: Its runs.
        ledger: The finished runs, locked for writing.
        split: The split to show; empty for the table's own.
        spice: The metric.

    Raises:
        ValueError: Runs were measured on another split.
        ChildProcessError: Its program failed.
    """
    from ngsan.reproduce.making import add_spice
    from ngsan.reproduce.report import shown_split
    from ngsan.reproduce.runs import check_reported

    split = shown_split(dataclasses.replace(table, split=split or table.split), wanted, ledger)
    finished = [ledger[run.key] for run in wanted if run.key in ledger]
    check_reported(finished, split, wanted[0].measured, ledger)
    lost = add_spice(
        wanted,
        ledger,
        split,
        spice,
        on_run=lambda run: note(f"SPICE of {run.label}, seed {run.config.seed}"),
    )
    if lost:
        names = ", ".join(f"{run.label} (seed {run.config.seed})" for run in lost)
        warn(f"table {table.name} has no SPICE: the captions of {names} were not kept")


def _print_table(report: "Report") -> None:
    from ngsan.reproduce import published
    from ngsan.reproduce.report import (
        differences_header,
        differences_note,
        differences_rows,
        header,
        missing_note,
        paper_note,
        power_notes,
        rows,
    )

    console = open_console(results=True)
    table = report.table
    title = f"{table.title} ({table.place}, {report.split})"
    _print_rows(
        console, title, header(report), rows(report), {"M", *report.metrics} - {table.metric}
    )
    notes = []
    if report.differences:
        heads = differences_header(report)
        _print_rows(console, "Differences", heads, differences_rows(report), {"seeds", heads[-1]})
        notes += [differences_note(report), *power_notes(report)]
    for text in (*notes, missing_note(report)):
        if text:
            console.print(text, markup=False)
    if table.published:
        console.print(paper_note(table), markup=False)
        printed = RichTable(
            Column("in the paper", min_width=_LABEL), box=SIMPLE_HEAD, pad_edge=False
        )
        for head in published.columns(table.published):
            printed.add_column(head, justify="right", no_wrap=True)
        for cells in published.lines(table.published):
            printed.add_row(*cells)
        console.print(printed)


def _print_rows(
    console: Console,
    title: str,
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    dispensable: Collection[str],
) -> None:
    """Prints a table, without its dispensable columns if the terminal is narrow."""
    shown = RichTable(title=title)
    max_length = max(len(cells[0]) for cells in lines)
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    needed = sum(widths) - max_length + min(_LABEL, max_length) + _BORDER * len(widths) + 1
    if console.width >= needed:
        dispensable = ()
    kept = [number for number, head in enumerate(heads) if head not in dispensable]
    for number in kept:
        # On narrow terminals, labels take two lines: numbers cannot be cut.
        if number:
            shown.add_column(heads[number], justify="right", no_wrap=True)
        else:
            shown.add_column(heads[number], min_width=min(_LABEL, max_length))
    for cells in lines:
        shown.add_row(*(cells[number] for number in kept))
    console.print(shown)


def draw_weights(wanted: "Sequence[Wanted]", ledger: Ledger) -> None:
    """Draws the geometric bias of the one run of `WEIGHTS`."""
    from ngsan.cli.plot import plot_geometry
    from ngsan.reproduce.runs import RUNS

    _check_finished(WEIGHTS, wanted, ledger)
    model = ledger.folder / RUNS / wanted[0].key
    if not model.is_dir():
        raise ValueError(f"{model}: the run was removed; pass another --output to make it again")
    plot_geometry(str(model), str(ledger.folder / f"{WEIGHTS.name}.png"))


def write_examples(wanted: "Sequence[Wanted]", ledger: Ledger, images: str | None) -> None:
    """Writes the page of captions by the two runs of `EXAMPLES`.

    Args:
        wanted: The runs.
        ledger: The finished runs.
        images: The folder of the photographs, or None for a page without.

    Raises:
        ValueError: A run is not finished, was measured on another test split, or its captions were
            not kept.
    """
    from ngsan.reproduce.figures import choose_examples, examples_page
    from ngsan.reproduce.runs import check_reported
    from ngsan.reproduce.tasks import open_split

    _check_finished(EXAMPLES, wanted, ledger)
    validation = wanted[0].config.data.val_split
    split = "test" if "test" in ledger[wanted[0].key].metrics else validation
    check_reported([ledger[run.key] for run in wanted], split, wanted[0].measured, ledger)
    written = {run.label: ledger.written(run.key, split) for run in wanted}
    bare = [label for label, found in written.items() if not found.texts]
    if bare:
        raise ValueError(
            f"{EXAMPLES.name} needs the captions of {' and '.join(bare)}, of which {ledger.folder} "
            "keeps the scores only; pass another --output to make the runs again"
        )
    references = open_split(wanted[0].config, split).references()
    examples = choose_examples(written)
    path = ledger.folder / f"{EXAMPLES.name}.html"
    page = examples_page(
        examples,
        references,
        None if images is None else PictureStore(images),
        models=list(written),
        compared=len(references),
    )
    write_text(path, page)
    note(f"wrote {len(examples)} images to {path}")


def _check_finished(table: Table, wanted: "Sequence[Wanted]", ledger: Ledger) -> None:
    from ngsan.reproduce.runs import describe_others

    lost = [run for run in wanted if run.key not in ledger]
    if lost:
        raise ValueError(
            f"{table.name} needs runs that are not finished: "
            f"{', '.join(run.label for run in lost)}; without --report-only they are made in "
            f"{ledger.folder}{describe_others(table, lost, ledger)}"
        )
