"""`benchmarks/slim_ledger.py`: a copy of a ledger with ids and scores only."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from ngsan.cli.reproduce_output import write_examples
from ngsan.reproduce.ledger import LEDGER, WRITTEN, Ledger, Written
from ngsan.reproduce.tables import EXAMPLES
from ngsan.text.answers import agreement
from tests.reproduce.tiny_ledgers import (
    TABLE,
    add_run,
    add_runs,
    add_runs_with_scores,
    difference_rows,
    remove_outputs,
    report,
    runs_of,
)

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "slim_ledger.py"


@pytest.fixture
def slim(monkeypatch):
    def run(*words):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, words)])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return run


def scores_of(decimals):
    """Random scores of 200 images and three seeds."""
    random = np.random.default_rng(0)
    return {
        label: {seed: random.gamma(1.6, mean / 1.6, 200).round(decimals) for seed in (0, 1, 2)}
        for label, mean in (("SAN", 105.0), ("N-SAN", 118.0), ("G-SAN", 109.0))
    }


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def tables(folder):
    return [(folder / f"{TABLE.name}.{kind}").read_bytes() for kind in ("md", "csv")]


def test_rounded_scores_give_an_identical_table(tmp_path, slim):
    add_runs_with_scores(tmp_path / "whole", scores_of(1))
    slim(tmp_path / "whole", tmp_path / "slim")
    for folder in ("whole", "slim"):
        assert report(tmp_path / folder) == 0
    assert tables(tmp_path / "slim") == tables(tmp_path / "whole")


def test_other_scores_give_close_p_values(tmp_path, slim):
    add_runs_with_scores(tmp_path / "whole", scores_of(3))
    slim(tmp_path / "whole", tmp_path / "slim")
    for folder in ("whole", "slim"):
        assert report(tmp_path / folder) == 0
    assert tables(tmp_path / "slim")[1] == tables(tmp_path / "whole")[1]
    whole, again = difference_rows(tmp_path / "whole"), difference_rows(tmp_path / "slim")
    for name in ("N-SAN − SAN", "G-SAN − SAN"):
        assert float(again[name][-1]) == pytest.approx(float(whole[name][-1]), abs=0.002)
        assert again[name][:-1] == whole[name][:-1]


def test_copy_has_the_ledger_with_ids_and_scores(tmp_path, slim, capsys):
    add_runs(tmp_path / "whole")
    slim(tmp_path / "whole", tmp_path / "slim")
    whole, copy = Ledger(tmp_path / "whole"), Ledger(tmp_path / "slim")
    assert list(copy) == list(whole)
    for entry in whole:
        for split in ("val", "test"):
            mine, its = whole.written(entry.key, split), copy.written(entry.key, split)
            assert (its.ids, its.texts, its.scores) == (mine.ids, [], mine.scores)
    made = files(tmp_path / "slim")
    assert len(made) == 1 + 6 * 2
    size = sum(map(len, made.values()))
    printed = f"6 runs copied to {tmp_path / 'slim'}: 13 files, {size:,} bytes\n"
    assert capsys.readouterr().out == printed


def test_copies_of_equal_ledgers_are_identical(tmp_path, slim):
    add_runs_with_scores(tmp_path / "whole", scores_of(3))
    slim(tmp_path / "whole", tmp_path / "slim")
    slim(tmp_path / "whole", tmp_path / "again")
    slim(tmp_path / "slim", tmp_path / "twice")
    assert files(tmp_path / "slim") == files(tmp_path / "again") == files(tmp_path / "twice")


def test_bleu_counts_and_accuracies_are_not_rounded():
    counts = [[7, 5, 3, 0, 9, 8, 7, 6, 9, 11], [123, 0, 0, 0, 130, 129, 128, 127, 130, 131]]
    found = Written(["1", "2"], ["a", "b"], counts).without_texts()
    assert json.dumps(found.scores) == json.dumps(counts)
    accuracies = [[100 * agreement(same, 10)] for same in range(11)]
    found = Written(list("abcdefghijk"), ["yes"] * 11, accuracies).without_texts()
    assert found.scores == accuracies
    assert [value for (value,) in found.scores[:5]] == [0, 30, 60, 90, 100]


def test_outputs_of_5000_images_are_small(tmp_path, slim):
    random = np.random.default_rng(0)
    ids = [str(number) for number in random.choice(580_000, 5000, replace=False)]
    scores = random.gamma(1.6, 68, 5000).round(3).tolist()
    (run,) = runs_of(TABLE, [0], ["SAN"])
    add_run(Ledger(tmp_path / "whole"), run, 108.8, scores, ids)
    slim(tmp_path / "whole", tmp_path / "slim", "--splits", "test")
    (path,) = (tmp_path / "slim" / WRITTEN).iterdir()
    assert path.stat().st_size < 30_000


def test_splits_option_skips_missing_outputs(tmp_path, slim, capsys):
    add_runs(tmp_path / "whole")
    remove_outputs(tmp_path / "whole", "N-SAN", 0, 1)
    slim(tmp_path / "whole", tmp_path / "slim", "--splits", "test", "other")
    keys = {run.key for run in runs_of(TABLE, (0, 1), ["SAN", "G-SAN"])}
    made = {path.name for path in (tmp_path / "slim" / WRITTEN).iterdir()}
    assert made == {f"{key}-test.json.gz" for key in keys}
    printed = capsys.readouterr().out
    assert printed.startswith(f"6 runs copied to {tmp_path / 'slim'}: 5 files, ")
    assert printed.endswith(f"8 files of test, other missing in {tmp_path / 'whole'}\n")


def test_ledger_without_outputs_is_copied(tmp_path, slim):
    add_runs(tmp_path / "whole")
    for path in (tmp_path / "whole" / WRITTEN).iterdir():
        path.unlink()
    slim(tmp_path / "whole", tmp_path / "slim")
    assert list(files(tmp_path / "slim")) == [LEDGER]
    assert files(tmp_path / "slim")[LEDGER] == files(tmp_path / "whole")[LEDGER]


@pytest.mark.parametrize("to", ["whole", "other", "scores"])
def test_existing_ledger_is_not_overwritten(tmp_path, slim, to):
    add_runs(tmp_path / "whole")
    add_runs(tmp_path / "other", data="flickr")
    (tmp_path / "scores" / WRITTEN).mkdir(parents=True)
    before = files(tmp_path)
    with pytest.raises(SystemExit, match=f"{to}/.* already exists; pass another folder"):
        slim(tmp_path / "whole", tmp_path / to)
    assert files(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b"no gzip", None, gzip.compress(b"[1, 2]", mtime=0)])
def test_damaged_outputs_raise_before_writing(tmp_path, slim, content):
    add_runs(tmp_path / "whole")
    path = max((tmp_path / "whole" / WRITTEN).iterdir())
    path.write_bytes(path.read_bytes()[:-9] if content is None else content)
    with pytest.raises(SystemExit, match=f"{path.name}: damaged or missing"):
        slim(tmp_path / "whole", tmp_path / "slim")
    assert not (tmp_path / "slim").exists()


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_folder_without_ledger_raises(tmp_path, slim, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match=f"{name}: no finished run"):
        slim(tmp_path / name, tmp_path / "slim")
    assert not (tmp_path / "slim").exists()


def test_target_that_is_a_file_raises(tmp_path, slim):
    add_runs(tmp_path / "whole")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match="file"):
        slim(tmp_path / "whole", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_example_page_without_captions_raises(tmp_path, slim):
    wanted = runs_of(EXAMPLES, [0], None)
    ledger = Ledger(tmp_path / "whole")
    for run in wanted:
        add_run(ledger, run, 100.0, [90.0, 110.0])
    slim(tmp_path / "whole", tmp_path / "slim")
    with pytest.raises(ValueError, match="examples needs the captions of SAN and G-SAN, of which"):
        write_examples(wanted, Ledger(tmp_path / "slim"), None)
    assert not (tmp_path / "slim" / "examples.html").exists()
