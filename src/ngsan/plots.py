"""Figures, drawn with Matplotlib."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENDINGS = (".png", ".pdf", ".svg")
"""What a figure's file may end with."""


@dataclass(frozen=True)
class Curve:
    """A metric over the epochs of one run."""

    label: str
    """The run's name."""

    epochs: tuple[float, ...]
    """In rising order."""

    values: tuple[float, ...]
    """The metric at the end of each."""


def read_curve(path: str | Path, metric: str, label: str | None = None) -> Curve:
    """Reads a metric by epoch from a training log.

    Args:
        path: JSON lines: objects with "epoch" and the metric's name, at the top or under
            "metrics". Other lines are passed over. An epoch that was logged twice, as after a run
            that was taken up again, counts as it was logged last.
        metric: Such as "CIDEr".
        label: The run's name; None for the file's, or its folder's if the file's says nothing.

    Raises:
        ValueError: A line is no JSON object, or no line has the metric; names those there are.
    """
    path = Path(path)
    points: dict[float, float] = {}
    known: dict[str, None] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a log, which is text: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break  # the line that a run is writing, or was when it was killed
            raise ValueError(f"{path}:{number}: not a line of JSON: {error}") from error
        if not isinstance(entry, dict):
            raise ValueError(f"{path}:{number}: expected an object, not {line[:40]}")
        values = {**entry, **_mapping(entry.get("metrics"))}
        epoch = _number(values.get("epoch"))
        if epoch is None:
            continue
        numbers = (name for name, value in values.items() if _number(value) is not None)
        known.update(dict.fromkeys(name for name in numbers if name != "epoch"))
        value = _number(values.get(metric))
        if value is not None:
            points[epoch] = value
    if not points:
        there = f"; there are {', '.join(known)}" if known else ""
        raise ValueError(f"{path}: no line has an epoch and {metric!r}{there}")
    name = path.stem if path.stem not in ("log", "metrics", "train") else path.parent.name
    epochs = tuple(sorted(points))
    return Curve(label or name, epochs, tuple(points[epoch] for epoch in epochs))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def plot_curves(curves: Mapping[str, Sequence[Curve]], to: str | Path, *, title: str = "") -> None:
    """Draws metrics by epoch, a panel a metric and a line a run (Figure 3 of the paper).

    Args:
        curves: The runs' curves by metric.
        to: The file to write; its ending chooses the format.
        title: Above the figure.

    Raises:
        ValueError: There is nothing to draw, the ending is unknown, or Matplotlib is missing.
    """
    to = Path(to)
    if to.suffix.lower() not in ENDINGS:
        raise ValueError(f"{to}: a figure's name ends with one of {', '.join(ENDINGS)}")
    if not curves:
        raise ValueError("there is no curve to draw")
    figure, panels = _panels(len(curves))
    for panel, (metric, runs) in zip(panels, curves.items(), strict=True):
        for run, marker in zip(runs, "os^Dv*XP" * len(runs), strict=False):
            panel.plot(run.epochs, run.values, marker=marker, markersize=4, label=run.label)
        panel.set_xlabel("epoch")
        panel.set_ylabel(metric)
        panel.grid(visible=True, alpha=0.3)
        panel.xaxis.get_major_locator().set_params(integer=True)
        if len(runs) > 1 or runs[0].label:
            panel.legend()
    if title:
        figure.suptitle(title)
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, dpi=150)


def _panels(count: int) -> tuple[Any, list[Any]]:
    """A figure with panels side by side; made without a window, and without global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError('figures need Matplotlib: pip install "ngsan[plots]"') from error
    figure = Figure(figsize=(4.8 * count, 3.6), layout="constrained")
    return figure, [figure.add_subplot(1, count, index + 1) for index in range(count)]
