"""`ngsan reproduce`: the paper's tables and figures."""

import dataclasses
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from ngsan.commands.command_line import Parser, config_parser, take_config
from ngsan.commands.train_view import TrainView
from ngsan.config import run_class
from ngsan.durable import write_text
from ngsan.reproduce.tables import TABLES, Row, Table

DESCRIPTION = """Reruns tables or figures of the paper: makes the runs that the ledger lacks, then
writes each table as Markdown, CSV and a figure. A run that was killed goes on. Runs that two tables
have in common are made once."""

_WEIGHTS = Table(
    "weights",
    "The geometric bias of a one-layer content-independent G-SAN",
    "Appendix",
    (Row("G-SAN, L = 1", {"norm": "none", "geometry": "content-independent", "layers": 1}),),
)

_EXAMPLES = "examples"

_DATA = re.compile(r"^--data(?==|$)")

_WIDE = 120
"""Characters of a terminal that shows all columns."""

_LABEL = 12
"""Characters that a label has at least."""

_NAMES = (*TABLES, _WEIGHTS.name, _EXAMPLES)


def make_parser(name: str = "layers") -> Parser:
    """The command line, of which a table decides what is learned and by which recipe."""
    recipe = _table(name).recipe()
    parser = config_parser(type(recipe), "reproduce NAME [NAME ...]", DESCRIPTION)
    parser.set_defaults(dict(_flat(dataclasses.asdict(recipe))))
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        choices=_NAMES,
        help=f"of {', '.join(_NAMES)}; several are made together if they are of one task",
    )
    # Not --data, which is the section of a run.
    parser.add_argument("--to", type=str, default="reproduction", help="the folder of all tables")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row, seeds 0, 1, ...")
    parser.add_argument("--rows", type=str, nargs="+", default=None, help="only these rows")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--report",
        action="store_true",
        help="make no runs, only the table of those finished; needs no --data where all runs of "
        "the ledger learned from the same",
    )
    parser.add_argument(
        "--split", type=str, default="", help="show this split, val or test, not the table's own"
    )
    parser.add_argument(
        "--pictures",
        type=str,
        default=None,
        help="a folder of the photographs: a dataset without features gets those of the photo "
        "model that ships; and the page of examples shows them",
    )
    return parser


def _flat(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys as dotted ones."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _table(name: str) -> Table:
    return TABLES.get("models-cross-entropy" if name == _EXAMPLES else name, _WEIGHTS)


def reproduce(config: Any, options: Any) -> None:
    """Makes tables and shows them."""
    from ngsan.reproduce.ledger import Ledger
    from ngsan.reproduce.runs import check_wanted, fitted_to_ledger, wanted_runs
    from ngsan.reproduce.tasks import TASKS

    if not config.data.folder and (not options.report or _EXAMPLES in options.names):
        raise ValueError("data.folder: say which dataset: --data DIR")
    if config.data.folder and not Path(config.data.folder).is_dir():
        raise ValueError(f"data.folder: there is no folder {config.data.folder}")
    if Path(options.to).exists() and not Path(options.to).is_dir():
        raise ValueError(f"to: {options.to} is no folder")
    if options.seeds < 1:
        raise ValueError(f"seeds: {options.seeds} must be at least 1")
    if options.rows and len(options.names) > 1:
        raise ValueError(f"rows: of which table of {', '.join(options.names)}? Give one name")
    measured = {"val", "test", config.data.validation}
    if options.split and options.split not in measured:  # not after hours of runs
        known = " and ".join(sorted(measured))
        raise ValueError(f"split: {options.split!r} is not measured; runs are on {known}")
    ledger, console = Ledger(options.to), Console()
    if config.data.folder and options.pictures is not None:
        for name in options.names:  # before the hours that this may take
            check_wanted(_table(name), config, options.rows)
        _describe(config, options, console)
    fitted = None
    if not config.data.folder:
        fitted = fitted_to_ledger(config, ledger)
    elif len(options.names) > 1:
        fitted = TASKS[config.task].fit(config)
    wanted = {}
    for name in options.names:
        rows = ["SAN", "G-SAN"] if name == _EXAMPLES else options.rows
        seeds = range(1 if name in (_EXAMPLES, _WEIGHTS.name) else options.seeds)
        wanted[name] = wanted_runs(_table(name), config, seeds, rows, fitted=fitted)
    if not options.report:
        _make(wanted, ledger, console, jobs=options.jobs)
    for name, runs in wanted.items():
        if name in (_EXAMPLES, _WEIGHTS.name):
            _check_finished(name, runs, ledger)
        if name == _EXAMPLES:
            _write_examples(runs, ledger, options, console)
        elif name == _WEIGHTS.name:
            _draw_weights(runs[0].key, ledger.folder, console)
        else:
            _write_table(_table(name), runs, ledger, console, options.split)


def _describe(config: Any, options: Any, console: Console) -> None:
    """Gives a dataset of images its features, if it has none."""
    from ngsan.commands.extract import describe_pictures
    from ngsan.data.captions import read_captions
    from ngsan.data.questions import read_questions
    from ngsan.data.shards import STORE

    folder = config.data.folder
    of_images = config.task != "translation" and "video" not in options.names
    if options.report or not of_images or (Path(folder) / STORE).exists():
        return
    if config.task == "answering":
        wanted = {question.image for question in read_questions(folder)}
    else:
        wanted = {record.id for record in read_captions(folder)}
    device = config.machine.device
    describe_pictures(options.pictures, folder, wanted, device=device, console=console)


def _make(wanted: Mapping[str, Any], ledger: Any, console: Console, *, jobs: int) -> None:
    from ngsan.reproduce.making import make_runs
    from ngsan.train.run import InterruptedRunError

    keep = {run.key for run in wanted.get(_WEIGHTS.name, ())}
    runs = [run for table in wanted.values() for run in table]
    try:
        with TrainView(console) as view:

            def on_run(run: Any, done: int, of: int) -> None:
                text = f"{done} of {of}: {run.label}, seed {run.config.seed}, is in the ledger"
                view.write({"event": "note", "text": text})

            def listen(entry: Any) -> None:
                # Where the model is does not matter: it will be removed.
                view.write({**entry, "model": None} if entry["event"] == "end" else entry)

            make_runs(runs, ledger, jobs=jobs, keep=keep, listen=listen, on_run=on_run)
    except InterruptedRunError as error:
        name = signal.Signals(error.number).name
        told = f"ngsan reproduce: stopped by {name}; the same command goes on"
        print(told, file=sys.stderr)
        sys.exit(128 + error.number)


def _write_table(table: Table, wanted: Any, ledger: Any, console: Console, split: str) -> None:
    from ngsan.reproduce.figures import draw
    from ngsan.reproduce.report import build_report, header, rows, to_csv, to_markdown

    report = build_report(dataclasses.replace(table, split=split or table.split), wanted, ledger)
    if not report.lines:
        raise ValueError(f"no run of table {table.name} is finished in {ledger.folder}")
    if split not in ("", "val", report.split):
        raise ValueError(f"split: no run of table {table.name} was measured on {split!r}")
    shown = RichTable(title=f"{table.title} ({table.place}, {report.split})")
    heads = header(report)
    dispensable = {"M", *report.metrics} - {table.metric} if console.width < _WIDE else ()
    kept = [number for number, head in enumerate(heads) if head not in dispensable]
    lines = rows(report)
    longest = max(len(cells[0]) for cells in lines)
    for number in kept:
        # Where there is little room, labels take two lines: numbers cannot be cut.
        if number:
            shown.add_column(heads[number], justify="right", no_wrap=True)
        else:
            shown.add_column(heads[number], min_width=min(_LABEL, longest))
    for cells in lines:
        shown.add_row(*(cells[number] for number in kept))
    console.print(shown)
    base = Path(ledger.folder) / (f"{table.name}-{split}" if split else table.name)
    write_text(base.with_suffix(".md"), to_markdown(report))
    write_text(base.with_suffix(".csv"), to_csv(report))
    told = f"{base}.md, .csv"
    try:
        draw(report, base.with_suffix(".png"))
        told += " and .png"
    except ValueError as error:
        console.print(str(error), highlight=False, markup=False)
    console.print(f"the table is in {told}", highlight=False)


def _check_finished(name: str, wanted: Any, ledger: Any) -> None:
    lost = [run.label for run in wanted if run.key not in ledger]
    if lost:
        raise ValueError(
            f"{name}: of its runs {', '.join(lost)} is not finished in {ledger.folder}; without "
            "--report it is made"
        )


def _draw_weights(key: str, folder: Path, console: Console) -> None:
    from ngsan.commands import plot_geometry
    from ngsan.reproduce.runs import RUNS

    model = folder / RUNS / key
    if not model.is_dir():
        raise ValueError(f"{model}: the run was removed; take another --to, to make it again")
    plot_geometry.main([str(model), "--to", str(folder / f"{_WEIGHTS.name}.png")])


def _write_examples(wanted: Any, ledger: Any, options: Any, console: Console) -> None:
    from ngsan.data.dataset import CaptionDataset
    from ngsan.data.pictures import PictureStore
    from ngsan.reproduce.examples import choose_examples, examples_page

    data = wanted[0].config.data
    split = "test" if "test" in ledger[wanted[0].key].metrics else data.validation
    written = {run.label: ledger.written(run.key, split) for run in wanted}
    dataset = CaptionDataset(data.folder, split, longest=data.longest)
    references = {image: dataset.captions(place) for place, image in enumerate(dataset.ids)}
    pictures = None if options.pictures is None else PictureStore(options.pictures)
    examples = choose_examples(written)
    page = examples_page(examples, references, pictures, compared=len(dataset))
    path = Path(ledger.folder) / f"{_EXAMPLES}.html"
    write_text(path, page)
    console.print(f"{len(examples)} images are in {path}", highlight=False)


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    parser = make_parser(_name_among(arguments))
    # `--data DIR`, as for other commands, stands for the section's one key that must be given.
    words = [_DATA.sub("--data.folder", word) for word in arguments]
    options = parser.parse_args(words)
    tasks = {_table(name).task for name in options.names}
    if len(tasks) > 1:
        raise ValueError(
            f"{', '.join(options.names)} are of several tasks, {', '.join(sorted(tasks))}, which "
            "have data and recipes of their own: one command for each"
        )
    reproduce(take_config(parser, options, run_class(tasks.pop())), options)


def _name_among(arguments: list[str]) -> str:
    """The table of a command line, without which the rest of it cannot be understood."""
    for before, word in pairwise(["", *arguments]):
        value = before.startswith("--") and "=" not in before and before != "--report"
        if word in _NAMES and not value:
            return word
    return _NAMES[0]
