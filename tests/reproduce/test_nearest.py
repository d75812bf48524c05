"""If no run of a table is finished, the error describes the nearest other runs."""

import pytest

from ngsan.data.synthetic.folders import sample_splits, scene_vocabulary, write_scene_folder
from ngsan.reproduce.tables import WEIGHTS
from tests.reproduce.tiny_ledgers import TABLE, add_runs, report


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cross_entropy.epochs=9"], "(the nearest has cross_entropy.epochs: 15 before, 9 now)"),
        (
            ["--model.dropout=0.2", "--validation.decoding.beam=2"],
            "(the nearest has validation.decoding.beam: 3 before, 2 now, "
            "model.dropout: 0.1 before, 0.2 now)",
        ),
        (
            ["--model.dim=16", "--model.heads=2", "--model.hidden_dim=8", "--model.dropout=0"],
            "more)",
        ),
    ],
)
def test_error_names_the_keys_of_the_nearest_recipe(tmp_path, capsys, words, message):
    add_runs(tmp_path)
    assert report(tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ngsan reproduce: no run of table {TABLE.name} is finished in")
    assert "which has 6 runs of the task captioning, perhaps of another recipe" in error
    assert message in error
    assert error.endswith("; pass the keys, or the --config, that they were trained with\n")
    assert report(tmp_path) == 0


def test_runs_of_the_same_row_are_nearest(tmp_path, capsys):
    add_runs(tmp_path, rows=("G-SAN",))
    assert report(tmp_path, "--cross_entropy.epochs=9") == 2
    assert "which has 2 runs" in (error := capsys.readouterr().err)
    assert "geometry" not in error  # G-SAN's own value, so not a difference
    assert "norm:" not in error


def test_runs_of_other_rows_are_not_another_recipe(tmp_path, capsys):
    add_runs(tmp_path)
    for name in ("models", "weights"):  # after another phase, and of another depth
        assert report(tmp_path, name=name) == 2
        error = capsys.readouterr().err
        assert "which has 6 runs of the task captioning, of other rows or evaluated" in error
        assert "--config" not in error


def test_figure_of_one_run_names_the_nearest_recipe_too(tmp_path, capsys):
    add_runs(tmp_path, table=WEIGHTS, rows=("G-SAN, L = 1",))
    assert report(tmp_path, "--cross_entropy.epochs=9", name="weights") == 2
    error = capsys.readouterr().err
    assert "needs runs that are not finished: G-SAN, L = 1; without --report" in error
    assert "(the nearest has cross_entropy.epochs: 15 before, 9 now)" in error


def test_error_says_that_the_nearest_has_other_data(tmp_path, capsys):
    add_runs(tmp_path / "to")
    scenes = sample_splits({"train": 8, "val": 8}, min_objects=2, max_objects=2, seed=1)
    write_scene_folder(tmp_path / "data", scenes, scene_vocabulary())
    assert report(tmp_path / "to", "--data", str(tmp_path / "data")) == 2
    error = capsys.readouterr().err
    assert "(the nearest has other data); pass" in error
    assert "vocab_size" not in error  # which follows from the data


def test_error_without_runs_of_the_task(tmp_path, capsys):
    add_runs(tmp_path)
    assert report(tmp_path, name="translation") == 2
    assert "--config" not in capsys.readouterr().err
