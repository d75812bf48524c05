"""`ngsan reproduce`: the paper's tables and figures."""

import dataclasses
import re
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from ngsan.commands.command_line import Parser, config_parser, retell, take_config
from ngsan.commands.train_view import TrainView
from ngsan.config import run_class
from ngsan.reproduce.tables import EXAMPLES, TABLES, WEIGHTS, Table

DESCRIPTION = """Reruns tables or figures of the paper: makes the runs that the ledger lacks, then
writes each table as Markdown, CSV and a figure. A run that was killed goes on. Runs that two tables
have in common are made once. The keys are those of the first table's task, with the values of its
recipe; what a row sets of the model, such as its norm, and the seed are the table's own.
docs/reproduction.md tells what each table shows."""

_DATA = re.compile(r"^--data(?==|$)")

_NAMED = {**TABLES, WEIGHTS.name: WEIGHTS, EXAMPLES.name: EXAMPLES}

_FLAGS = ("--report", "--spice")
"""Options that are followed by no value."""

_LOCK = ".lock"
"""The file that tells that runs are being made in a folder."""

_SINGLE = (WEIGHTS.name, EXAMPLES.name)
"""What is made of one run a row, and no table."""


def make_parser(name: str = "layers") -> Parser:
    """The command line, of which a table decides what is learned and by which recipe."""
    table = _NAMED[name]
    recipe = table.recipe()
    parser = config_parser(type(recipe), "reproduce NAME [NAME ...]", DESCRIPTION)
    parser.set_defaults(dict(_flat(dataclasses.asdict(recipe))))
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        choices=list(_NAMED),
        help=f"of {', '.join(_NAMED)}; several are made together, but for video, translation and "
        "vqa, which have data and recipes of their own",
    )
    parser.add_argument(
        "--to",
        type=str,
        default="reproduction",
        help="the folder of the ledger and of all that is made of it",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=3,
        help="make the runs of so many seeds, 0, 1, ...; the table has all seeds that are "
        f"finished, and says how many runs are not; {' and '.join(_SINGLE)} take one",
    )
    labels = ", ".join(repr(row.label) for row in table.rows)
    parser.add_argument(
        "--rows",
        type=str,
        nargs="+",
        default=None,
        help="make the runs of these rows only; the table has all rows that are finished, so "
        f"--report does without; those of {name} are {labels}",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at a time, each a process of its own if above 1"
    )
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
        "--spice",
        action="store_true",
        help="measure SPICE, too, which takes Java and minutes a run (docs/metrics.md)",
    )
    parser.add_argument(
        "--pictures",
        type=str,
        default=None,
        help="a folder of the photographs: a dataset without features gets those of the photo "
        "model that ships; and the page of examples shows them",
    )
    retell(
        parser,
        {
            "data": ("DIR", "the dataset folder: short for --data.folder"),
            "seed": ("SEED", "not looked at: see --seeds"),
        },
    )
    return parser


def _flat(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys as dotted ones."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def reproduce(config: Any, options: Any) -> None:
    """Makes tables and shows them."""
    from ngsan.commands.reproduce_outputs import draw_weights, write_examples, write_table
    from ngsan.metrics.spice import Spice
    from ngsan.reproduce.ledger import Ledger
    from ngsan.reproduce.runs import check_wanted, wanted_runs, with_finished_seeds

    _check(config, options)
    _check_place(config, options)
    tables = [_NAMED[name] for name in options.names]
    for table in tables:  # before all data are read, or the hours that features may take
        check_wanted(table, config, options.rows)
    if options.spice:
        Spice()  # says what it lacks before runs are made
    ledger, console = Ledger(options.to), Console()
    if config.data.folder and options.pictures is not None:
        _describe(config, options, console)
    fitted = _fit(config, tables, options, ledger)
    wanted = {}
    for table in tables:
        seeds = range(1 if table.name in _SINGLE else options.seeds)
        wanted[table.name] = wanted_runs(table, config, seeds, fitted=fitted)
    if not options.report:
        runs = [run for of_table in wanted.values() for run in of_table]
        chosen = [run for run in runs if options.rows is None or run.label in options.rows]
        keep = {run.key for run in wanted.get(WEIGHTS.name, ())}
        ledger = _make(chosen, keep, ledger.folder, console, jobs=options.jobs)
    for name, runs in wanted.items():
        if name == EXAMPLES.name:
            write_examples(runs, ledger, options.pictures, console)
        elif name == WEIGHTS.name:
            draw_weights(runs, ledger)
        else:
            shown = with_finished_seeds(runs, ledger)
            if options.spice and any(run.key in ledger for run in shown):
                ledger = _measure_spice(TABLES[name], shown, options, console)
            write_table(TABLES[name], shown, ledger, options.split, console)


def _fit(config: Any, tables: Sequence[Table], options: Any, ledger: Any) -> Any:
    """The run with the sizes of its data; rows that are neither made nor there need nothing."""
    from ngsan.reproduce.runs import fitted_to_ledger, run_of
    from ngsan.reproduce.tasks import TASKS

    if not config.data.folder:
        return fitted_to_ledger(config, ledger)
    rows = [row for table in tables for row in table.rows]
    if options.report:
        rows = [row for row in rows if any(row.fits(entry.model) for entry in ledger)] or rows
    elif options.rows:
        rows = [row for row in rows if row.label in options.rows]
    return TASKS[config.task].fit(config, [run_of(row, config, 0).model for row in rows])


def _check(config: Any, options: Any) -> None:
    """Raises a `ValueError` for options that do not fit, before any run is made."""
    if not config.data.folder and (not options.report or EXAMPLES.name in options.names):
        raise ValueError("data.folder: say which dataset: --data DIR")
    if config.data.folder and not Path(config.data.folder).is_dir():
        raise ValueError(f"data.folder: there is no folder {config.data.folder}")
    if options.seeds < 1:
        raise ValueError(f"seeds: {options.seeds} must be at least 1")
    if options.rows and len(options.names) > 1:
        raise ValueError(f"rows: of which table of {', '.join(options.names)}? Give one name")
    if options.rows and options.names[0] in _SINGLE:
        raise ValueError(f"rows: {options.names[0]} needs all of its runs; leave --rows out")
    if options.rows and options.report:
        raise ValueError(
            "rows: --report makes no runs and shows all finished rows; leave --rows out"
        )
    if options.spice and config.task != "captioning":
        raise ValueError(f"spice: it is of captions, and {options.names[0]} has none")
    if options.spice and not config.data.folder:
        raise ValueError("spice: the captions of people are needed: give --data DIR")
    measured = {"val", "test", config.data.validation}
    if options.split and options.split not in measured:  # not after hours of runs
        known = " and ".join(sorted(measured))
        raise ValueError(f"split: {options.split!r} is not measured; runs are on {known}")


def _check_place(config: Any, options: Any) -> None:
    """Raises a `ValueError` if tables would begin to be made among data, or in place of a file."""
    from ngsan.reproduce.ledger import LEDGER
    from ngsan.train.folder import holds_dataset

    to = Path(options.to)
    if to.exists() and not to.is_dir():
        raise ValueError(f"to: {to} is no folder")
    if (to / LEDGER).exists():
        return  # somebody wanted it so
    for folder, what in ((config.data.folder, "data"), (options.pictures, "pictures")):
        if folder and to.resolve() == Path(folder).resolve():
            raise ValueError(f"to: {to} is where the {what} are: give --to a folder of its own")
    if holds_dataset(to):
        raise ValueError(f"to: {to} holds a dataset: give --to a folder of its own")


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


def _make(
    runs: Sequence[Any], keep: Collection[str], folder: Path, console: Console, *, jobs: int
) -> Any:
    """Makes the runs that the ledger of a folder lacks; the ledger, as it is then."""
    from ngsan.reproduce.making import make_runs

    with _writing(folder) as ledger, TrainView(console) as view:

        def on_run(run: Any, done: int, of: int) -> None:
            text = f"{done} of {of}: {run.label}, seed {run.config.seed}, is in the ledger"
            view.write({"event": "note", "text": text})

        def listen(entry: Any) -> None:
            # Where the model is does not matter: it will be removed.
            view.write({**entry, "model": None} if entry["event"] == "end" else entry)

        make_runs(runs, ledger, jobs=jobs, keep=keep, listen=listen, on_run=on_run)
    return ledger


def _measure_spice(table: Table, runs: Sequence[Any], options: Any, console: Console) -> Any:
    """Measures SPICE of the finished runs of a table; the ledger, as it is then."""
    from ngsan.commands.reproduce_outputs import measure_spice

    with _writing(options.to) as ledger:
        measure_spice(table, runs, ledger, options.split, console)
    return ledger


@contextmanager
def _writing(folder: str | Path) -> Iterator[Any]:
    """The ledger of a folder, to be written to; tells in a line that the command was stopped."""
    from ngsan.data.lock import folder_lock
    from ngsan.reproduce.ledger import Ledger
    from ngsan.train.run import InterruptedRunError

    try:
        # A ledger has one writer at a time. It is read anew: another may have written until now.
        with folder_lock(Path(folder) / _LOCK, "ngsan reproduce in"):
            yield Ledger(folder)
    except (InterruptedRunError, KeyboardInterrupt) as error:
        # Ctrl-C comes as the latter where runs are processes of their own, or between two runs.
        number = error.number if isinstance(error, InterruptedRunError) else signal.SIGINT
        name = signal.Signals(number).name
        told = f"ngsan reproduce: stopped by {name}; the same command goes on"
        print(told, file=sys.stderr)
        sys.exit(128 + number)


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    parser = make_parser(_name_among(arguments))
    # `--data DIR`, as for other commands, stands for the section's one key that must be given.
    words = [_DATA.sub("--data.folder", word) for word in arguments]
    options = parser.parse_args(words)
    tables = [_NAMED[name] for name in options.names]
    if len({table.recipe for table in tables}) > 1:
        raise ValueError(
            f"{', '.join(options.names)} are not all about the same, and have data and recipes of "
            "their own: one command for each"
        )
    reproduce(take_config(parser, options, run_class(tables[0].task)), options)


def _name_among(arguments: list[str]) -> str:
    """The table of a command line, without which the rest of it cannot be understood."""
    for before, word in pairwise(["", *arguments]):
        value = before.startswith("--") and "=" not in before and before not in _FLAGS
        if word in _NAMED and not value:
            return word
    return next(iter(_NAMED))
