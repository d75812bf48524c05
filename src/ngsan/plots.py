"""Figures, drawn with Matplotlib."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngsan.atomic_io import make_folder, write_output

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
    if path.is_char_device():
        raise ValueError(f"{path} is a device, not a file")
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
    """Draws metrics by epoch, a panel a metric and a line a run (Figure 2 of the paper).

    Args:
        curves: The runs' curves by metric.
        to: The file to write; its ending chooses the format.
        title: Above the figure.

    Raises:
        ValueError: There is nothing to draw, the ending is unknown, or Matplotlib is missing.
    """
    to = check_ending(to)
    if not curves:
        raise ValueError("no curve to draw")
    figure = new_figure(4.8 * len(curves), 3.6)
    panels = [figure.add_subplot(1, len(curves), index + 1) for index in range(len(curves))]
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
    save_figure(figure, to, dpi=150)


@dataclass(frozen=True)
class SurfaceRow:
    """The bias of one head over geometry, a row of the figure."""

    label: str
    """Whose it is."""

    position: Mapping[str, Sequence[Sequence[float]]]
    """By dw = dh: values over dy (rows) and dx (columns)."""

    size: Mapping[str, Sequence[Sequence[float]]]
    """By dx = dy: values over dh (rows) and dw (columns)."""


def plot_surfaces(
    rows: Sequence[SurfaceRow],
    to: str | Path,
    *,
    offsets: tuple[float, float] = (0.0, 3.0),
    ratios: tuple[float, float] = (0.0, 3.0),
    title: str = "",
) -> None:
    """Draws geometric biases, as the two figures of the paper's appendix, side by side.

    All panels share one scale of colours, which people who see few colours can read, too: from
    blue to yellow if no bias is below zero, else orange above zero and purple below. It ends at
    what 95 of 100 values reach: near a ratio of zero the logarithms of Eq. 8 run away.

    Args:
        rows: At least one, all of the same shape.
        to: The file to write; its ending chooses the format.
        offsets: First and last value of the position's axes. Where they begin below zero, the
            region that looks is in the middle, and y grows downwards as in a picture.
        ratios: First and last value of the size's axes.
        title: Above the figure.

    Raises:
        ValueError: There is nothing to draw, the ending is unknown, or Matplotlib is missing.
    """
    to = check_ending(to)
    if not rows:
        raise ValueError("no bias to draw")
    height = 1.35 * len(rows) + 1.1
    figure = new_figure(9.9, height)
    scale, beyond = _scale(rows)
    signed = offsets[0] < 0
    halves = figure.subfigures(1, 3, width_ratios=(1, 0.96, 0.19))
    position = _Half(
        "where the other region is" if signed else "how far the other region is",
        r"$\Delta w=\Delta h=$",
        (r"$(x_j-x_i)/w_i$", r"$(y_j-y_i)/h_i$")
        if signed
        else (r"$\Delta x=|x_i-x_j|/w_i$", r"$\Delta y=|y_i-y_j|/h_i$"),
        offsets,
        downwards=signed,
    )
    size = _Half(
        # Its sizes are what is divided by: the axes grow as it gets smaller.
        "how large the other region is (smaller to the right and up)",
        r"$\Delta x=\Delta y=$",
        (r"$\Delta w=w_i/w_j$", r"$\Delta h=h_i/h_j$"),
        ratios,
    )
    labels = [row.label for row in rows]
    panels = _draw(halves[0], position, [row.position for row in rows], labels, scale)
    panels += _draw(halves[1], size, [row.size for row in rows], [""] * len(rows), scale)
    room = halves[2].add_subplot()
    room.set_box_aspect(0.9 * height / 0.18)
    bar = figure.colorbar(panels[0].images[0], cax=room, extend=beyond, extendfrac=0.2 / height)
    bar.set_label("added to the score", fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2, width=0.5)
    bar.outline.set_linewidth(0.5)
    if title:
        figure.suptitle(title, fontsize=11)
    save_figure(figure, to, dpi=200)


def _scale(rows: Sequence[SurfaceRow]) -> tuple[dict[str, Any], str]:
    """The colours of all panels, and at which ends of their scale values lie beyond it."""
    surfaces = [part for row in rows for kind in (row.position, row.size) for part in kind.values()]
    values = sorted(number for part in surfaces for line in part for number in line)
    lowest, highest = values[0], values[-1]
    sizes = sorted(abs(number) for number in values)
    reach = sizes[round(0.95 * (len(sizes) - 1))] or sizes[-1] or 1.0
    if lowest >= 0:
        return {
            "cmap": "cividis",
            "vmin": 0.0,
            "vmax": reach,
        }, "max" if highest > reach else "neither"
    beyond = ("neither", "max", "min", "both")[(highest > reach) + 2 * (lowest < -reach)]
    return {"cmap": "PuOr_r", "vmin": -reach, "vmax": reach}, beyond


@dataclass(frozen=True)
class _Half:
    """What is written about one of the two figures."""

    title: str
    """Above it."""

    held: str
    """What a column holds fixed."""

    axes: tuple[str, str]
    """Under it and beside it."""

    ends: tuple[float, float]
    """First and last value of both axes."""

    downwards: bool = False
    """Whether the vertical axis grows downwards."""


def _draw(
    part: Any,
    half: _Half,
    rows: Sequence[Mapping[str, Sequence[Sequence[float]]]],
    labels: Sequence[str],
    scale: Mapping[str, Any],
) -> list[Any]:
    """Draws the panels of a half; returns them, row by row."""
    part.suptitle(half.title, fontsize=9)
    first, last = half.ends
    # Values stand in the middle of their cells, so the picture is half a cell wider all around.
    edge = (last - first) / (len(next(iter(rows[0].values()))) - 1) / 2
    extent = (first - edge, last + edge, first - edge, last + edge)
    if half.downwards:
        extent = (*extent[:2], *extent[:1:-1])
    panels = part.subplots(len(rows), len(rows[0]), sharex=True, sharey=True, squeeze=False)
    for number, (line, label, surfaces) in enumerate(zip(panels, labels, rows, strict=True)):
        for panel, (held, values) in zip(line, surfaces.items(), strict=True):
            panel.imshow(
                values,
                origin="upper" if half.downwards else "lower",
                extent=extent,
                interpolation="nearest",
                **scale,
            )
            panel.tick_params(labelsize=7, length=2, width=0.5)
            panel.set_xticks(range(int(first), int(last) + 1))
            panel.set_yticks(range(int(first), int(last) + 1))
            for side in panel.spines.values():
                side.set_linewidth(0.5)
            if number == 0:
                panel.set_title(f"{half.held}{held}", fontsize=8)
            if number == len(rows) - 1:
                panel.set_xlabel(half.axes[0], fontsize=8)
        line[0].set_ylabel(f"{label}\n{half.axes[1]}" if label else half.axes[1], fontsize=8)
    return [panel for line in panels for panel in line]


def check_ending(to: str | Path) -> Path:
    """The path of a figure.

    Raises:
        ValueError: Its ending is not one of `ENDINGS`.
    """
    to = Path(to)
    if to.suffix.lower() not in ENDINGS:
        raise ValueError(f"{to}: a figure's name ends with one of {', '.join(ENDINGS)}")
    return to


def new_figure(width: float, height: float) -> Any:
    """A figure of a size in inches, made without a window, and without global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError('figures need Matplotlib: pip install "ngsan[plots]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, to: Path, *, dpi: int = 150) -> None:
    """Writes a figure whole; its folder is made if need be."""
    content = io.BytesIO()
    figure.savefig(content, format=to.suffix.lower().removeprefix("."), dpi=dpi)
    make_folder(to.parent)
    write_output(to, content.getvalue())
