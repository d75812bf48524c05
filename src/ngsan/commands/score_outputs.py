"""What `ngsan score` writes: tables for people and files for programs."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ngsan.durable import write_output
from ngsan.metrics.diversity import Diversity
from ngsan.metrics.report import Comparison, Scores

PER_IMAGE = (".json", ".jsonl", ".csv")
"""Endings that a file of scores by image may have."""

Intervals = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class System:
    """One system's scores."""

    path: str
    """The file of its captions."""

    scores: Scores
    """Values, by image too."""

    intervals: Intervals
    """By name of the score; empty when none were asked for."""

    statistics: Diversity
    """Figures about its captions."""


@dataclass(frozen=True)
class Outcome:
    """All that was found out."""

    system: System
    """The system that is scored."""

    other: System | None
    """The one it is compared with."""

    comparison: Mapping[str, Comparison]
    """By name of the score; empty without another system or without resamples."""

    not_computed: Mapping[str, str]
    """Why other metrics were not computed, by name."""

    references: str
    """The file or folder of the references."""

    counts: Mapping[str, int]
    """Images and references, in the files and scored."""

    settings: Mapping[str, float] = field(default_factory=dict)
    """Of the intervals."""


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Prints scores, statistics, what is missing, and signatures."""
    console.print(_score_table(outcome))
    console.print(_statistics_table(outcome))
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    counts = outcome.counts
    if counts["images"] < counts["images_with_references"]:
        console.print(
            f"{counts['images']:,} of {counts['images_with_references']:,} images of "
            f"{outcome.references} are scored",
            **plain,
        )
    if counts["images"] < counts["images_with_results"]:
        console.print(
            f"{counts['images']:,} of {counts['images_with_results']:,} images of "
            f"{outcome.system.path} are scored",
            **plain,
        )
    for name, reason in outcome.not_computed.items():
        console.print(f"{name} is not computed: {reason}", **plain)
    for line in _signatures(outcome.system.scores):
        console.print(line, style="dim", **plain)


def _signatures(scores: Scores) -> list[str]:
    """The signatures; scores that were made in the same way share a line."""
    names: dict[str, list[str]] = {}
    for name, line in scores.signatures.items():
        names.setdefault(line.removeprefix(name), []).append(name)
    return [", ".join(several) + rest for rest, several in names.items()]


def _score_table(outcome: Outcome) -> Table:
    level = outcome.settings.get("level")
    interval = f"{level:g}% interval" if level is not None else ""
    system, other = outcome.system, outcome.other
    table = Table("", title=f"images: {outcome.counts['images']:,}", title_justify="left")
    heads = (
        ["score", interval] if other is None else ["score", "other", "difference", interval, "p"]
    )
    for head in heads:
        if head and (head != "p" or outcome.comparison):
            table.add_column(head, justify="right")
    for name, value in system.scores.values.items():
        cells = [name, f"{value:.2f}"]
        ends = system.intervals.get(name)
        if other is not None:
            compared = outcome.comparison.get(name)
            second = other.scores.values.get(name)
            ends = None if compared is None else compared.interval
            cells += ["-", "-"] if second is None else [f"{second:.2f}", f"{value - second:+.2f}"]
        if ends is not None:
            cells.append(" to ".join(f"{end:{'.2f' if other is None else '+.2f'}}" for end in ends))
        if other is not None and name in outcome.comparison:
            cells.append(f"{outcome.comparison[name].p:.3f}")
        table.add_row(*cells)
    return table


def _statistics_table(outcome: Outcome) -> Table:
    table = Table("captions", title_justify="left")
    systems = [system for system in (outcome.system, outcome.other) if system is not None]
    for head in ("", "other")[: len(systems)]:
        table.add_column(head, justify="right")
    columns = [_statistics(system.statistics) for system in systems]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _statistics(facts: Diversity) -> dict[str, str]:
    lines = {
        "words, mean": f"{facts.mean_length:.2f}",
        "words, fewest to most": f"{facts.shortest} to {facts.longest}",
        "different words": f"{facts.vocabulary:,}",
        "different captions": f"{100 * facts.distinct:.1f}%",
        "not in the training captions": "" if facts.novel is None else f"{100 * facts.novel:.1f}%",
        "ending in 'a', 'of' and the like": f"{100 * facts.bad_endings:.1f}%",
        "distinct-1": f"{facts.distinct_1:.4f}",
        "distinct-2": f"{facts.distinct_2:.4f}",
    }
    return {name: text for name, text in lines.items() if text}


def check_outputs(outputs: Mapping[str, str | None], inputs: Sequence[str | None]) -> None:
    """Refuses files that could not be written, before any work is done.

    Args:
        outputs: The file by its option.
        inputs: Files that must not be written over.

    Raises:
        ValueError: A folder does not exist, an ending is unknown, or a file is named twice.
    """
    taken = {Path(path).resolve() for path in inputs if path is not None}
    for option, name in outputs.items():
        if name is None:
            continue
        path = Path(name)
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError(f"{option}: {name} cannot be written: it is a folder or in none")
        if option == "--per-image" and path.suffix.lower() not in PER_IMAGE:
            raise ValueError(f"--per-image: {name} must end in {', '.join(PER_IMAGE)}")
        if path.resolve() in taken:
            raise ValueError(f"{option}: {name} is another file of this command already")
        taken.add(path.resolve())


def write_scores(path: str, scores: Scores) -> None:
    """Writes the scores as one flat JSON object, of 100."""
    write_output(path, _json(dict(scores.values)))


def write_per_image(path: str, scores: Scores) -> None:
    """Writes the scores of every image, of 100, as the ending of the file says."""
    names = list(scores.per_image)
    columns = [scores.per_image[name].tolist() for name in names]
    rows = list(zip(scores.ids, *columns, strict=True))
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        text = _json({identity: dict(zip(names, row, strict=True)) for identity, *row in rows})
    elif suffix == ".jsonl":
        keys = ("image_id", *names)
        text = "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)
    else:
        buffer = io.StringIO()
        table = csv.writer(buffer, lineterminator="\n")
        table.writerow(["image_id", *names])
        table.writerows(rows)
        text = buffer.getvalue()
    write_output(path, text)


def write_report(path: str, outcome: Outcome) -> None:
    """Writes everything as JSON."""
    report = {
        **_system(outcome.system),
        "references": outcome.references,
        "counts": dict(outcome.counts),
        "settings": dict(outcome.settings),
        "not_computed": dict(outcome.not_computed),
    }
    if outcome.other is not None:
        report["other"] = _system(outcome.other)
        report["comparison"] = {
            name: asdict(compared) for name, compared in outcome.comparison.items()
        }
    write_output(path, _json(report))


def _system(system: System) -> dict[str, Any]:
    return {
        "results": system.path,
        "scores": dict(system.scores.values),
        "intervals": {name: list(ends) for name, ends in system.intervals.items()},
        "signatures": dict(system.scores.signatures),
        "statistics": asdict(system.statistics),
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
