"""What is said of a training run, in words and rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ngsan.train.log import Entry

_MEASURES: Mapping[str, Callable[[float], str]] = {
    "loss": "loss {:6.3f}".format,
    "rate": "rate {:.3g}".format,
    "images_per_second": "{:,.0f} images/s".format,
    "tokens_per_second": "{:,.0f} tokens/s".format,
    "questions_per_second": "{:,.0f} questions/s".format,
    "seconds_left": lambda seconds: f"{_clock(seconds)} left",
    "reward": "reward {:.3f}".format,
    "greedy_reward": "greedy {:.3f}".format,
    "length": "length {:.1f}".format,
    "entropy": "entropy {:.2f}".format,
}
"""How what is measured of the training is said."""

_METRICS = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "CIDEr-D", "SPICE")
"""What is shown of the metrics; if a run has none of them, its first four are."""

_WIDTHS = {"epoch": 5, "phase": 13, "loss": 6, "reward": 6, "best": 4, "time": 7}
"""Widths of columns; a metric's is six, or its name's."""

_DISPENSABLE = ("time", "METEOR", "SPICE", "ROUGE-L", "phase", "reward", "loss", "BLEU-4")
"""Columns that a narrow terminal does without, the first to go first."""


def measures(entry: Entry, names: Sequence[str]) -> list[str]:
    """Measures of an entry in words; those that it lacks are left out."""
    found = []
    for name in names:
        value = entry.get(name)
        if isinstance(value, int | float):
            found.append(_MEASURES[name](value))
    return found


def row_cells(entry: Entry, epoch: object, phase: object, *, rewarded: bool) -> dict[str, str]:
    """The cells of an epoch's row by their heads."""
    cells = {"epoch": "-" if epoch is None else str(epoch), "phase": str(phase or "-")}
    cells["loss"] = _number(entry.get("loss"), ".3f")
    if rewarded:
        cells["reward"] = _number(entry.get("reward"), ".3f")
    cells |= _metrics(entry.get("metrics"))
    seconds = entry.get("seconds")
    is_short = isinstance(seconds, int | float) and seconds < 60
    cells["best"] = "best" if entry.get("best") else ""
    cells["time"] = f"{seconds:.1f} s" if is_short else _clock(seconds)
    return cells


def _metrics(metrics: Mapping[str, Any] | None) -> dict[str, str]:
    """The metrics that are shown, by name."""
    metrics = metrics or {}
    names = [name for name in _METRICS if name in metrics] or list(metrics)[:4]
    return {name: _number(metrics[name], ".2f") for name in names}


def _width(head: str) -> int:
    return _WIDTHS.get(head, max(6, len(head)))


def fit(heads: list[str], room: int) -> tuple[list[str], int]:
    """The columns that have room, and the gap between them."""
    for head in ("", *_DISPENSABLE):
        heads = [name for name in heads if name != head]
        for gap in (2, 1):
            if sum(_width(name) for name in heads) + gap * (len(heads) - 1) <= room:
                return heads, gap
    return heads, 1


def aligned(cells: Mapping[str, str], gap: int) -> str:
    """A row: words to the left, numbers to the right."""
    words = ("phase", "best")
    parts = (
        cell.ljust(_width(head)) if head in words else cell.rjust(_width(head))
        for head, cell in cells.items()
    )
    return (" " * gap).join(parts).rstrip()


def start_lines(entry: Entry) -> list[str]:
    """What is trained, on what, and how long."""
    lines = [str(entry.get("model", "a model"))]
    if entry.get("parameters") is not None:
        lines[0] += f", {entry['parameters'] / 1e6:.1f} M parameters"
    if entry.get("device") is not None:
        lines[0] += f", on {entry['device']}"
    if (entry.get("processes") or 1) > 1:
        lines[0] += f" in {entry['processes']} processes"
    if entry.get("precision") is not None:
        lines[0] += f", {entry['precision']}"
    units = [unit for unit in ("images", "sentences", "questions") if entry.get(unit)]
    counts = [("{} " + unit, unit) for unit in units]
    counts += [("{} for validation", f"validation_{unit}") for unit in units]
    found = [form.format(f"{entry[key]:,}") for form, key in counts if entry.get(key)]
    plan = [
        f"{part.get('phase')}: {part.get('epochs')} epochs of {part.get('steps')} steps"
        for part in entry.get("phases") or ()
        if part.get("epochs") != 0
    ]
    lines += [", ".join(found), ", then ".join(plan)]
    if entry.get("resumed_at") is not None:
        lines.append(f"goes on after step {entry['resumed_at']:,}")
    return [line for line in lines if line]


def end_lines(entry: Entry) -> list[str]:
    """The best that was reached, and where it is."""
    lines = []
    best: Mapping[str, Any] = entry.get("best") or {}
    scores = ", ".join(f"{name} {value}" for name, value in _metrics(best.get("metrics")).items())
    if best:
        # Weights that were averaged are of no one epoch.
        which = f"epoch {best['epoch']}" if best.get("epoch") else "averaged weights"
        lines.append(f"best: {best.get('phase')}, {which}: {scores}")
    lines.append(f"done in {_clock(entry.get('seconds'))}")
    if entry.get("model"):
        lines[-1] += f"; the model is {entry['model']}"
    return lines


def _number(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else "-"


def _clock(seconds: object) -> str:
    """Seconds as 5:12 or 1:05:12."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
