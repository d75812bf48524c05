"""A table from the ledger: what its finished runs scored, and whether rows differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ngsan.metrics.bootstrap import Floats
from ngsan.reproduce.ledger import Entry, Ledger
from ngsan.reproduce.runs import Wanted
from ngsan.reproduce.splits import check_reported
from ngsan.reproduce.statistics import mean_and_deviation, paired, welch
from ngsan.reproduce.tables import Row, Table
from ngsan.reproduce.task import TableTask


@dataclass(frozen=True)
class Cell:
    """A metric of a row."""

    values: tuple[float, ...]
    """Of each seed."""

    mean: float
    """Over the seeds."""

    deviation: float | None
    """Standard deviation over the seeds; None of a single one."""

    paper: float | None
    """The paper's value, if it prints one."""

    def text(self) -> str:
        """As people read it."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        return f"{self.mean:.1f}{spread}"


@dataclass(frozen=True)
class Line:
    """A row of a table as it was measured."""

    label: str
    """As the table calls it."""

    parameters: int
    """Numbers that were learned."""

    seeds: tuple[int, ...]
    """Of the finished runs."""

    cells: Mapping[str, Cell]
    """By metric."""

    over_units: float | None
    """Chance of such a difference of the main metric from the row that all are compared with, by
    images, sentences or questions; None for that row itself, and where there is no seed of which
    what both rows wrote is at hand."""

    paired_seeds: tuple[int, ...]
    """Of the runs that this chance is of: all of the row, or, where what some runs of either row
    wrote is lost, those seeds of which both are at hand. Of the row that all are compared with,
    those at hand."""

    over_seeds: float | None
    """The same by seeds; None with fewer than two."""

    curves: tuple[tuple[float, ...], ...]
    """The main metric on the validation split by epoch, of each seed."""


@dataclass(frozen=True)
class Report:
    """A table as far as its runs are finished."""

    table: Table
    """What is in it."""

    split: str
    """On which its rows were measured."""

    unit: str
    """What metrics are taken over, such as images."""

    metrics: tuple[str, ...]
    """Those of the table that the data have."""

    base: str
    """The row that the others are compared with."""

    lines: tuple[Line, ...]
    """Its rows, those of which a run is finished."""

    baselines: Mapping[str, Mapping[str, float]]
    """Scores, by name, of what costs no run, by its label."""

    missing: int
    """Runs that are not finished."""


@dataclass(frozen=True)
class _Measured:
    """The finished runs of a row."""

    entries: Sequence[Entry]
    """Of each seed."""

    split: str
    """On which they are looked at."""

    counts: Mapping[int, Floats]
    """(I, K) what the main metric counts in each unit, by seed, of those runs of which it is at
    hand."""

    def values(self, metric: str) -> list[float]:
        """A metric of each seed."""
        return [entry.metrics[self.split][metric] for entry in self.entries]

    def mean_counts(self, seeds: Sequence[int]) -> Floats:
        """The mean over seeds of what the main metric counts in each unit."""
        return np.asarray(np.mean([self.counts[seed] for seed in seeds], axis=0))


def build_report(table: Table, wanted: Sequence[Wanted], ledger: Ledger) -> Report:
    """Collects the finished runs of a table.

    Args:
        table: The table.
        wanted: Its runs.
        ledger: Those that are finished.

    Raises:
        ValueError: A file of what a run wrote is damaged, or runs were not measured on the same;
            names them.
    """
    task, config = wanted[0].task, wanted[0].config
    finished = [run for run in wanted if run.key in ledger]
    split = shown_split(table, wanted, ledger)
    check_reported((ledger[run.key] for run in finished), split, wanted[0].measured, ledger)
    found = _measured_rows(table, finished, split, ledger)
    base = table.compared_with if table.compared_with in found else next(iter(found), "")
    entries = [entry for row in found.values() for entry in row.entries]
    metrics = tuple(
        metric
        for metric in table.metrics
        if all(metric in entry.metrics[split] for entry in entries)
    )
    lines = tuple(
        _line(row, found[row.label], found[base], metrics=metrics, main=table.metric, task=task)
        for row in table.rows
        if row.label in found
    )
    return Report(
        table=table,
        split=split,
        unit=table.unit or task.unit,
        metrics=metrics,
        base=base,
        lines=lines,
        # A report of a ledger alone has no data to count in.
        baselines=task.baselines(config, split) if lines and config.data.folder else {},
        missing=len(wanted) - len(finished),
    )


def shown_split(table: Table, wanted: Sequence[Wanted], ledger: Ledger) -> str:
    """The split that a table shows: its own, or the validation split where no run has that one."""
    finished = [ledger[run.key] for run in wanted if run.key in ledger]
    if table.split != "val" and any(table.split in entry.metrics for entry in finished):
        return table.split
    return str(wanted[0].config.data.validation)


def _measured_rows(
    table: Table, finished: Sequence[Wanted], split: str, ledger: Ledger
) -> dict[str, _Measured]:
    """The rows of which a run was measured on a split, by label, in the table's order."""
    found: dict[str, list[Entry]] = {}
    for run in finished:
        if split in ledger[run.key].metrics:
            found.setdefault(run.label, []).append(ledger[run.key])
    labels = [row.label for row in table.rows if row.label in found]
    counts = _counts([entry.key for label in labels for entry in found[label]], split, ledger)
    return {
        label: _Measured(
            found[label],
            split,
            {entry.seed: counts[entry.key] for entry in found[label] if entry.key in counts},
        )
        for label in labels
    }


def _counts(keys: Sequence[str], split: str, ledger: Ledger) -> dict[str, Floats]:
    """(I, K) what the main metric counts in each unit, by run, of those of which it is at hand.

    The units of all runs are in the order of the first.

    Raises:
        ValueError: Two runs were not measured on the same units.
    """
    found: dict[str, Floats] = {}
    first: Sequence[str] = ()
    for key in keys:
        if not ledger.has_written(key, split):
            continue
        written = ledger.written(key, split)
        scores = np.asarray(written.scores, dtype=float)
        if not found:
            first = written.ids
        elif written.ids != first:
            if sorted(written.ids) != sorted(first):
                raise ValueError(
                    f"{ledger.folder}: what the runs {next(iter(found))} and {key} wrote on the "
                    f"split {split!r} is not of the same ids ({len(first):,} and "
                    f"{len(written.ids):,}), so they cannot be compared: make the table's runs "
                    "with the same data, in another --to"
                )
            places = {name: place for place, name in enumerate(written.ids)}
            scores = scores[[places[name] for name in first]]
        found[key] = scores
    return found


def _line(
    row: Row,
    mine: _Measured,
    base: _Measured,
    *,
    metrics: Sequence[str],
    main: str,
    task: TableTask,
) -> Line:
    alone = mine is base
    seeds, its_seeds = _paired_seeds(mine, base)
    over_units = None
    if seeds and not alone:
        over_units = paired(mine.mean_counts(seeds), base.mean_counts(its_seeds), task.score)
    return Line(
        label=row.label,
        parameters=mine.entries[0].parameters,
        seeds=tuple(entry.seed for entry in mine.entries),
        cells={metric: _cell(mine.values(metric), row.paper.get(metric)) for metric in metrics},
        over_units=over_units,
        paired_seeds=seeds,
        over_seeds=None if alone else welch(mine.values(main), base.values(main)),
        curves=tuple(tuple(entry.curve) for entry in mine.entries),
    )


def _paired_seeds(mine: _Measured, base: _Measured) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The seeds of either row that are tested: all, or if some are lost those in common."""
    if all(len(row.counts) == len(row.entries) for row in (mine, base)):
        return tuple(mine.counts), tuple(base.counts)
    common = tuple(seed for seed in mine.counts if seed in base.counts)
    return common, common


def _cell(values: Sequence[float], paper: float | None) -> Cell:
    mean, deviation = mean_and_deviation(values)
    return Cell(tuple(values), mean, deviation, paper)
