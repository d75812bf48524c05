"""Differences between the rows of a table, paired by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ngsan.metrics.bootstrap import Floats
from ngsan.reproduce.ledger import Entry, Ledger
from ngsan.reproduce.runs import Wanted
from ngsan.reproduce.statistics import (
    MixedModel,
    mean_and_deviation,
    paired_interval,
    paired_p,
    unit_scores,
)
from ngsan.reproduce.tables import Table
from ngsan.reproduce.tasks import TableTask


@dataclass(frozen=True)
class Measured:
    """The finished runs of a row."""

    entries: Sequence[Entry]
    """One per seed."""

    split: str
    counts: Mapping[int, Floats]
    """(I, K) the main metric's counts per unit, by seed, for the runs with outputs."""

    def values(self, metric: str) -> dict[int, float]:
        """The values of a metric, by seed."""
        return {entry.seed: entry.metrics[self.split][metric] for entry in self.entries}


@dataclass(frozen=True)
class Difference:
    """The main metric of a row less that of another, over the seeds that both have."""

    label: str
    base: str
    """The row that is subtracted."""

    seeds: tuple[int, ...]
    values: tuple[float, ...]
    """By seed."""

    mean: float
    deviation: float | None
    """None for a single seed."""

    interval: tuple[float, float] | None
    """Over seeds and units, or over seeds alone if outputs of a run are missing; None with too few
    seeds."""

    over_seeds: float | None
    """The p-value of the paired t-test over seeds."""

    over_both: float | None
    """The p-value over seeds and units; also None if outputs of a run are missing."""

    outputs: bool
    """Whether the outputs of all these runs are available."""

    @property
    def name(self) -> str:
        return f"{self.label} − {self.base}"


def measured_rows(
    table: Table, finished: Sequence[Wanted], split: str, ledger: Ledger
) -> dict[str, Measured]:
    """The rows with a run evaluated on a split, by label, in the table's order.

    Raises:
        ValueError: A file of outputs is damaged, or runs have outputs of different units.
    """
    found: dict[str, list[Entry]] = {}
    for run in finished:
        if split in ledger[run.key].metrics:
            found.setdefault(run.label, []).append(ledger[run.key])
    labels = [row.label for row in table.rows if row.label in found]
    counts = _counts([entry.key for label in labels for entry in found[label]], split, ledger)
    return {
        label: Measured(
            found[label],
            split,
            {entry.seed: counts[entry.key] for entry in found[label] if entry.key in counts},
        )
        for label in labels
    }


def _counts(keys: Sequence[str], split: str, ledger: Ledger) -> dict[str, Floats]:
    """(I, K) the main metric's counts per unit, by run, for the runs with outputs.

    The units of all runs are in the order of the first; a `ValueError` if they differ.
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
                    f"{ledger.folder}: the runs {next(iter(found))} and {key} have outputs of "
                    f"different ids on the split {split!r} ({len(first):,} and "
                    f"{len(written.ids):,}), so they cannot be compared; train the table's models "
                    "on the same data, in another --output"
                )
            places = {name: place for place, name in enumerate(written.ids)}
            scores = scores[[places[name] for name in first]]
        found[key] = scores
    return found


def differences(
    table: Table, rows: Mapping[str, Measured], base: str, task: TableTask
) -> tuple[Difference, ...]:
    """Each row less the one it is compared with, then the table's further contrasts.

    Rows without a common seed have no difference.

    Args:
        table: The table.
        rows: The rows with finished runs, by label.
        base: The row that rows are compared with by default.
        task: The table's task, which scores the outputs.
    """
    pairs = [(row.label, row.against or base) for row in table.rows]
    return tuple(
        _difference(label, other, rows[label], rows[other], table.metric, task)
        for label, other in (*pairs, *table.contrasts)
        if label != other
        and label in rows
        and other in rows
        and rows[label].values(table.metric).keys() & rows[other].values(table.metric).keys()
    )


def _difference(
    label: str, base: str, mine: Measured, its: Measured, metric: str, task: TableTask
) -> Difference:
    first, second = mine.values(metric), its.values(metric)
    seeds = tuple(sorted(first.keys() & second.keys()))
    values = [first[seed] - second[seed] for seed in seeds]
    mean, deviation = mean_and_deviation(values)
    outputs = all(seed in mine.counts and seed in its.counts for seed in seeds)
    model = None
    if outputs:
        by_unit = [
            unit_scores(mine.counts[seed], task.score) - unit_scores(its.counts[seed], task.score)
            for seed in seeds
        ]
        model = MixedModel.fit(np.stack(by_unit))
    interval = paired_interval(values)
    if model is not None:
        half = model.half_width
        interval = mean - half, mean + half
    return Difference(
        label=label,
        base=base,
        seeds=seeds,
        values=tuple(values),
        mean=mean,
        deviation=deviation,
        interval=interval,
        over_seeds=paired_p(values),
        over_both=None if model is None else model.p,
        outputs=outputs,
    )
