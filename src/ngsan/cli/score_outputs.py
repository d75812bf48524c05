"""What `ngsan score` prints and writes."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ngsan.atomic_io import write_output
from ngsan.cli.output import open_console, say
from ngsan.metrics.diversity import Diversity
from ngsan.metrics.scores import Comparison, Scores
from ngsan.metrics.translation import TranslationScore

if TYPE_CHECKING:
    from rich.console import Console

PER_IMAGE = (".json", ".jsonl", ".csv")
"""Endings of files of scores per image."""

Intervals = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class System:
    """One system's scores."""

    path: str
    scores: Scores
    intervals: Intervals
    """By name of the score; empty without resamples."""
    statistics: Diversity


@dataclass(frozen=True)
class Outcome:
    """All results of a run."""

    system: System
    other: System | None
    """The one it is compared with."""
    comparison: Mapping[str, Comparison]
    """By name of the score; empty without another system or without resamples."""
    not_computed: Mapping[str, str]
    """Why other metrics were not computed, by name."""
    references: str
    counts: Mapping[str, int]
    """Images and references, in the files and scored."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Of the intervals."""


def print_outcome(console: "Console", outcome: Outcome) -> None:
    """Prints scores, statistics, what is missing, and signatures."""
    console.print(_score_table(outcome))
    console.print(_statistics_table(outcome))
    counts, scored = outcome.counts, outcome.counts["images"]
    for key, path in (
        ("images_with_references", outcome.references),
        ("images_with_results", outcome.system.path),
    ):
        if scored < counts[key]:
            say(console, f"{scored:,} of {counts[key]:,} images of {path} are scored")
    for name, reason in outcome.not_computed.items():
        say(console, f"{name} is not computed: {reason}")
    for line in _signatures(outcome.system.scores):
        say(console, line, style="dim")


def _signatures(scores: Scores) -> list[str]:
    """The signatures; scores that were computed in the same way share a line."""
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
        "words, min to max": f"{facts.min_length} to {facts.max_length}",
        "different words": f"{facts.vocabulary:,}",
        "different captions": f"{100 * facts.distinct:.1f}%",
        "new (not a training caption)": "" if facts.novel is None else f"{100 * facts.novel:.1f}%",
        "ending in 'a', 'of', ...": f"{100 * facts.bad_endings:.1f}%",
        "distinct-1": f"{facts.distinct_1:.4f}",
        "distinct-2": f"{facts.distinct_2:.4f}",
    }
    return {name: text for name, text in lines.items() if text}


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


def write_report(path: str, outcome: Outcome, subset: Outcome | None = None) -> None:
    """Writes everything as JSON, and what is of a subset only under that key."""
    report = _outcome(outcome)
    if subset is not None:
        report["subset"] = _outcome(subset)
    write_output(path, _json(report))


def _outcome(outcome: Outcome) -> dict[str, Any]:
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
    return report


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


def write_translation_scores(path: str, scores: Sequence[TranslationScore]) -> None:
    """Writes scores of translations as JSON."""
    write_output(path, _json([_translation_values(score) for score in scores]))


def _translation_values(score: TranslationScore) -> dict[str, Any]:
    return {
        "name": score.name,
        "score": score.value,
        "signature": score.signature,
        "precisions": list(score.precisions),
        "brevity_penalty": score.brevity_penalty,
        "length": score.length,
        "reference_length": score.reference_length,
    }


def print_translation_scores(scores: Sequence[TranslationScore], lacks: str = "") -> None:
    """Prints scores with their signatures, and why tokenised BLEU is missing if it is."""
    console = open_console(results=True)
    table = Table("score", title_justify="left")
    for name in ("of 100", "1", "2", "3", "4", "brevity", "length ratio"):
        table.add_column(name, justify="right")
    for score in scores:
        ratio = score.length / max(1, score.reference_length)
        table.add_row(
            score.name,
            f"{score.value:.2f}",
            *(f"{value:.1f}" for value in score.precisions),
            f"{score.brevity_penalty:.3f}",
            f"{ratio:.3f}",
        )
    console.print(table)
    for score in scores:
        say(console, f"{score.name}: {score.signature}")
    if lacks:
        say(console, f"tokenised BLEU is not computed: {lacks}")
