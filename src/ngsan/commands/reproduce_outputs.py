"""What `ngsan reproduce` makes of finished runs: tables, a figure of weights, and a page."""

import dataclasses
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable

from ngsan.commands.plot_geometry import plot_geometry
from ngsan.data.pictures import PictureStore
from ngsan.durable import write_text
from ngsan.metrics.spice import Spice
from ngsan.reproduce.captioning import open_split
from ngsan.reproduce.examples import choose_examples, examples_page
from ngsan.reproduce.figures import draw
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.nearest import others_told
from ngsan.reproduce.report import Report, build_report, shown_split
from ngsan.reproduce.report_text import (
    header,
    missing_told,
    paper_told,
    rows,
    seeds_told,
    to_csv,
    to_markdown,
)
from ngsan.reproduce.runs import RUNS, Wanted
from ngsan.reproduce.spice import add_spice
from ngsan.reproduce.splits import check_reported
from ngsan.reproduce.tables import EXAMPLES, WEIGHTS, Table

_LABEL = 12
"""Characters that a label has at least."""

_BETWEEN = 3
"""Characters that a column takes beside its own, for a line and blanks."""


def write_table(
    table: Table, wanted: Sequence[Wanted], ledger: Ledger, split: str, console: Console
) -> None:
    """Shows a table, and writes it as Markdown, CSV and a figure beside its ledger.

    Args:
        table: The table.
        wanted: Its runs.
        ledger: Those that are finished.
        split: On which they are shown; empty for the table's own.
        console: Where to show it.

    Raises:
        ValueError: None of them is finished, or was measured on the split.
    """
    report = build_report(dataclasses.replace(table, split=split or table.split), wanted, ledger)
    if not report.lines:
        told = others_told(table, wanted, ledger)
        raise ValueError(f"no run of table {table.name} is finished in {ledger.folder}{told}")
    if split not in ("", "val", report.split):
        raise ValueError(f"split: no run of table {table.name} was measured on {split!r}")
    _show(report, console)
    base = ledger.folder / (f"{table.name}-{split}" if split else table.name)
    write_text(base.with_suffix(".md"), to_markdown(report))
    write_text(base.with_suffix(".csv"), to_csv(report))
    told = f"{base}.md, .csv"
    try:
        draw(report, base.with_suffix(".png"))
        told += " and .png"
    except ValueError as error:  # Matplotlib is an extra
        console.print(str(error), highlight=False, markup=False)
    console.print(f"the table is in {told}", highlight=False)


def measure_spice(
    table: Table, wanted: Sequence[Wanted], ledger: Ledger, split: str, console: Console
) -> None:
    """Gives the finished runs of a table their SPICE, as far as what they wrote is at hand.

    Args:
        table: The table.
        wanted: Its runs.
        ledger: Those that are finished; nobody else may be writing to it.
        split: On which they are shown; empty for the table's own.
        console: Where to tell of it.

    Raises:
        ValueError: What SPICE needs is missing, or the split is not the one that was measured on.
        ChildProcessError: Its program failed.
    """
    spice = Spice()
    split = shown_split(dataclasses.replace(table, split=split or table.split), wanted, ledger)
    finished = [ledger[run.key] for run in wanted if run.key in ledger]
    check_reported(finished, split, wanted[0].measured, ledger)

    def on_run(run: Wanted) -> None:
        console.print(f"SPICE of {run.label}, seed {run.config.seed}", highlight=False)

    lost = add_spice(wanted, ledger, split, spice, on_run=on_run)
    if lost:
        names = ", ".join(f"{run.label} (seed {run.config.seed})" for run in lost)
        console.print(
            f"SPICE is left out of table {table.name}: the captions of {names} are not at hand",
            highlight=False,
        )


def _show(report: Report, console: Console) -> None:
    table, heads, lines = report.table, header(report), rows(report)
    shown = RichTable(title=f"{table.title} ({table.place}, {report.split})")
    longest = max(len(cells[0]) for cells in lines)
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    needed = sum(widths) - longest + min(_LABEL, longest) + _BETWEEN * len(widths) + 1
    dispensable = {"M", *report.metrics} - {table.metric} if console.width < needed else ()
    kept = [number for number, head in enumerate(heads) if head not in dispensable]
    for number in kept:
        # Where there is little room, labels take two lines: numbers cannot be cut.
        if number:
            shown.add_column(heads[number], justify="right", no_wrap=True)
        else:
            shown.add_column(heads[number], min_width=min(_LABEL, longest))
    for cells in lines:
        shown.add_row(*(cells[number] for number in kept))
    console.print(shown)
    for told in (paper_told(report), seeds_told(report), missing_told(report)):
        if told:
            console.print(told, highlight=False, markup=False)


def draw_weights(wanted: Sequence[Wanted], ledger: Ledger) -> None:
    """Draws the geometric bias of the one run of `WEIGHTS`.

    Raises:
        ValueError: It is not finished, or its model is gone.
    """
    _check_finished(WEIGHTS, wanted, ledger)
    model = ledger.folder / RUNS / wanted[0].key
    if not model.is_dir():
        raise ValueError(f"{model}: the run was removed; take another --to, to make it again")
    plot_geometry(str(model), str(ledger.folder / f"{WEIGHTS.name}.png"))


def write_examples(
    wanted: Sequence[Wanted], ledger: Ledger, pictures: str | None, console: Console
) -> None:
    """Writes the page of captions by the two runs of `EXAMPLES`.

    Args:
        wanted: The runs.
        ledger: Those that are finished.
        pictures: The folder of the photographs, or None to do without.
        console: Where to tell of it.

    Raises:
        ValueError: A run is not finished, was measured on another test split, or what it wrote is
            kept without its texts.
    """
    _check_finished(EXAMPLES, wanted, ledger)
    validation = wanted[0].config.data.validation
    split = "test" if "test" in ledger[wanted[0].key].metrics else validation
    check_reported([ledger[run.key] for run in wanted], split, wanted[0].measured, ledger)
    written = {run.label: ledger.written(run.key, split) for run in wanted}
    bare = [label for label, found in written.items() if not found.texts]
    if bare:
        raise ValueError(
            f"{EXAMPLES.name} needs the captions of {' and '.join(bare)}, of which {ledger.folder} "
            "keeps the scores alone; take another --to, to make the runs again"
        )
    references = open_split(wanted[0].config, split).references()
    examples = choose_examples(written)
    photographs = None if pictures is None else PictureStore(pictures)
    path = ledger.folder / f"{EXAMPLES.name}.html"
    page = examples_page(
        examples, references, photographs, models=list(written), compared=len(references)
    )
    write_text(path, page)
    console.print(f"{len(examples)} images are in {path}", highlight=False)


def _check_finished(table: Table, wanted: Sequence[Wanted], ledger: Ledger) -> None:
    lost = [run for run in wanted if run.key not in ledger]
    if lost:
        raise ValueError(
            f"{table.name} needs runs that are not finished: "
            f"{', '.join(run.label for run in lost)}; without --report they are made in "
            f"{ledger.folder}{others_told(table, lost, ledger)}"
        )
