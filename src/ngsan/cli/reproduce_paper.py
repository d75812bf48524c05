"""`ngsan reproduce paper`: all tables and figures of image captions, the most important first."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngsan.atomic_io import write_text
from ngsan.cli.output import note
from ngsan.cli.reproduce_output import (
    draw_weights,
    make_missing,
    write_examples,
    write_table,
    write_text_of,
)
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.making import missing_runs
from ngsan.reproduce.plan import seconds_left, stages
from ngsan.reproduce.runs import wanted_runs, with_finished_seeds
from ngsan.reproduce.tables import EXAMPLES, TABLES, TABLES_OF_PAPER, WEIGHTS

if TYPE_CHECKING:
    from ngsan.reproduce.runs import Wanted
    from ngsan.reproduce.tasks import Fitted

REPORT = "report.md"
"""The file with all tables so far, beside the ledger."""


def make_paper(config: Any, fitted: "Fitted", options: argparse.Namespace) -> None:
    """Makes the runs of all tables of image captions, and writes the report after each of them.

    Args:
        config: The run that the tables' rows change.
        fitted: The same with the sizes of its data.
        options: Those of `ngsan reproduce`.

    Raises:
        ValueError: Runs failed; all others are in the ledger.
    """
    seeds = range(options.seeds)
    plan = stages(config, seeds, fitted)
    tables = {
        name: wanted_runs(TABLES[name], config, seeds, fitted=fitted) for name in TABLES_OF_PAPER
    }
    figures = {
        figure.name: wanted_runs(figure, config, [0], fitted=fitted)
        for figure in (EXAMPLES, WEIGHTS)
    }
    folder = Path(options.output)
    everything = [run for stage in plan for run in stage]

    def after(run: "Wanted", ledger: Ledger) -> str:
        made = {run.key_after(phase) for phase in run.task.phases}
        for name, wanted in tables.items():
            if any(one.key in made for one in wanted):
                write_text_of(TABLES[name], with_finished_seeds(wanted, ledger), ledger, "")
        left = _left(everything, ledger, options.jobs)
        write_report(folder, left, tables)
        return f"; {left}"

    problems: dict[str, None] = {}
    if not options.report_only:
        keep = {run.key for run in figures[WEIGHTS.name]}
        for stage in plan:
            try:
                make_missing(stage, keep, folder, jobs=options.jobs, after=after)
            except ValueError as error:
                problems[str(error)] = None
    _write_all(folder, tables, figures, everything, options)
    if problems:
        raise ValueError("\n".join(problems))


def _write_all(
    folder: Path,
    tables: Mapping[str, "Sequence[Wanted]"],
    figures: Mapping[str, "Sequence[Wanted]"],
    everything: "Sequence[Wanted]",
    options: argparse.Namespace,
) -> None:
    """Prints and writes all that the ledger has the runs for."""
    ledger = Ledger(folder)
    if not len(ledger):
        raise ValueError(f"no run is finished in {folder}")
    for name, wanted in tables.items():
        if any(run.key in ledger for run in wanted):
            write_table(TABLES[name], with_finished_seeds(wanted, ledger), ledger, options.split)
    if all(run.key in ledger for run in figures[EXAMPLES.name]):
        write_examples(figures[EXAMPLES.name], ledger, options.images)
    if all(run.key in ledger for run in figures[WEIGHTS.name]):
        draw_weights(figures[WEIGHTS.name], ledger)
    write_report(folder, _left(everything, ledger, options.jobs), tables)
    note(f"wrote {folder / REPORT}")


def _left(everything: "Sequence[Wanted]", ledger: Ledger, jobs: int) -> str:
    missing = missing_runs(everything, ledger)
    return progress(len(missing), seconds_left(missing, ledger, jobs))


def progress(missing: int, seconds: float | None) -> str:
    """How many runs are left, and about how long they take."""
    if not missing:
        return "all runs are finished"
    runs = "1 run" if missing == 1 else f"{missing} runs"
    if seconds is None:
        return f"{runs} left"
    hours = seconds / 3600
    minutes = max(1, round(seconds / 60))
    short = "1 minute" if minutes == 1 else f"{minutes} minutes"
    time = f"{hours:.1f} hours" if hours >= 1 else short
    return f"{runs} left, about {time}"


def write_report(folder: Path, left: str, tables: Mapping[str, object]) -> None:
    """Writes the tables that have been made so far as one page."""
    pages = [folder / f"{name}.md" for name in tables]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.exists()]
    head = f"# The paper's tables, rerun\n\nSo far: {left}.\n"
    write_text(folder / REPORT, "\n".join([head, *texts]))
