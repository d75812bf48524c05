"""A table from the ledger: as rows of numbers, as Markdown and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ngsan.config.phases import ANSWERING
from ngsan.metrics.bootstrap import Floats
from ngsan.reproduce.ledger import Entry, Ledger
from ngsan.reproduce.runs import Wanted
from ngsan.reproduce.statistics import mean_and_deviation, paired, welch
from ngsan.reproduce.tables import Table
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
    """The paper's value, if we know it."""

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
    images, sentences or questions; None for that row itself, and where what the runs wrote is not
    at hand."""

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


def build_report(table: Table, wanted: Sequence[Wanted], ledger: Ledger) -> Report:
    """Collects the finished runs of a table.

    Args:
        table: The table.
        wanted: Its runs.
        ledger: Those that are finished.
    """
    task, config = wanted[0].task, wanted[0].config
    finished = [run for run in wanted if run.key in ledger]
    split = config.data.validation
    if table.split != "val" and any(table.split in ledger[run.key].metrics for run in finished):
        split = table.split
    found: dict[str, list[Entry]] = {}
    for run in finished:
        if split in ledger[run.key].metrics:
            found.setdefault(run.label, []).append(ledger[run.key])
    labels = [row.label for row in table.rows if row.label in found]
    base = table.compared_with if table.compared_with in found else next(iter(labels), "")
    counts = {label: _counts(found[label], split, ledger) for label in labels}
    metrics = tuple(
        metric
        for metric in table.metrics
        if all(metric in entry.metrics[split] for entries in found.values() for entry in entries)
    )
    papers = {row.label: row.paper for row in table.rows}
    lines = []
    for label in labels:
        alone = label == base
        mine, its = (_values(found[name], split, table.metric) for name in (label, base))
        lines.append(
            Line(
                label=label,
                parameters=found[label][0].parameters,
                seeds=tuple(entry.seed for entry in found[label]),
                cells={
                    metric: _cell(_values(found[label], split, metric), papers[label].get(metric))
                    for metric in metrics
                },
                over_units=None if alone else _chance(counts[label], counts[base], task),
                over_seeds=None if alone else welch(mine, its),
                curves=tuple(tuple(entry.curve) for entry in found[label]),
            )
        )
    return Report(
        table=table,
        split=split,
        unit=table.unit or task.unit,
        metrics=metrics,
        base=base,
        lines=tuple(lines),
        # A report of a ledger alone has no data to count in.
        baselines=task.baselines(config, split) if lines and config.data.folder else {},
        missing=len(wanted) - len(finished),
    )


def _counts(entries: Sequence[Entry], split: str, ledger: Ledger) -> Floats | None:
    """What the main metric counts in each unit, the mean over the seeds; None if not at hand."""
    if not all(ledger.has_written(entry.key, split) for entry in entries):
        return None
    scores = [ledger.written(entry.key, split).scores for entry in entries]
    return np.asarray(np.mean(scores, axis=0))


def _chance(mine: Floats | None, its: Floats | None, task: TableTask) -> float | None:
    return None if mine is None or its is None else paired(mine, its, task.score)


def _cell(values: Sequence[float], paper: float | None) -> Cell:
    mean, deviation = mean_and_deviation(values)
    return Cell(tuple(values), mean, deviation, paper)


def _values(entries: Sequence[Entry], split: str, metric: str) -> list[float]:
    return [entry.metrics[split][metric] for entry in entries]


def header(report: Report) -> list[str]:
    """The heads of the columns."""
    paper = [f"{report.table.metric}, paper"] if _has_paper(report) else []
    return ["", "M", "seeds", *report.metrics, *paper, f"p, {report.unit}", "p, seeds"]


def rows(report: Report) -> list[list[str]]:
    """The cells of the table as people read them."""
    main, has_paper = report.table.metric, _has_paper(report)
    without = [""] * (3 if has_paper else 2)
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
            *([_optional(line.cells[main].paper, ".1f")] if has_paper else []),
            _chance_text(line.over_units, 4),
            _chance_text(line.over_seeds, 3),
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
        f"{report.unit} and by seeds.",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(cells)} |" for cells in rows(report)),
    ]
    if report.missing:
        lines += ["", f"{report.missing} runs are not finished."]
    return "\n".join(lines) + "\n"


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


def _has_paper(report: Report) -> bool:
    return any(cell.paper is not None for line in report.lines for cell in line.cells.values())


def _chance_text(value: float | None, digits: int) -> str:
    """A chance; one that rounds to nothing is not nothing."""
    least = 10.0**-digits
    if value is not None and value < least / 2:
        return f"< {least:.{digits}f}"
    return _optional(value, f".{digits}f")


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
