"""A table from the ledger: the scores of its finished runs, and how its rows differ."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ngsan.config import ANSWERING
from ngsan.reproduce import published
from ngsan.reproduce.differences import Difference, Measured, differences, measured_rows
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.runs import Wanted, check_reported
from ngsan.reproduce.statistics import MIN_SEEDS, detectable, mean_and_deviation
from ngsan.reproduce.tables import Row, Table


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

    differences: tuple[Difference, ...]
    """Of the main metric: each row less its base, and the table's further contrasts."""

    baselines: Mapping[str, Mapping[str, float]]
    """Scores of baselines that need no training, by label and metric."""

    missing: int
    """The number of unfinished runs."""


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
    found = measured_rows(table, finished, split, ledger)
    base = table.compared_with if table.compared_with in found else next(iter(found), "")
    entries = [entry for row in found.values() for entry in row.entries]
    metrics = tuple(
        metric
        for metric in table.metrics
        if all(metric in entry.metrics[split] for entry in entries)
    )
    lines = tuple(_line(row, found[row.label], metrics) for row in table.rows if row.label in found)
    return Report(
        table=table,
        split=split,
        unit=table.unit or task.unit,
        metrics=metrics,
        base=base,
        lines=lines,
        differences=differences(table, found, base, task),
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


def _line(row: Row, mine: Measured, metrics: Sequence[str]) -> Line:
    return Line(
        label=row.label,
        parameters=mine.entries[0].parameters,
        seeds=tuple(entry.seed for entry in mine.entries),
        cells={
            metric: _cell(list(mine.values(metric).values()), row.paper.get(metric))
            for metric in metrics
        },
        curves=tuple(tuple(entry.curve) for entry in mine.entries),
    )


def _cell(values: Sequence[float], paper: float | None) -> Cell:
    mean, deviation = mean_and_deviation(values)
    return Cell(tuple(values), mean, deviation, paper)


def header(report: Report) -> list[str]:
    """The column heads."""
    metric = _paper_metric(report)
    return ["", "M", "seeds", *report.metrics, *([f"{metric}, paper"] if metric else [])]


def rows(report: Report) -> list[list[str]]:
    """The cells of the table as text."""
    paper = _paper_metric(report)
    priors = [
        [label, "", "", *(_optional(scores.get(name), ".1f") for name in report.metrics)]
        + ([""] if paper else [])
        for label, scores in report.baselines.items()
    ]
    return priors + [
        [
            line.label,
            f"{line.parameters / 1e6:.1f}",
            str(len(line.seeds)),
            *(line.cells[metric].text() for metric in report.metrics),
            *([_optional(line.cells[paper].paper, ".1f")] if paper else []),
        ]
        for line in report.lines
    ]


def differences_header(report: Report) -> list[str]:
    """The column heads of the table of differences."""
    both = f"p, seeds and {report.unit}"
    return ["", "seeds", report.table.metric, "95 % interval", "p, seeds", both]


def differences_rows(report: Report) -> list[list[str]]:
    """The cells of the table of differences as text."""
    return [
        [
            each.name,
            str(len(each.seeds)),
            _signed(each.mean),
            f"{_signed(each.interval[0])} to {_signed(each.interval[1])}" if each.interval else "",
            _p_text(each.over_seeds),
            _p_text(each.over_both),
        ]
        for each in report.differences
    ]


def to_markdown(report: Report) -> str:
    """The table as Markdown, with what it shows above it."""
    table = report.table
    after = "" if table.phase == ANSWERING else f", after {table.phase}"
    where = f"{table.place} of the paper, {report.split} split{after}"
    lines = [
        f"### {table.title}",
        "",
        f"{where}. Means over the seeds ± standard deviation; M: millions of parameters.",
        "",
        *_markdown(header(report), rows(report)),
    ]
    if report.differences:
        heads, cells = differences_header(report), differences_rows(report)
        lines += ["", differences_note(report), "", *_markdown(heads, cells)]
    for note in (*power_notes(report), missing_note(report)):
        lines += ["", note] if note else []
    if table.published:
        heads = ["in the paper", *published.columns(table.published)]
        lines += ["", paper_note(table), "", *_markdown(heads, published.lines(table.published))]
    return "\n".join(lines) + "\n"


def _markdown(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def paper_note(table: Table) -> str:
    """A sentence about the data of the paper's values."""
    return f"The paper's values are of {table.paper_of}."


def missing_note(report: Report) -> str:
    """A sentence about unfinished runs; empty if there are none."""
    if not report.missing:
        return ""
    return (
        "1 run is not finished."
        if report.missing == 1
        else f"{report.missing} runs are not finished."
    )


def differences_note(report: Report) -> str:
    """What the table of differences shows."""
    metric, unit = report.table.metric, report.unit
    return (
        f"Differences of {metric} over the seeds that both rows have, paired by seed. p, seeds: "
        f"t-test over seeds, on these {unit}. The interval and the last p: for other seeds and "
        f"other {unit}."
    )


def power_notes(report: Report) -> list[str]:
    """Sentences about what the tests cannot find."""
    notes = []
    tested = [each for each in report.differences if each.interval]
    if tested:
        squares = [(each.deviation or 0) ** 2 for each in tested]
        seeds = min(len(each.seeds) for each in tested)
        found = detectable(math.sqrt(math.fsum(squares) / len(squares)), seeds)
        notes.append(
            f"With {seeds} seeds that vary like these, a true difference of {found:.1f} has an "
            "interval without 0 in 80 % of such experiments."
        )
    if len(tested) < len(report.differences):
        notes.append(f"An interval needs {MIN_SEEDS} seeds that both rows have.")
    if any(each.interval and not each.outputs for each in report.differences):
        notes.append(
            "Where outputs of a run are missing, the interval is that of the t-test over seeds, "
            "and there is no last p."
        )
    return notes


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
    beside = {
        (line.label, metric)
        for line in report.lines
        for metric, cell in line.cells.items()
        if cell.paper is not None
    }
    for label, values in report.table.published.items():
        for metric, value in values.items():
            if (label, metric) not in beside:
                writer.writerow([label, *[""] * 4, metric, "", value])
    return text.getvalue()


def _paper_metric(report: Report) -> str:
    """The metric to show the paper's values of, preferably the main one; empty for none."""
    ordered = sorted(report.metrics, key=lambda metric: metric != report.table.metric)
    for metric in ordered:
        if any(line.cells[metric].paper is not None for line in report.lines):
            return metric
    return ""


def _p_text(value: float | None) -> str:
    """A p-value; tiny values print as `< 0.001`."""
    if value is not None and value < 0.0005:
        return "< 0.001"
    return _optional(value, ".3f")


def _signed(value: float) -> str:
    """A difference with its sign, and a zero without."""
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
