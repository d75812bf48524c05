"""`ngsan reproduce paper`: its subset of the data, its order, its estimate and its report."""

import dataclasses

import numpy as np
import pytest

from ngsan.__main__ import main
from ngsan.cli import reproduce_paper
from ngsan.config import CROSS_ENTROPY, SELF_CRITICAL, read_recipe
from ngsan.data.captions import CAPTIONS, VOCABULARY, read_captions
from ngsan.data.store import FeatureStore, PermutedStore
from ngsan.data.synthetic.folders import sample_splits, scene_vocabulary, write_scene_folder
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.plan import seconds_left, stages
from ngsan.reproduce.runs import wanted_runs
from ngsan.reproduce.subset import make_subset
from ngsan.reproduce.tables import EXAMPLES, TABLES, TABLES_OF_PAPER, WEIGHTS
from ngsan.reproduce.tasks import Fitted
from ngsan.text.vocabulary import UNKNOWN, Vocabulary
from tests.reproduce.tiny_ledgers import add_run

SIZES = {"train": 12, "val": 4, "test": 6}
FIRST = ["SAN", "G-SAN", "G-SAN, permuted boxes", "N-SAN", "NG-SAN"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    sizes = {"train": 40, "val": 12, "test": 12}
    write_scene_folder(
        folder, sample_splits(sizes, min_objects=2, max_objects=2, seed=1), scene_vocabulary()
    )
    return folder


def plan(seeds=(0, 1, 2)):
    base = read_recipe("reproduce-small")
    fitted = Fitted(base, {"train": "coco"}, {})
    return base, fitted, stages(base, seeds, fitted)


def test_subset_has_some_images_with_their_features(scenes, tmp_path):
    make_subset(scenes, tmp_path, SIZES)
    large = {record.id: record for record in read_captions(scenes)}
    small = list(read_captions(tmp_path))
    assert all(large[record.id] == record for record in small)
    for split, count in SIZES.items():
        assert sum(record.split == split for record in small) == count
    image = small[0].id
    assert np.array_equal(
        FeatureStore(tmp_path)[image].features, FeatureStore(scenes)[image].features
    )
    words = Vocabulary.load(tmp_path / VOCABULARY)
    said = {
        word
        for record in small
        if record.split == "train"
        for caption in record.captions
        for word in words.tokenize(caption)
    }
    assert set(words.words) - {UNKNOWN} <= said
    # Some of 12 captions' words are too rare for the vocabulary.
    assert len(words) < len(said)


def test_subset_is_the_same_again_and_refuses_other_images(scenes, tmp_path):
    for name in ("a", "b", "a"):
        make_subset(scenes, tmp_path / name, SIZES)
    assert (tmp_path / "a" / CAPTIONS).read_bytes() == (tmp_path / "b" / CAPTIONS).read_bytes()
    with pytest.raises(ValueError, match=r"a has other images than .*; pass another --output"):
        make_subset(scenes, tmp_path / "a", {**SIZES, "train": 13})


def test_subset_is_chosen_from_available_images(scenes, tmp_path):
    available = {record.id for record in read_captions(scenes)} - {
        record.id for record in list(read_captions(scenes))[:20]
    }
    make_subset(scenes, tmp_path / "a", SIZES, is_available=available.__contains__)
    assert {record.id for record in read_captions(tmp_path / "a")} <= available
    with pytest.raises(ValueError, match=r"no image of split 'train' has features"):
        make_subset(scenes, tmp_path / "b", SIZES, is_available=lambda image: False)


def test_most_important_runs_are_made_first():
    _, _, made = plan()
    assert [run.label for run in made[0]] == 3 * FIRST
    assert [run.config.seed for run in made[0]] == [0] * 5 + [1] * 5 + [2] * 5
    assert {run.config.model.norm_place for run in made[0]} == {"post"}
    assert [run.label for run in made[1]] == 3 * [f"{label}, pre-norm" for label in FIRST]
    assert {run.config.model.norm_place for run in made[1]} == {"pre"}
    assert {run.phase for stage in made for run in stage} == {SELF_CRITICAL}


def test_plan_has_all_runs_of_all_tables():
    base, fitted, made = plan()
    keys = {
        run.key_after(phase)
        for stage in made
        for run in stage
        for phase in (CROSS_ENTROPY, SELF_CRITICAL)
    }
    for table in (*(TABLES[name] for name in TABLES_OF_PAPER), WEIGHTS, EXAMPLES):
        seeds = range(3) if table.name in TABLES else [0]
        assert {run.key for run in wanted_runs(table, base, seeds, fitted=fitted)} <= keys


def test_permuted_boxes_are_another_run_on_permuted_boxes(scenes):
    runs = {run.label: run for run in plan([0])[2][0]}
    given, permuted = runs["G-SAN"], runs["G-SAN, permuted boxes"]
    assert given.config.model == permuted.config.model
    assert (given.config.data.boxes, permuted.config.data.boxes) == ("given", "permuted")
    assert given.key != permuted.key
    moved = 0
    for image in FeatureStore(scenes).ids():
        one, other = FeatureStore(scenes)[image], PermutedStore(scenes)[image]
        assert np.array_equal(one.features, other.features)
        assert sorted(map(tuple, one.boxes)) == sorted(map(tuple, other.boxes))
        moved += not np.array_equal(one.boxes, other.boxes)
    assert moved > 16  # half of 64 images with two regions


def test_time_left_is_that_of_finished_runs(tmp_path):
    _, _, (first, *_) = plan([0, 1])
    ledger = Ledger(tmp_path)
    assert seconds_left(first, ledger) is None
    assert seconds_left([], ledger) == 0
    for number, run in enumerate(first[:3]):
        add_run(ledger, run, 10.0, [10.0])
        entry = ledger[run.key]
        ledger.replace(dataclasses.replace(entry, seconds=[50.0, 70.0, 60.0][number]))
    left = first[3:]
    assert seconds_left(left, ledger) == 7 * 60
    deeper = dataclasses.replace(left[0].config.model, layers=6)
    left[0] = dataclasses.replace(left[0], config=dataclasses.replace(left[0].config, model=deeper))
    assert seconds_left(left, ledger, jobs=2) == (6 * 60 + 60 / 2 * 6) / 2


def test_command_writes_the_report_as_it_goes(scenes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reproduce_paper, "stages", lambda *given: [stages(*given)[0][:2]])
    monkeypatch.setattr("ngsan.reproduce.subset.make_subset.__defaults__", (SIZES,))
    texts = []
    write = reproduce_paper.write_report

    def follow(folder, left, tables):
        write(folder, left, tables)
        texts.append((folder / "report.md").read_text())

    monkeypatch.setattr(reproduce_paper, "write_report", follow)
    line = [
        "reproduce", "paper", "--preset=small", "--data", str(scenes), "--output", str(tmp_path),
        "--seeds=1", "--model.dim=16", "--model.hidden_dim=16", "--cross_entropy.epochs=1",
        "--self_critical.epochs=1",
    ]  # fmt: skip
    assert main(line) == 0
    assert "So far: 1 run left, about 1 minute." in texts[0]
    assert "| SAN | 0.0 | 1 |" in texts[0]  # not the paper's, of 40.2 M
    assert "| G-SAN | 0.0 | 1 |" not in texts[0]
    assert "all runs are finished" in texts[1]
    assert texts[-1].count("| G-SAN | 0.0 | 1 |") == 2  # after both phases
    assert {entry.phase for entry in Ledger(tmp_path)} == {CROSS_ENTROPY, SELF_CRITICAL}
    assert (tmp_path / "examples.html").exists()
    assert not (tmp_path / "weights.png").exists()
    before = sorted(path.name for path in tmp_path.iterdir())
    capsys.readouterr()
    assert main([*line, "--report-only"]) == 0
    assert "The four models" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["paper", "models"], "paper makes all tables of image captions; remove the other names"),
        (["paper", "--rows", "SAN"], "--rows needs one table, not paper"),
        (["paper", "--spice"], "--spice needs tables; run them after paper with --spice"),
        (["vqa", "--preset", "small"], "--preset small: vqa has no preset; remove --preset"),
        (["paper", "--preset", "tiny"], "--preset: 'tiny' is not one of small"),
    ],
)
def test_invalid_command_lines_raise(scenes, tmp_path, capsys, words, message):
    assert main(["reproduce", *words, "--data", str(scenes), "-o", str(tmp_path / "to")]) == 2
    assert message in capsys.readouterr().err
