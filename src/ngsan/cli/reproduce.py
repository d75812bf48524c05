"""`ngsan reproduce`: reruns the paper's tables and figures, and shows them."""

import argparse
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
from ngsan.cli.keys import keys_of_recipe, run_values, with_keys
from ngsan.cli.output import note, open_console, warn
from ngsan.cli.parser import Command, Parser
from ngsan.cli.train import add_run_options, short_keys
from ngsan.cli.train_view import TrainView
from ngsan.data.captions import read_captions
from ngsan.data.pictures import PictureStore
from ngsan.data.questions import read_questions
from ngsan.data.shards import STORE
from ngsan.metrics.spice import Spice
from ngsan.reproduce.ledger import LEDGER, Ledger
from ngsan.reproduce.tables import EXAMPLES, TABLES, TABLES_OF_PAPER, WEIGHTS, Row, Table

if TYPE_CHECKING:
    from ngsan.reproduce.report import Report
    from ngsan.reproduce.runs import Wanted

_NAMED = {**TABLES, WEIGHTS.name: WEIGHTS, EXAMPLES.name: EXAMPLES}

PAPER = "paper"
"""The name of all tables and figures of image captions together."""

SMALL_DATA = "data"
"""The folder of the small preset's dataset, beside the ledger."""

_LOCK = ".lock"
"""The file that marks a folder in which runs are being made."""

SMALL_OF = "reproduce"
"""The recipe that has a small preset."""

_SINGLE = (WEIGHTS.name, EXAMPLES.name)
"""Figures that are made of one run per row, without a table."""

_LABEL = 12
"""Minimum width of a label."""

_BORDER = 3
"""Width that a column takes beside its content."""


def _add_options(parser: Parser) -> None:
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        choices=[PAPER, *_NAMED],
        help=f"{PAPER}: all that is made of image captions, the most important first; or "
        f"{', '.join(_NAMED)}; several are made together, except those of video, translation and "
        "vqa, which have data and recipes of their own",
    )
    parser.option(
        "output",
        metavar="DIR",
        default="reproduction",
        help="folder of the ledger and of all that is made from it",
    )
    parser.option(
        "images",
        help="folder of the photographs: features of a dataset without any are extracted from "
        "them, and the page of examples shows them",
    )
    add_run_options(parser, "data", "device", "threads")
    parser.option(
        "preset",
        choices=["small"],
        help="fewer images and a narrower model, for a CPU; for tables of image captions",
    )
    parser.option(
        "seeds",
        type=int,
        metavar="N",
        default=3,
        help="make runs of the seeds 0 to N - 1; a table shows all finished seeds; "
        f"{' and '.join(_SINGLE)} use one seed",
    )
    parser.option(
        "rows",
        metavar="LABEL",
        nargs="+",
        help="make the runs of these rows only; a table shows all finished rows",
    )
    parser.option(
        "jobs", type=int, metavar="N", default=1, help="parallel runs, each a process if above 1"
    )
    parser.option(
        "report-only",
        action="store_true",
        help="make no runs, only the table of finished ones; needs no --data if all runs of the "
        "ledger used the same",
    )
    parser.option("split", help="show this split, val or test, instead of the table's own")
    parser.option("spice")
    parser.option("spice-jars")


def _run(options: argparse.Namespace) -> None:
    options.spice = options.spice or bool(options.spice_jars)
    if PAPER in options.names and len(options.names) > 1:
        raise ValueError(f"{PAPER} makes all tables of image captions; remove the other names")
    names = list(TABLES_OF_PAPER) if PAPER in options.names else options.names
    tables = [_NAMED[name] for name in names]
    if len({table.recipe for table in tables}) > 1:
        raise ValueError(
            f"{', '.join(options.names)} have different data and recipes; run one command for each"
        )
    kind, values = run_values(_recipe(tables[0], options.preset), options.config)
    keys = {**short_keys(options, kind, "data", "device", "threads"), **options.keys}
    if "seed" in keys:
        raise ValueError("--seed does not apply to tables; use --seeds N")
    config: Any = with_keys(kind, values, keys, "ngsan reproduce")
    options.split = options.split or ""
    _check(config, options)
    _check_output(config, options)
    from ngsan.reproduce.runs import check_wanted, wanted_runs, with_finished_seeds

    for table in tables:  # before all data are read, or the hours that features may take
        check_wanted(table, config, options.rows)
    if options.spice:
        Spice(jars=options.spice_jars)  # reports what it lacks before runs are made
    ledger = Ledger(options.output)
    if config.data.folder and options.preset:
        config = _small(config, options)
    if config.data.folder and options.images is not None:
        _extract(config, options)
    fitted = _fit(config, tables, options, ledger)
    if PAPER in options.names:
        from ngsan.cli.reproduce_paper import make_paper

        make_paper(config, fitted, options)
        return
    wanted = {}
    for table in tables:
        seeds = range(1 if table.name in _SINGLE else options.seeds)
        wanted[table.name] = wanted_runs(table, config, seeds, fitted=fitted)
    if not options.report_only:
        runs = [run for of_table in wanted.values() for run in of_table]
        chosen = [run for run in runs if options.rows is None or run.label in options.rows]
        keep = {run.key for run in wanted.get(WEIGHTS.name, ())}
        ledger = make_missing(chosen, keep, ledger.folder, jobs=options.jobs)
    for name, runs in wanted.items():
        if name == EXAMPLES.name:
            write_examples(runs, ledger, options.images)
        elif name == WEIGHTS.name:
            draw_weights(runs, ledger)
        else:
            shown = with_finished_seeds(runs, ledger)
            if options.spice and any(run.key in ledger for run in shown):
                with _writing(options.output) as ledger:
                    spice = Spice(jars=options.spice_jars)
                    _measure_spice(TABLES[name], shown, ledger, options.split, spice)
            write_table(TABLES[name], shown, ledger, options.split)


def _recipe(table: Table, preset: str | None) -> str:
    if preset is None:
        return table.recipe
    if table.recipe != SMALL_OF:
        raise ValueError(f"--preset {preset}: {table.name} has no preset; remove --preset")
    return f"{table.recipe}-{preset}"


def _small(config: Any, options: argparse.Namespace) -> Any:
    """The run on the small preset's dataset, which is made beside the ledger."""
    from ngsan.data.store import FeatureStore
    from ngsan.reproduce.subset import make_subset

    source, to = config.data.folder, Path(options.output) / SMALL_DATA
    if (Path(source) / STORE).exists():
        make_subset(source, to, is_available=FeatureStore(source).__contains__)
    elif options.images is not None:
        make_subset(source, to, is_available=PictureStore(options.images).__contains__)
    else:
        make_subset(source, to)  # which has no features, as an error will say
    return dataclasses.replace(config, data=dataclasses.replace(config.data, folder=str(to)))


def _fit(config: Any, tables: Sequence[Table], options: Any, ledger: Any) -> Any:
    """The run with the sizes of its data; rows that are neither made nor there need nothing."""
    from ngsan.reproduce.runs import fitted_to_ledger, run_of
    from ngsan.reproduce.tasks import TASKS

    if not config.data.folder:
        return fitted_to_ledger(config, ledger)
    rows = [row for table in tables for row in table.rows]
    if options.report_only:
        rows = [row for row in rows if _is_made(row, ledger)] or rows
    elif options.rows:
        rows = [row for row in rows if row.label in options.rows]
    return TASKS[config.task].fit(config, [run_of(row, config, 0).model for row in rows])


def _is_made(row: Row, ledger: Ledger) -> bool:
    return any(row.fits(entry.model, entry.settings.get("data", {})) for entry in ledger)


def _check(config: Any, options: argparse.Namespace) -> None:
    """Raises a `ValueError` for options that do not fit, before any run is made."""
    if not config.data.folder and (not options.report_only or EXAMPLES.name in options.names):
        raise ValueError("--data is missing; pass the dataset folder: --data DIR")
    if config.data.folder and not Path(config.data.folder).is_dir():
        raise ValueError(f"data.folder: folder not found: {config.data.folder}")
    if options.seeds < 1:
        raise ValueError(f"--seeds: {options.seeds} must be at least 1")
    if options.rows and len(options.names) > 1:
        raise ValueError(f"--rows needs one table, not {', '.join(options.names)}")
    if options.spice and options.names[0] == PAPER:
        raise ValueError(f"--spice needs tables; run them after {PAPER} with --spice --report-only")
    if options.rows and options.names[0] == PAPER:
        raise ValueError(f"--rows needs one table, not {PAPER}")
    if options.rows and options.names[0] in _SINGLE:
        raise ValueError(f"--rows: {options.names[0]} needs all of its runs; remove --rows")
    if options.rows and options.report_only:
        raise ValueError("--rows: --report-only shows all finished rows; remove --rows")
    if options.spice and config.task != "captioning":
        raise ValueError(f"--spice applies to captions, and {options.names[0]} has none")
    if options.spice and not config.data.folder:
        raise ValueError("--spice needs reference captions; pass --data DIR")
    measured = {"val", "test", config.data.val_split}
    if options.split and options.split not in measured:  # not after hours of runs
        known = " and ".join(sorted(measured))
        raise ValueError(f"--split: {options.split!r} is not measured; runs measure {known}")


def _check_output(config: Any, options: argparse.Namespace) -> None:
    """Raises a `ValueError` if tables would be written among data, or in place of a file."""
    from ngsan.train.run import holds_dataset

    output = Path(options.output)
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output: {output} is not a folder")
    if (output / LEDGER).exists():
        return
    for folder, what in ((config.data.folder, "data"), (options.images, "images")):
        if folder and output.resolve() == Path(folder).resolve():
            raise ValueError(f"--output: {output} holds the {what}; pass a folder of its own")
    if holds_dataset(output):
        raise ValueError(f"--output: {output} holds a dataset; pass a folder of its own")


def _extract(config: Any, options: argparse.Namespace) -> None:
    """Extracts the features of a dataset of images that has none."""
    from ngsan.cli.extract import extract_images

    folder = config.data.folder
    has_images = config.task != "translation" and "video" not in options.names
    if options.report_only or not has_images or (Path(folder) / STORE).exists():
        return
    if config.task == "answering":
        wanted = {question.image for question in read_questions(folder)}
    else:
        wanted = {record.id for record in read_captions(folder)}
    extract_images(options.images, folder, wanted, device=config.runtime.device)


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

    with _writing(folder) as ledger, TrainView(open_console()) as view:

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
def _writing(folder: str | Path) -> Iterator[Ledger]:
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


def _measure_spice(
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


def _keys(words: Sequence[str]) -> Any:
    """The keys of the first table's recipe, with its values."""
    table = next((_NAMED[word] for word in words if word in _NAMED), _NAMED["models"])
    return keys_of_recipe(table.recipe)


REPRODUCE = Command(
    """Rerun tables or figures of the paper: make the runs that the ledger lacks, then write each
    table as Markdown, CSV and a figure. A run that was killed resumes; runs that two tables share
    are made once. The keys are those of the table's recipe; a row's own keys, such as the norm, and
    the seed cannot be set. See docs/reproduction-protocol.md for what each
    table shows.""",
    _add_options,
    _run,
    [
        "reproduce paper --data coco -o reproduction",
        "reproduce paper --preset small --data coco -o small",
        "reproduce norms --data coco --images photos",
        "reproduce layers --data coco --rows 'SAN, L = 1' --seeds 1",
        "reproduce norms --report-only --split val",
    ],
    _keys,
)
