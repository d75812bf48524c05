"""`ngsan reproduce`: reruns the paper's tables and figures, and shows them."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ngsan.cli.keys import keys_of_recipe, run_values, with_keys
from ngsan.cli.parser import Command, Parser
from ngsan.cli.reproduce_output import (
    draw_weights,
    make_missing,
    measure_spice,
    write_examples,
    write_table,
    writing,
)
from ngsan.cli.train import add_run_options, short_keys
from ngsan.data.captions import read_captions
from ngsan.data.pictures import PictureStore
from ngsan.data.questions import read_questions
from ngsan.data.shards import STORE
from ngsan.metrics.spice import Spice
from ngsan.reproduce.ledger import LEDGER, Ledger
from ngsan.reproduce.tables import EXAMPLES, TABLES, TABLES_OF_PAPER, WEIGHTS, Row, Table

_NAMED = {**TABLES, WEIGHTS.name: WEIGHTS, EXAMPLES.name: EXAMPLES}

PAPER = "paper"
"""The name of all tables and figures of image captions together."""

SMALL_DATA = "data"
"""The folder of the small preset's dataset, beside the ledger."""

SMALL_OF = "reproduce"
"""The recipe that has a small preset."""

_SINGLE = (WEIGHTS.name, EXAMPLES.name)
"""Figures that are made of one run per row, without a table."""


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
                with writing(options.output) as ledger:
                    spice = Spice(jars=options.spice_jars)
                    measure_spice(TABLES[name], shown, ledger, options.split, spice)
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
