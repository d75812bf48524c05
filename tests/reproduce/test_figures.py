"""In figures everything of a row sits together, and the paper's differences stand beside ours."""

import numpy as np
import pytest

from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.tables import TABLES
from tests.reproduce.test_report import drawn
from tests.reproduce.tiny_ledgers import TABLE, enter, enter_run, runs_of

POINTS = 72


def axes_of(folder, monkeypatch, *, rows, seeds):
    """The figure of a table of so many rows and seeds, with everything in its place."""
    table = TABLES["geometry"] if rows > len(TABLE.rows) else TABLE
    enter(folder, table=table, rows=[row.label for row in table.rows[:rows]], seeds=seeds)
    figure = drawn(folder, monkeypatch, table.name)
    figure.draw_without_rendering()
    return figure.axes[0]


def heights(axes, values):
    """Places of rows in points above the figure's foot."""
    pixels = axes.transData.transform([(0, value) for value in values])[:, 1]
    return pixels / axes.figure.dpi * POINTS


def dots_of(axes):
    """(I, 2) the single seeds."""
    found = [line.get_xydata() for line in axes.lines if line.get_marker() == "."]
    return np.concatenate(found) if found else np.empty((0, 2))


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_dots_stand_just_above_their_bar(tmp_path, monkeypatch, rows, seeds):
    axes = axes_of(tmp_path, monkeypatch, rows=rows, seeds=seeds)
    dots = dots_of(axes)
    assert len(dots) == rows * seeds
    (bars,) = axes.containers
    means, places = bars.lines[0].get_data()
    # Each belongs to the row below it, whose mean is theirs.
    owners = np.ceil(dots[:, 1]).astype(int)
    for place, mean in zip(places, means, strict=True):
        assert dots[owners == place, 0].mean() == pytest.approx(mean)
    above = heights(axes, dots[:, 1]) - heights(axes, owners)
    size = bars.lines[0].get_markersize()
    assert (above > size / 2).all()  # not hidden by the mean's mark
    assert (above < 1.5 * size).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_rows_have_the_same_room_in_every_figure(tmp_path, monkeypatch, rows):
    axes = axes_of(tmp_path, monkeypatch, rows=rows, seeds=3)
    below, above = sorted(heights(axes, axes.get_ylim()))
    assert (above - below) / rows == pytest.approx(28, abs=3)
    assert heights(axes, [-0.5, rows - 0.5]) == pytest.approx([above, below])


def test_single_runs_are_shown_once(tmp_path, monkeypatch):
    axes = axes_of(tmp_path, monkeypatch, rows=2, seeds=1)
    assert not len(dots_of(axes))
    (marks,) = axes.containers
    assert len(marks.lines[0].get_xdata()) == 2
    assert not marks.has_xerr  # nor does the legend show a bar


def test_layers_are_compared_with_one_as_in_the_paper(tmp_path, monkeypatch):
    ours = {"SAN": [100.0, 101.0, 103.0, 104.5], "N-SAN": [99.0, 102.0, 103.5, 104.0]}
    # Table 1 prints these.
    theirs = {"SAN": [123.4, 127.1, 128.6, 128.8], "N-SAN": [127.2, 129.7, 130.8, 131.1]}
    depths = [1, 2, 4, 6]
    ledger = Ledger(tmp_path)
    for run in runs_of(TABLES["layers"], range(1), None):
        model, depth = run.label.split(", L = ")
        cider = ours[model][depths.index(int(depth))]
        enter_run(ledger, run, cider, [cider] * 10)
    (axes,) = drawn(tmp_path, monkeypatch, "layers").axes
    drawn_ours = {bars.get_label(): bars.lines[0].get_ydata() for bars in axes.containers}
    printed = {line.get_label(): line.get_xydata() for line in axes.lines}
    for model in ours:
        assert drawn_ours[model] == pytest.approx(np.subtract(ours[model], 100.0))
        places, values = printed[f"{model}, paper"].T
        assert list(places) == depths
        assert values == pytest.approx(np.subtract(theirs[model], 123.4))
