"""A report as people and programs read it: rows of words, Markdown and CSV."""

import csv
import io
from collections.abc import Sequence

from ngsan.config.phases import ANSWERING
from ngsan.reproduce.report import Report


def header(report: Report) -> list[str]:
    """The heads of the columns."""
    metric = _paper_metric(report)
    paper = [f"{metric}, paper"] if metric else []
    return ["", "M", "seeds", *report.metrics, *paper, f"p, {report.unit}", "p, seeds"]


def rows(report: Report) -> list[list[str]]:
    """The cells of the table as people read them."""
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
        f"{report.unit} and by seeds. {paper_told(report)}".rstrip(),
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(cells)} |" for cells in rows(report)),
    ]
    for told in (seeds_told(report), missing_told(report)):
        lines += ["", told] if told else []
    return "\n".join(lines) + "\n"


def paper_told(report: Report) -> str:
    """A sentence that says what the paper's values are of; empty where there are none."""
    if not _paper_metric(report):
        return ""
    return f"The paper's values are of {report.table.paper_of}."


def missing_told(report: Report) -> str:
    """A sentence that says how many runs are not finished; empty where all are."""
    if not report.missing:
        return ""
    return (
        "1 run is not finished."
        if report.missing == 1
        else f"{report.missing} runs are not finished."
    )


def seeds_told(report: Report) -> str:
    """A sentence that says of which seeds the test by units is; empty where it is of all runs."""
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
        f"of {'seed' if len(seeds) == 1 else 'seeds'} {_listed([str(seed) for seed in seeds])} "
        f"alone{'' if alike else f' for {_listed(labels)}'}"
        for seeds, labels in groups.items()
    ]
    return (
        f"The test by {report.unit} is {', and '.join(parts)}: what the other runs wrote is not at "
        "hand."
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
    """The metric whose values in the paper are shown, the main one if it can be; empty for none."""
    ordered = sorted(report.metrics, key=lambda metric: metric != report.table.metric)
    for metric in ordered:
        if any(line.cells[metric].paper is not None for line in report.lines):
            return metric
    return ""


def _chance_text(value: float | None, digits: int) -> str:
    """A chance; one that rounds to nothing is not nothing."""
    least = 10.0**-digits
    if value is not None and value < least / 2:
        return f"< {least:.{digits}f}"
    return _optional(value, f".{digits}f")


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
