"""A table from the ledger: as rows of numbers, as Markdown and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ngsan.reproduce.ledger import Entry, Ledger
from ngsan.reproduce.runs import Wanted
from ngsan.reproduce.statistics import mean_and_deviation, paired, welch
from ngsan.reproduce.tables import Table


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
    parameters: int
    seeds: tuple[int, ...]
    cells: Mapping[str, Cell]
    over_images: float | None
    """Chance of such a difference of CIDEr from the first row, by images; None for the first."""

    over_seeds: float | None
    """The same by seeds; None with fewer than two."""

    curves: tuple[tuple[float, ...], ...]
    """CIDEr on the validation split by epoch, of each seed."""


@dataclass(frozen=True)
class Report:
    """A table as far as its runs are finished."""

    table: Table
    split: str
    lines: tuple[Line, ...]
    missing: int
    """Runs that are not finished."""


def build_report(table: Table, wanted: Sequence[Wanted], ledger: Ledger) -> Report:
    """Collects the finished runs of a table.

    Args:
        table: The table.
        wanted: Its runs.
        ledger: Those that are finished.
    """
    split = wanted[0].config.data.validation if table.split == "val" else table.split
    papers = {row.label: row.paper for row in table.rows}
    found: dict[str, list[Entry]] = {}
    for run in wanted:
        if run.key in ledger and split in ledger[run.key].metrics:
            found.setdefault(run.label, []).append(ledger[run.key])
    per_image = {
        label: np.mean([ledger.captions(entry.key, split).cider for entry in entries], axis=0)
        for label, entries in found.items()
    }
    first = next((row.label for row in table.rows if row.label in found), "")
    lines = []
    for label in (row.label for row in table.rows if row.label in found):
        entries = found[label]
        cells = {}
        for metric in table.metrics:
            values = tuple(entry.metrics[split][metric] for entry in entries)
            mean, deviation = mean_and_deviation(values)
            cells[metric] = Cell(values, mean, deviation, papers[label].get(metric))
        alone = label == first
        lines.append(
            Line(
                label=label,
                parameters=entries[0].parameters,
                seeds=tuple(entry.seed for entry in entries),
                cells=cells,
                over_images=None if alone else paired(per_image[label], per_image[first]),
                over_seeds=None
                if alone
                else welch(cells["CIDEr"].values, _values(found[first], split)),
                curves=tuple(tuple(entry.curve) for entry in entries),
            )
        )
    missing = sum(run.key not in ledger for run in wanted)
    return Report(table, split, tuple(lines), missing)


def _values(entries: Sequence[Entry], split: str) -> list[float]:
    return [entry.metrics[split]["CIDEr"] for entry in entries]


def header(report: Report) -> list[str]:
    """The heads of the columns."""
    paper = ["CIDEr, paper"] if _has_paper(report) else []
    return ["", "M", "seeds", *report.table.metrics, *paper, "p, images", "p, seeds"]


def rows(report: Report) -> list[list[str]]:
    """The cells of the table as people read them."""
    return [
        [
            line.label,
            f"{line.parameters / 1e6:.1f}",
            str(len(line.seeds)),
            *(line.cells[metric].text() for metric in report.table.metrics),
            *([_optional(line.cells["CIDEr"].paper, ".1f")] if _has_paper(report) else []),
            _optional(line.over_images, ".4f"),
            _optional(line.over_seeds, ".3f"),
        ]
        for line in report.lines
    ]


def to_markdown(report: Report) -> str:
    """The table as Markdown, with what it shows above it."""
    heads = header(report)
    where = f"{report.table.place} of the paper, {report.split} split, after {report.table.phase}"
    lines = [
        f"### {report.table.title}",
        "",
        f"{where}. Means over the seeds ± standard deviation; M: millions of parameters; p: chance "
        "of such a difference of CIDEr from the first row if there were none, by images and by "
        "seeds.",
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
    for line in report.lines:
        for metric, cell in line.cells.items():
            paper = "" if cell.paper is None else cell.paper
            for seed, value in zip(line.seeds, cell.values, strict=True):
                about = (line.label, line.parameters, seed, report.split, report.table.phase)
                writer.writerow([*about, metric, value, paper])
    return text.getvalue()


def _has_paper(report: Report) -> bool:
    return any(cell.paper is not None for line in report.lines for cell in line.cells.values())


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
