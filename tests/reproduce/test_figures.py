"""Figures: marks of a row are drawn together, with the paper's differences beside ours."""

import numpy as np
import pytest

from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.tables import TABLES
from tests.reproduce.test_report import draw_figure
from tests.reproduce.tiny_ledgers import CIDER, TABLE, add_run, add_runs, runs_of

POINTS = 72


def axes_of(folder, monkeypatch, *, rows, seeds):
    """The axes of the figure of a table with the given numbers of rows and seeds."""
    table = TABLES["geometry"] if rows > len(CIDER) else TABLE
    add_runs(folder, table=table, rows=[row.label for row in table.rows[:rows]], seeds=seeds)
    figure = draw_figure(folder, monkeypatch, table.name)
    figure.draw_without_rendering()
    return figure.axes[0]


def heights(axes, values):
    """Positions of rows in points above the bottom of the figure."""
    pixels = axes.transData.transform([(0, value) for value in values])[:, 1]
    return pixels / axes.figure.dpi * POINTS


def dots_of(axes):
    """The dots of the single seeds (I, 2)."""
    found = [line.get_xydata() for line in axes.lines if line.get_marker() == "."]
    return np.concatenate(found) if found else np.empty((0, 2))


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize("rows", [2, 3, 8])
def test_dots_are_drawn_just_above_their_bar(tmp_path, monkeypatch, rows, seeds):
    axes = axes_of(tmp_path, monkeypatch, rows=rows, seeds=seeds)
    dots = dots_of(axes)
    assert len(dots) == (rows - 1) * seeds  # the base row has none
    (bars,) = axes.containers
    means, places = bars.lines[0].get_data()
    # Each dot belongs to the row below it.
    owners = np.ceil(dots[:, 1]).astype(int)
    for place, mean in zip(places, means, strict=True):
        assert dots[owners == place, 0].mean() == pytest.approx(mean)
    above = heights(axes, dots[:, 1]) - heights(axes, owners)
    size = bars.lines[0].get_markersize()
    assert (above > size / 2).all()  # not hidden by the marker of the mean
    assert (above < 1.5 * size).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_rows_have_the_same_height_in_every_figure(tmp_path, monkeypatch, rows):
    axes = axes_of(tmp_path, monkeypatch, rows=rows, seeds=3)
    below, above = sorted(heights(axes, axes.get_ylim()))
    assert (above - below) / rows == pytest.approx(28, abs=3)
    assert heights(axes, [-0.5, rows - 0.5]) == pytest.approx([above, below])


def test_single_runs_are_shown_once(tmp_path, monkeypatch):
    axes = axes_of(tmp_path, monkeypatch, rows=2, seeds=1)
    assert not len(dots_of(axes))
    (marks,) = axes.containers
    assert len(marks.lines[0].get_xdata()) == 1
    assert not marks.has_xerr  # so the legend shows no bar either


def test_layer_differences_are_relative_to_one_layer(tmp_path, monkeypatch):
    ours = {"SAN": [100.0, 101.0, 103.0, 104.5], "N-SAN": [99.0, 102.0, 103.5, 104.0]}
    # From Table 1.
    theirs = {"SAN": [123.4, 127.1, 128.6, 128.8], "N-SAN": [127.2, 129.7, 130.8, 131.1]}
    depths = [1, 2, 4, 6]
    ledger = Ledger(tmp_path)
    for run in runs_of(TABLES["layers"], range(1), None):
        model, depth = run.label.split(", L = ")
        cider = ours.get(model, [90.0] * 4)[depths.index(int(depth))]
        add_run(ledger, run, cider, [cider] * 10)
    (axes,) = draw_figure(tmp_path, monkeypatch, "layers").axes
    drawn_ours = {bars.get_label(): bars.lines[0].get_ydata() for bars in axes.containers}
    printed = {line.get_label(): line.get_xydata() for line in axes.lines}
    for model in ours:
        assert drawn_ours[model] == pytest.approx(np.subtract(ours[model], 100.0))
        places, values = printed[f"{model}, paper"].T
        assert list(places) == depths
        assert values == pytest.approx(np.subtract(theirs[model], 123.4))
