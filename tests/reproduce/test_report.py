"""Reports from a ledger without its data, or without the runs' outputs."""

import csv
import dataclasses
import shutil
import statistics

import pytest

from ngsan.__main__ import main
from ngsan.config import read_recipe
from ngsan.reproduce import figures
from ngsan.reproduce.ledger import LEDGER, Ledger
from ngsan.reproduce.report import _p_text, _signed
from ngsan.reproduce.runs import fitted_to_ledger
from ngsan.reproduce.tables import TABLES
from tests.reproduce.tiny_ledgers import CIDER, TABLE, add_runs, difference_rows, report, table_text


def test_report_needs_only_the_ledger(tmp_path):
    add_runs(tmp_path)
    assert report(tmp_path) == 0
    with (tmp_path / f"{TABLE.name}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "CIDEr" and row["value"]]
    found = {(row["row"], row["seed"]): float(row["value"]) for row in rows}
    assert found == {
        (label, str(seed)): value
        for label, values in CIDER.items()
        for seed, value in enumerate(values)
    }
    text = (tmp_path / f"{TABLE.name}.md").read_text()
    for values in CIDER.values():
        assert f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" in text
    assert "24 runs are not finished" in text  # of ten rows with three seeds


def test_report_without_outputs_has_no_test_over_images(tmp_path):
    add_runs(tmp_path, seeds=3)
    assert report(tmp_path) == 0
    whole = difference_rows(tmp_path)
    assert float(whole["N-SAN − SAN"][-1]) < 1
    shutil.rmtree(tmp_path / "written")
    assert report(tmp_path) == 0
    assert difference_rows(tmp_path) == {name: [*row[:-1], ""] for name, row in whole.items()}


def test_ledger_with_several_datasets_needs_data(tmp_path, capsys):
    add_runs(tmp_path)
    add_runs(tmp_path, data="flickr", rows=("SAN",))
    assert report(tmp_path) == 2
    assert "trained on 2 sets of data; choose one with --data DIR" in capsys.readouterr().err


def test_run_without_task_is_ignored(tmp_path):
    add_runs(tmp_path)
    ledger = Ledger(tmp_path)
    ledger.add(dataclasses.replace(next(iter(ledger)), key="a" * 12, settings={}), {})
    assert report(tmp_path) == 0
    assert "24 runs are not finished" in table_text(tmp_path)


def test_data_sizes_come_from_the_ledger(tmp_path):
    add_runs(tmp_path, feature_dim=17)
    fitted = fitted_to_ledger(read_recipe("reproduce"), Ledger(tmp_path))
    assert (fitted.config.model.vocab_size, fitted.config.model.feature_dim) == (50, 17)
    assert fitted.data == {"train": "coco"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0004, "< 0.001"), (0.0006, "0.001"), (0.0, "< 0.001"), (1, "1.000")],
)
def test_p_value_text(value, text):
    assert _p_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0"), (-0.04, "0.0"), (0.06, "+0.1"), (-12.34, "-12.3")]
)
def test_difference_text(value, text):
    assert _signed(value) == text


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("vqa", [], "it has no finished run of the task answering"),
        ("norms-cross-entropy", ["--cross_entropy.epochs=9"], "no run of table norms-cross"),
        ("examples", [], "--data is missing; pass the dataset folder"),
        ("weights", [], "weights needs runs that are not finished"),
    ],
)
def test_report_errors_without_data(tmp_path, capsys, name, words, message):
    add_runs(tmp_path)
    assert report(tmp_path, *words, name=name) == 2
    assert message in capsys.readouterr().err


def test_runs_without_data_raise(tmp_path, capsys):
    assert main(["reproduce", TABLE.name, "--output", str(tmp_path)]) == 2
    assert "--data is missing; pass the dataset folder" in capsys.readouterr().err


def test_numbers_are_not_cut_on_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    label = "ORT with its box-scale bug"
    add_runs(tmp_path, table=TABLES["others"], rows=("SAN", label))
    assert report(tmp_path, name="others") == 0
    shown = capsys.readouterr().out
    for text in ("102.0 ± 1.4", "108.5 ± 0.7", "128.3", "p, seeds", "box-scale bug"):
        assert text in shown
    assert "…" not in shown


def draw_figure(folder, monkeypatch, name, *words):
    """Draws the figure of a table."""
    found = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, to: found.append(figure))
    assert report(folder, *words, name=name) == 0
    return found[0]


def test_curve_title_names_the_split(tmp_path, monkeypatch):
    add_runs(tmp_path, table=TABLES["curve"], rows=("SAN", "N-SAN"))
    figure = draw_figure(tmp_path, monkeypatch, "curve", "--split", "test")
    assert figure.get_suptitle() == "One-layer SAN and N-SAN by epoch (validation)"


@pytest.mark.parametrize(
    ("seeds", "label_text"), [(2, "ours; no interval"), (3, "ours: mean and 95 % interval")]
)
def test_legend_without_intervals_says_so(tmp_path, monkeypatch, seeds, label_text):
    add_runs(tmp_path, seeds=seeds)
    figure = draw_figure(tmp_path, monkeypatch, TABLE.name)
    (legend,) = figure.legends
    assert any(text.get_text().startswith(label_text) for text in legend.get_texts())


@pytest.mark.parametrize(
    ("seeds", "label_text"), [(1, "layers, L"), (2, "layers, L (bars: standard deviation)")]
)
def test_bars_over_layers_are_labelled_and_do_not_overlap(tmp_path, monkeypatch, seeds, label_text):
    table = TABLES["layers"]
    add_runs(tmp_path, table=table, rows=[row.label for row in table.rows], seeds=seeds)
    (axes,) = draw_figure(tmp_path, monkeypatch, "layers").axes
    assert axes.get_xlabel() == label_text
    places = [place for model in axes.containers for place in model.lines[0].get_xdata()]
    assert len(set(places)) == len(table.rows)


@pytest.mark.parametrize(
    ("name", "rows", "seeds"), [("models-cross-entropy", 3, 3), ("layers", 2, 2)]
)
def test_row_with_too_few_runs_has_no_bar(tmp_path, monkeypatch, name, rows, seeds):
    table = TABLES[name]
    labels = [row.label for row in table.rows][:rows]
    add_runs(tmp_path, table=table, rows=labels, seeds=seeds)
    path = tmp_path / LEDGER
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    figure = draw_figure(tmp_path, monkeypatch, name)
    bars = [
        segment
        for container in figure.axes[0].containers
        for bar in container.lines[2]
        for segment in bar.get_segments()
    ]
    assert sum(len(segment) > 0 for segment in bars) == 1


@pytest.mark.parametrize("name", ["others", "layers", "geometry", "curve"])
def test_figure_text_is_not_cut_off(tmp_path, monkeypatch, name):
    table = TABLES[name]
    add_runs(tmp_path, table=table, rows=[row.label for row in table.rows])
    figure = draw_figure(tmp_path, monkeypatch, name)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    boxes = [text.get_window_extent() for text in (*figure.texts, *legend.get_texts())]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    axes = figure.axes[0].get_window_extent()
    assert not axes.overlaps(legend.get_window_extent())
