"""Figures of tables, and a page of captions of two models side by side.

The figures show differences from one row, differences over layers, or curves over epochs. Bars of
differences are their intervals, other bars standard deviations over the seeds, as in the tables.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngsan.data.pictures import PictureStore
from ngsan.html import data_uri, render
from ngsan.plots import check_ending, new_figure, save_figure
from ngsan.reproduce.ledger import Written
from ngsan.reproduce.report import Cell, Report
from ngsan.reproduce.tables import PRE_NORM
from ngsan.text.relations import RELATIONS

_OURS, _PAPER = "#a83c1b", "#3b5ba5"

_STYLES = ((_PAPER, "-"), (_OURS, "-"), (_PAPER, ":"), (_OURS, ":"))
"""Colours and lines of two models, post-norm and pre-norm."""

_ASIDE = 0.04
"""Offset, in layers, of bars that would hide one another."""

_ROW, _AROUND = 0.4, 1.05
"""Inches per row, and for everything above and below the rows."""

_ABOVE = 0.2
"""Offset, in rows, of dots above the bar, which would hide them."""

_INTERVAL = "ours: mean and 95 % interval; dots: seeds"


def draw(report: Report, path: str | Path) -> None:
    """Plots a table with at least one finished row as .png, .pdf or .svg.

    Raises:
        ValueError: The file's ending is unknown, or Matplotlib is missing.
    """
    to = check_ending(path)
    figure = new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    _KINDS[report.table.figure](axes, report)
    # Curves are always of the validation split.
    split = "validation" if report.table.figure == "curves" else report.split
    # Over the whole figure: beside long labels the axes may be too narrow.
    figure.suptitle(f"{report.table.title} ({split})", x=0.01, ha="left", fontsize=11)
    # Below the axes, where it does not look like a row.
    figure.legend(loc="outside lower left", frameon=False, ncols=2, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, to)


def _differences(axes: Any, report: Report) -> None:
    """The main metric of each row minus its base row's: ours with the interval, and the paper's."""
    metric = report.table.metric
    places = {line.label: place for place, line in enumerate(report.lines)}
    found = {each.label: each for each in reversed(report.differences)}  # the first of each row
    bases = {label for label in places if label not in found}
    shown = [found[label] for label in places if label in found]
    axes.axvline(0, color="0.8", linewidth=1, zorder=0)
    axes.plot([0] * len(bases), [places[label] for label in bases], "o", color="0.6")
    heights = [places[each.label] for each in shown]
    ours = [each.mean for each in shown]
    several = any(each.interval for each in shown)
    # Half of the interval; NaN, which draws no bar, without one.
    bars = [(each.interval[1] - each.mean) if each.interval else math.nan for each in shown]
    label = _INTERVAL if several else "ours; no interval with so few seeds"
    axes.errorbar(
        ours, heights, xerr=bars if several else None, fmt="o", color=_OURS, capsize=3, label=label
    )
    for each, height in zip(shown, heights, strict=True):
        if len(each.values) > 1:
            above = [height - _ABOVE] * len(each.values)
            axes.plot(each.values, above, ".", color=_OURS, alpha=0.6, markersize=5)
    cells = {line.label: line.cells[metric] for line in report.lines}
    known = [
        (paper - theirs, height)
        for each, height in zip(shown, heights, strict=True)
        if (paper := cells[each.label].paper) is not None
        and (theirs := cells[each.base].paper) is not None
    ]
    if known:
        axes.plot(*zip(*known, strict=True), "D", color=_PAPER, fillstyle="none", label="paper")
    axes.set_yticks(list(places.values()), list(places))
    axes.set_ylim(len(places) - 0.5, -0.5)  # the first on top
    # Rows have the same height in every figure, so that dots are close to their bars.
    axes.figure.set_figheight(_AROUND + _ROW * len(places))
    others = {each.base for each in shown}
    if len(others) == 1:
        (base,) = others
        axes.set_xlabel(f"{metric} less that of {base} ({cells[base].mean:.1f})")
    else:
        axes.set_xlabel(f"difference of {metric}")


def _base(report: Report) -> Cell:
    """The main metric of the base row."""
    found = next(line for line in report.lines if line.label == report.base)
    return found.cells[report.table.metric]


def _paper(cells: Sequence[tuple[int, Cell]], base: Cell) -> list[tuple[int, float]]:
    """Positions and the paper's differences from the base row, where it prints both."""
    if base.paper is None:
        return []
    return [(place, cell.paper - base.paper) for place, cell in cells if cell.paper is not None]


def _spread(cell: Cell) -> float:
    """Half the length of a bar; NaN, which draws no bar, for a single run."""
    return math.nan if cell.deviation is None else cell.deviation


def _layers(axes: Any, report: Report) -> None:
    """The main metric minus the base row's over the number of layers, one line per model."""
    metric = report.table.metric
    base = _base(report)
    models: dict[str, list[tuple[int, Cell]]] = {}
    for line in report.lines:
        model, _, layers = line.label.partition(", L = ")
        models.setdefault(model, []).append((int(layers), line.cells[metric]))
    for number, (model, found) in enumerate(models.items()):
        colour, style = _STYLES[number % len(_STYLES)]
        aside = _ASIDE * (2 * number - len(models) + 1)
        axes.errorbar(
            [layers + aside for layers, _ in found],
            [cell.mean - base.mean for _, cell in found],
            yerr=[_spread(cell) for _, cell in found],
            fmt=f"o{style}",
            color=colour,
            capsize=3,
            label=model,
        )
        known = [] if model.endswith(PRE_NORM) else _paper(found, base)
        if known:
            label = f"{model}, paper"
            axes.plot(*zip(*known, strict=True), "D--", color=colour, fillstyle="none", label=label)
    several = any(cell.deviation is not None for found in models.values() for _, cell in found)
    axes.set_xticks(sorted({layers for found in models.values() for layers, _ in found}))
    axes.set_xlabel("layers, L" + (" (bars: standard deviation)" if several else ""))
    axes.set_ylabel(f"{metric} less that of {report.base} ({base.mean:.1f})")


def _curves(axes: Any, report: Report) -> None:
    """The main metric on the validation split over the epochs, one line per seed."""
    for place, line in enumerate(report.lines):
        colour, style = _STYLES[place % len(_STYLES)]
        for number, curve in enumerate(line.curves):
            label = line.label if number == 0 else None
            epochs = range(1, len(curve) + 1)
            axes.plot(
                epochs, curve, f"o{style}", color=colour, label=label, markersize=3, alpha=0.8
            )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch")
    axes.set_ylabel(report.table.metric)


_KINDS: dict[str, Callable[[Any, Report], None]] = {
    "differences": _differences,
    "layers": _layers,
    "curves": _curves,
}
"""The plots by the name of `Table.figure`."""


@dataclass(frozen=True)
class Example:
    """An image for which two models state different relations."""

    image: str
    """Its id."""

    captions: Mapping[str, str]
    """By model."""

    cider: Mapping[str, float]
    """By model."""


def choose_examples(written: Mapping[str, Written], max_examples: int = 48) -> list[Example]:
    """Images for which two models state different relations, half of them won by either.

    Args:
        written: The outputs of the two models for the same images, by model.
        max_examples: The maximum number of images.
    """
    (first, mine), (second, its) = written.items()
    found = []
    for image, text, other, (score,), (its_score,) in zip(
        mine.ids, mine.texts, its.texts, mine.scores, its.scores, strict=True
    ):
        if _relations(text) != _relations(other):
            captions, cider = {first: text, second: other}, {first: score, second: its_score}
            found.append(Example(image, captions, cider))
    found.sort(key=lambda example: example.cider[second] - example.cider[first])
    if len(found) <= max_examples:
        return found[::-1]
    half = max_examples // 2
    return [*found[: -half - 1 : -1], *found[: max_examples - half]]


def _relations(text: str) -> list[str]:
    return sorted(word for word in text.split() if word in RELATIONS)


def examples_page(
    examples: Sequence[Example],
    references: Mapping[str, Sequence[str]],
    pictures: PictureStore | None,
    *,
    models: Sequence[str],
    compared: int,
) -> str:
    """The page of examples as HTML.

    Args:
        examples: From `choose_examples`.
        references: Reference captions by image.
        pictures: The photographs, or None to show none.
        models: The names of the two models.
        compared: Images that both models captioned.
    """
    thumbnails = {}
    if pictures is not None:
        images = [example.image for example in examples if example.image in pictures]
        thumbnails = {image: _thumbnail(pictures.read(image)) for image in images}
    return render(
        "relation_examples.html.j2",
        examples=examples,
        references=references,
        thumbnails=thumbnails,
        relations=RELATIONS,
        models=models,
        compared=compared,
    )


def _thumbnail(content: bytes) -> str:
    from PIL import Image

    thumbnail = Image.open(io.BytesIO(content)).convert("RGB")
    thumbnail.thumbnail((420, 420))
    file = io.BytesIO()
    thumbnail.save(file, "JPEG", quality=80)
    return data_uri(file.getvalue(), "image/jpeg")
