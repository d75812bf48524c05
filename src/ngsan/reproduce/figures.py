"""Figures of tables: differences from one row, also over layers, and curves over epochs.

Bars are standard deviations over the seeds, as in the tables.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ngsan.plots import check_ending, new_figure, save_figure
from ngsan.reproduce.report import Cell, Report

_OURS, _PAPER = "#a83c1b", "#3b5ba5"

_ASIDE = 0.04
"""How far, in layers, bars are moved apart that would hide one another."""

_ROW, _AROUND = 0.4, 1.05
"""Inches that each row has, and all that stands above and below the rows."""

_ABOVE = 0.2
"""How far, in rows, dots stand above the bar, which would hide them."""

_SPREAD = "ours: mean ± standard deviation; dots: seeds"


def draw(report: Report, path: str | Path) -> None:
    """Draws a table in the way that it asks for.

    Args:
        report: The table, with at least one finished row.
        path: The figure: .png, .pdf or .svg.

    Raises:
        ValueError: The file's ending is not known, or Matplotlib is missing.
    """
    to = check_ending(path)
    figure = new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    _KINDS[report.table.figure](axes, report)
    # Curves are of the validation split, whichever the table shows.
    split = "validation" if report.table.figure == "curves" else report.split
    # Over all of the figure: beside long labels the axes may be too narrow for it.
    figure.suptitle(f"{report.table.title} ({split})", x=0.01, ha="left", fontsize=11)
    # Below the axes, where it cannot be taken for a row.
    figure.legend(loc="outside lower left", frameon=False, ncols=2, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, to)


def _differences(axes: Any, report: Report) -> None:
    """The main metric of each row less that of one: ours with its spread, and the paper's."""
    metric = report.table.metric
    base = _base(report)
    cells = [line.cells[metric] for line in report.lines]
    places = range(len(cells))
    axes.axvline(0, color="0.8", linewidth=1, zorder=0)
    ours = [cell.mean - base.mean for cell in cells]
    several = any(cell.deviation is not None for cell in cells)
    spread = [_spread(cell) for cell in cells] if several else None
    told = _SPREAD if several else "ours, a run each"
    axes.errorbar(ours, places, xerr=spread, fmt="o", color=_OURS, capsize=3, label=told)
    for place, cell in enumerate(cells if several else ()):
        values = [value - base.mean for value in cell.values]
        heights = [place - _ABOVE] * len(values)
        axes.plot(values, heights, ".", color=_OURS, alpha=0.6, markersize=5)
    known = _paper(list(zip(places, cells, strict=True)), base)
    if known:
        found, printed = zip(*known, strict=True)
        axes.plot(printed, found, "D", color=_PAPER, fillstyle="none", label="paper")
    axes.set_yticks(places, [line.label for line in report.lines])
    axes.set_ylim(len(cells) - 0.5, -0.5)  # the first on top
    # Rows are as high in every figure, so that dots are as near to their bars.
    axes.figure.set_figheight(_AROUND + _ROW * len(cells))
    axes.set_xlabel(f"{metric} less that of {report.base} ({base.mean:.1f})")


def _base(report: Report) -> Cell:
    """The main metric of the row that others are compared with."""
    found = next(line for line in report.lines if line.label == report.base)
    return found.cells[report.table.metric]


def _paper(cells: Sequence[tuple[int, Cell]], base: Cell) -> list[tuple[int, float]]:
    """Places and the paper's differences from one row, where it prints both."""
    if base.paper is None:
        return []
    return [(place, cell.paper - base.paper) for place, cell in cells if cell.paper is not None]


def _spread(cell: Cell) -> float:
    """Half the length of a bar; not a number, and so no bar, of a single run."""
    return math.nan if cell.deviation is None else cell.deviation


def _layers(axes: Any, report: Report) -> None:
    """The main metric less that of one row over the number of layers, a line a model."""
    metric = report.table.metric
    base = _base(report)
    models: dict[str, list[tuple[int, Cell]]] = {}
    for line in report.lines:
        model, _, layers = line.label.partition(", L = ")
        models.setdefault(model, []).append((int(layers), line.cells[metric]))
    for (model, found), colour, aside in zip(
        models.items(), (_PAPER, _OURS), (-_ASIDE, _ASIDE), strict=False
    ):
        axes.errorbar(
            [layers + aside for layers, _ in found],
            [cell.mean - base.mean for _, cell in found],
            yerr=[_spread(cell) for _, cell in found],
            fmt="o-",
            color=colour,
            capsize=3,
            label=model,
        )
        known = _paper(found, base)
        if known:
            told = f"{model}, paper"
            axes.plot(*zip(*known, strict=True), "D--", color=colour, fillstyle="none", label=told)
    several = any(cell.deviation is not None for found in models.values() for _, cell in found)
    axes.set_xticks(sorted({layers for found in models.values() for layers, _ in found}))
    axes.set_xlabel("layers, L" + (" (bars: standard deviation)" if several else ""))
    axes.set_ylabel(f"{metric} less that of {report.base} ({base.mean:.1f})")


def _curves(axes: Any, report: Report) -> None:
    """The main metric on the validation split over the epochs, a line a seed."""
    for line, colour in zip(report.lines, (_PAPER, _OURS), strict=False):
        for number, curve in enumerate(line.curves):
            label = line.label if number == 0 else None
            epochs = range(1, len(curve) + 1)
            axes.plot(epochs, curve, "o-", color=colour, label=label, markersize=3, alpha=0.8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch")
    axes.set_ylabel(report.table.metric)


_KINDS: dict[str, Callable[[Any, Report], None]] = {
    "differences": _differences,
    "layers": _layers,
    "curves": _curves,
}
"""What is drawn, by the name that tables have for it."""
