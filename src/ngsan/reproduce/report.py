"""A table from the ledger: the scores of its finished runs, and whether rows differ."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ngsan.config import ANSWERING
from ngsan.metrics.bootstrap import Floats, Score, compare
from ngsan.reproduce.ledger import Entry, Ledger
from ngsan.reproduce.runs import Wanted, check_reported
from ngsan.reproduce.tables import Row, Table
from ngsan.reproduce.tasks import TableTask

_RESAMPLES = 10_000


@dataclass(frozen=True)
class Cell:
    """A metric of a row, over its seeds."""

    values: tuple[float, ...]
    mean: float
    deviation: float | None
    """None for a single seed."""

    paper: float | None
    """The paper's value, if it prints one."""

    def text(self) -> str:
        """Mean ± standard deviation."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        return f"{self.mean:.1f}{spread}"


@dataclass(frozen=True)
class Line:
    """The results of a row of a table."""

    label: str
    parameters: int
    seeds: tuple[int, ...]
    """The seeds of the finished runs."""

    cells: Mapping[str, Cell]
    """By metric."""

    over_units: float | None
    """The p-value of the difference of the main metric from the base row, over images, sentences
    or questions; None for the base row, and if no seed has the outputs of both rows."""

    paired_seeds: tuple[int, ...]
    """The seeds in this test: all of the row, or, if outputs of either row are missing, the seeds
    with the outputs of both. For the base row, those with outputs."""

    over_seeds: float | None
    """The p-value over seeds; None with fewer than two."""

    curves: tuple[tuple[float, ...], ...]
    """The main metric on the validation split by epoch, for each seed."""


@dataclass(frozen=True)
class Report:
    """The finished part of a table."""

    table: Table
    split: str
    """The evaluated split."""

    unit: str
    """What metrics are averaged over, such as images."""

    metrics: tuple[str, ...]
    """The table's metrics that all its runs have."""

    base: str
    """The label of the row that the others are compared with."""

    lines: tuple[Line, ...]
    """The rows with a finished run."""

    baselines: Mapping[str, Mapping[str, float]]
    """Scores of baselines that need no training, by label and metric."""

    missing: int
    """The number of unfinished runs."""


@dataclass(frozen=True)
class _Measured:
    """The finished runs of a row."""

    entries: Sequence[Entry]
    """One per seed."""

    split: str
    counts: Mapping[int, Floats]
    """(I, K) the main metric's counts per unit, by seed, for the runs with outputs."""

    def values(self, metric: str) -> list[float]:
        """The values of a metric, by seed."""
        return [entry.metrics[self.split][metric] for entry in self.entries]

    def mean_counts(self, seeds: Sequence[int]) -> Floats:
        """The mean over seeds of the main metric's counts per unit."""
        return np.asarray(np.mean([self.counts[seed] for seed in seeds], axis=0))


def build_report(table: Table, wanted: Sequence[Wanted], ledger: Ledger) -> Report:
    """Collects the finished runs of a table.

    Args:
        table: The table.
        wanted: Its runs.
        ledger: Those that are finished.

    Raises:
        ValueError: A file of outputs is damaged, or runs were evaluated on different data; names
            them.
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
        # A report of a ledger alone has no data.
        baselines=task.baselines(config, split) if lines and config.data.folder else {},
        missing=len(wanted) - len(finished),
    )


def shown_split(table: Table, wanted: Sequence[Wanted], ledger: Ledger) -> str:
    """The split that a table shows: its own, or the validation split if no run has that one."""
    finished = [ledger[run.key] for run in wanted if run.key in ledger]
    if table.split != "val" and any(table.split in entry.metrics for entry in finished):
        return table.split
    return str(wanted[0].config.data.val_split)


def _measured_rows(
    table: Table, finished: Sequence[Wanted], split: str, ledger: Ledger
) -> dict[str, _Measured]:
    """The rows with a run evaluated on a split, by label, in the table's order."""
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
    """The seeds of either row to test: all, or the common ones if outputs are missing."""
    if all(len(row.counts) == len(row.entries) for row in (mine, base)):
        return tuple(mine.counts), tuple(base.counts)
    common = tuple(seed for seed in mine.counts if seed in base.counts)
    return common, common


def _cell(values: Sequence[float], paper: float | None) -> Cell:
    mean, deviation = mean_and_deviation(values)
    return Cell(tuple(values), mean, deviation, paper)


def header(report: Report) -> list[str]:
    """The column heads."""
    metric = _paper_metric(report)
    paper = [f"{metric}, paper"] if metric else []
    return ["", "M", "seeds", *report.metrics, *paper, f"p, {report.unit}", "p, seeds"]


def rows(report: Report) -> list[list[str]]:
    """The cells of the table as text."""
    paper = _paper_metric(report)
    without = [""] * (3 if paper else 2)
    priors = [
        [label, "", "", *(_optional(scores.get(name), ".1f") for name in report.metrics), *without]
        for label, scores in report.baselines.items()
    ]
    return priors + [
        [
            line.label,
            f"{line.parameters / 1e6:.1f}",
            str(len(line.seeds)),
            *(line.cells[metric].text() for metric in report.metrics),
            *([_optional(line.cells[paper].paper, ".1f")] if paper else []),
            _p_text(line.over_units, 4),
            _p_text(line.over_seeds, 3),
        ]
        for line in report.lines
    ]


def to_markdown(report: Report) -> str:
    """The table as Markdown, with what it shows above it."""
    heads, table = header(report), report.table
    after = "" if table.phase == ANSWERING else f", after {table.phase}"
    where = f"{table.place} of the paper, {report.split} split{after}"
    lines = [
        f"### {table.title}",
        "",
        f"{where}. Means over the seeds ± standard deviation; M: millions of parameters; p: chance "
        f"of such a difference of {table.metric} from {report.base} if there were none, by "
        f"{report.unit} and by seeds. {paper_note(report)}".rstrip(),
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(cells)} |" for cells in rows(report)),
    ]
    for note in (seeds_note(report), missing_note(report)):
        lines += ["", note] if note else []
    return "\n".join(lines) + "\n"


def paper_note(report: Report) -> str:
    """A sentence about the data of the paper's values; empty if there are none."""
    if not _paper_metric(report):
        return ""
    return f"The paper's values are of {report.table.paper_of}."


def missing_note(report: Report) -> str:
    """A sentence about unfinished runs; empty if there are none."""
    if not report.missing:
        return ""
    return (
        "1 run is not finished."
        if report.missing == 1
        else f"{report.missing} runs are not finished."
    )


def seeds_note(report: Report) -> str:
    """A sentence about the seeds of the test by units; empty if all runs are in it."""
    tested = [line for line in report.lines if line.over_units is not None]
    lost = any(
        line.paired_seeds != line.seeds for line in report.lines if line.label == report.base
    )
    groups: dict[tuple[int, ...], list[str]] = {}
    for line in tested:
        if lost or line.paired_seeds != line.seeds:
            groups.setdefault(line.paired_seeds, []).append(f'"{line.label}"')
    if not groups:
        return ""
    alike = len(groups) == 1 and len(tested) == sum(map(len, groups.values()))
    parts = [
        f"{'seed' if len(seeds) == 1 else 'seeds'} {_listed([str(seed) for seed in seeds])} "
        f"only{'' if alike else f' for {_listed(labels)}'}"
        for seeds, labels in groups.items()
    ]
    return (
        f"The test by {report.unit} uses {', and '.join(parts)}; the outputs of the other runs are "
        "not available."
    )


def _listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def to_csv(report: Report) -> str:
    """The table as CSV: a line for every row, seed and metric."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "parameters", "seed", "split", "phase", "metric", "value", "paper"])
    for label, scores in report.baselines.items():
        for metric in report.metrics:
            about = (label, "", "", report.split, "")
            writer.writerow([*about, metric, scores.get(metric, ""), ""])
    for line in report.lines:
        for metric, cell in line.cells.items():
            paper = "" if cell.paper is None else cell.paper
            for seed, value in zip(line.seeds, cell.values, strict=True):
                about_it = (line.label, line.parameters, seed, report.split, report.table.phase)
                writer.writerow([*about_it, metric, value, paper])
    return text.getvalue()


def _paper_metric(report: Report) -> str:
    """The metric to show the paper's values of, preferably the main one; empty for none."""
    ordered = sorted(report.metrics, key=lambda metric: metric != report.table.metric)
    for metric in ordered:
        if any(line.cells[metric].paper is not None for line in report.lines):
            return metric
    return ""


def _p_text(value: float | None, digits: int) -> str:
    """A p-value; tiny values print as `< 0.0001`."""
    least = 10.0**-digits
    if value is not None and value < least / 2:
        return f"< {least:.{digits}f}"
    return _optional(value, f".{digits}f")


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation (of a sample) if there is more than one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1))


def welch(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The p-value of Welch's two-sided t-test between two models, with one value per seed.

    None with fewer than two values of either, or if none of them vary.
    """
    if len(first) < 2 or len(second) < 2:
        return None
    (mean, deviation), (other, its) = mean_and_deviation(first), mean_and_deviation(second)
    assert deviation is not None
    assert its is not None
    mine, theirs = deviation**2 / len(first), its**2 / len(second)
    if mine + theirs == 0:
        return None
    t = abs(mean - other) / math.sqrt(mine + theirs)
    freedom = (mine + theirs) ** 2 / (mine**2 / (len(first) - 1) + theirs**2 / (len(second) - 1))
    return 2 * student_tail(t, freedom)


def student_tail(t: float, freedom: float) -> float:
    """The probability of a value above `t`, at least 0, in Student's distribution.

    With x = sqrt(n) tan(a) the density becomes a power of the cosine, which is smooth and ends at
    a right angle, so that Simpson's rule is exact to many digits.
    """
    angle = math.atan(t / math.sqrt(freedom))
    steps = 2000
    points = np.linspace(angle, math.pi / 2, steps + 1)
    with np.errstate(divide="ignore"):
        values = np.exp((freedom - 1) * np.log(np.maximum(np.cos(points), 0)))
    weights = np.ones(steps + 1)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    area = float(values @ weights) * (math.pi / 2 - angle) / steps / 3
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return area * math.exp(log_scale)


def _first_count(totals: Floats) -> Floats:
    return totals[..., :1]


def paired(first: Floats, second: Floats, score: Score = _first_count, seed: int = 0) -> float:
    """The p-value of a paired randomisation test between two models.

    The outputs of the two models for an image, sentence or question are swapped at random, again
    and again, and the whole set is scored each time.

    Args:
        first: (I, K) the counts of the score per unit, of one model, averaged over its seeds.
        second: Of the other model, for the same units.
        score: From sums (..., K) to scores (..., 1).
        seed: Seed of the swaps.
    """
    (found,) = compare([first], [second], [score], resamples=_RESAMPLES, seed=seed)
    return float(found.p[0])
