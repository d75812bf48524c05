"""Runs that were evaluated on different test splits are not combined."""

import dataclasses
import json

import pytest

from ngsan.__main__ import main
from ngsan.config import AnswerDataConfig, AnsweringConfig, ParallelConfig, read_recipe
from ngsan.config.data import DataConfig
from ngsan.data.captions import CAPTIONS
from ngsan.data.parallel.prepare import Split, prepare
from ngsan.data.questions import QUESTIONS, read_questions
from ngsan.data.store import FeatureStore
from ngsan.data.store_writer import StoreWriter
from ngsan.data.synthetic.folders import (
    sample_moving_splits,
    sample_splits,
    scene_vocabulary,
    write_moving_folder,
    write_question_scenes,
    write_scene_folder,
)
from ngsan.reproduce.ledger import LEDGER, Ledger
from ngsan.reproduce.making import make_runs
from ngsan.reproduce.runs import wanted_runs
from ngsan.reproduce.tables import EXAMPLES, TABLES
from ngsan.text.subwords import FILE, Subwords
from tests.reproduce.tiny_ledgers import TABLE, add_run, report
from tests.translation_helpers import backwards_folder

SCORES = [float(score) for score in range(8)]
OTHER_SPLIT = "there was evaluated on another split 'test' than the data's"


def write_scenes(folder, splits=("train", "val", "test")):
    found = sample_splits(dict.fromkeys(splits, 8), min_objects=2, max_objects=2, seed=1)
    write_scene_folder(folder, found, scene_vocabulary())
    return folder


def change(path, split):
    """Changes the first caption, or answer, of a split."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(line for line in lines if line["split"] == split)
    for key in first.keys() & {"captions", "answers"}:
        text, *others = first[key]
        first[key] = [f"{text} {text.split()[0]}", *others]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def runs_on(data, seeds, rows=("SAN", "N-SAN"), table=TABLE):
    base = dataclasses.replace(read_recipe("reproduce"), data=DataConfig(folder=str(data)))
    return wanted_runs(table, base, seeds, rows)


@pytest.fixture
def scenes(tmp_path):
    return write_scenes(tmp_path / "scenes")


@pytest.fixture
def entered(tmp_path, scenes):
    """A ledger of two rows with two seeds on the scenes."""
    ledger = Ledger(tmp_path / "to")
    for run in runs_on(scenes, range(2)):
        add_run(ledger, run, 100.0, SCORES)
    return ledger.folder


def test_test_split_is_recorded_but_not_part_of_the_key(scenes):
    (before,) = runs_on(scenes, [0], ["SAN"])
    change(scenes / CAPTIONS, "test")
    (after,) = runs_on(scenes, [0], ["SAN"])
    assert set(before.measured) == set(after.measured) == {"test"}
    assert before.measured != after.measured
    assert before.key == after.key


@pytest.mark.parametrize("rows", [("SAN", "N-SAN"), ("G-SAN",)])
def test_training_beside_runs_of_another_test_split_raises(scenes, entered, rows):
    change(scenes / CAPTIONS, "test")
    with pytest.raises(ValueError, match=OTHER_SPLIT) as raised:
        make_runs(runs_on(scenes, range(3), rows), Ledger(entered), listen=pytest.fail)
    assert "use another --output for these data" in str(raised.value)
    assert len(Ledger(entered)) == 4


def test_command_with_another_test_split_raises(scenes, entered, capsys):
    assert report(entered, "--data", str(scenes)) == 0
    change(scenes / CAPTIONS, "test")
    table = entered / f"{TABLE.name}.md"
    table.unlink()
    for words in (["--report-only"], []):
        line = ["reproduce", TABLE.name, "--data", str(scenes), "--output", str(entered), *words]
        assert main(line) == 2
        assert OTHER_SPLIT in capsys.readouterr().err
    assert not table.exists()
    # The validation split is part of the key, and the ledger itself is unchanged.
    assert report(entered, "--data", str(scenes), "--split", "val") == 0
    assert report(entered) == 0


def test_example_page_with_another_test_split_raises(tmp_path, scenes, capsys):
    ledger = Ledger(tmp_path / "to")
    for run in runs_on(scenes, [0], ("SAN", "G-SAN"), EXAMPLES):
        add_run(ledger, run, 100.0, SCORES)
    assert report(ledger.folder, "--data", str(scenes), name="examples") == 0
    change(scenes / CAPTIONS, "test")
    assert report(ledger.folder, "--data", str(scenes), name="examples") == 2
    assert OTHER_SPLIT in capsys.readouterr().err


def test_report_of_runs_on_different_test_splits_raises(scenes, entered, capsys):
    change(scenes / CAPTIONS, "test")
    (other,) = runs_on(scenes, [2], ["N-SAN"])
    add_run(Ledger(entered), other, 100.0, SCORES)
    first, *_ = runs_on(scenes, [0])
    for words in ([], ["--seeds", "2"]):  # fewer seeds do not hide it
        assert report(entered, *words) == 2
        error = capsys.readouterr().err
        assert f"the runs {first.key} and {other.key} were evaluated on different splits" in error
    assert report(entered, "--split", "val") == 0


def test_entries_without_recorded_splits_are_accepted(scenes, entered):
    path = entered / LEDGER
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["measured"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(scenes / CAPTIONS, "test")
    make_runs(runs_on(scenes, range(2)), Ledger(entered))
    assert report(entered, "--data", str(scenes)) == 0
    (other,) = runs_on(scenes, [2], ["N-SAN"])
    add_run(Ledger(entered), other, 100.0, SCORES)
    assert report(entered) == 0


def test_ledger_may_hold_runs_of_other_data(tmp_path, scenes, entered):
    change(scenes / CAPTIONS, "train")
    change(scenes / CAPTIONS, "test")
    runs = runs_on(scenes, range(2))
    for run in runs:
        add_run(Ledger(entered), run, 100.0, SCORES)
    make_runs(runs, Ledger(entered))
    assert len(Ledger(entered)) == 8
    assert report(entered, "--data", str(scenes)) == 0


def test_data_without_test_split_are_not_checked(tmp_path, entered):
    data = write_scenes(tmp_path / "fewer", ["train", "val"])
    runs = runs_on(data, range(2))
    assert all(run.measured == {} for run in runs)
    ledger = Ledger(tmp_path / "others")
    for number, run in enumerate(runs):
        add_run(ledger, run, 100.0, SCORES, measured={"test": str(number)})
    make_runs(runs, ledger)


def test_validation_split_named_test_is_in_the_key(scenes):
    data = DataConfig(folder=str(scenes), val_split="test")
    base = dataclasses.replace(read_recipe("reproduce"), data=data)
    (run,) = wanted_runs(TABLE, base, [0], ["SAN"])
    assert (set(run.data), run.measured) == ({"train", "validation"}, {})


def test_test_split_of_clips_is_recorded(tmp_path):
    sizes = {"train": 6, "val": 4, "test": 4}
    write_moving_folder(tmp_path, sample_moving_splits(sizes, frames=4))
    base = dataclasses.replace(read_recipe("vatex-nsa"), data=DataConfig(folder=str(tmp_path)))
    runs = []
    for _ in range(2):
        runs.append(wanted_runs(TABLES["video"], base, [0])[0])
        change(tmp_path / CAPTIONS, "test")
    assert runs[0].key == runs[1].key
    assert runs[0].measured["test"] != runs[1].measured["test"]


def question_runs(folder, rows=None):
    base = AnsweringConfig(data=AnswerDataConfig(folder=str(folder)))
    return wanted_runs(TABLES["vqa"], base, [0], rows)


def test_test_split_of_questions_is_recorded(tmp_path):
    write_question_scenes(tmp_path, {"train": 12, "val": 6, "test": 6}, max_objects=3)
    before, blind = question_runs(tmp_path), question_runs(tmp_path, ["question only"])
    assert {run.measured["test"] for run in before} == {run.measured["test"] for run in blind}
    change(tmp_path / QUESTIONS, "test")
    after = question_runs(tmp_path)
    assert [run.key for run in before] == [run.key for run in after]
    assert before[0].measured["test"] != after[0].measured["test"]


def test_question_only_model_needs_no_test_features(tmp_path):
    write_question_scenes(tmp_path / "whole", {"train": 12, "val": 6, "test": 6}, max_objects=3)
    part, store = tmp_path / "part", FeatureStore(tmp_path / "whole")
    part.mkdir()
    for path in (tmp_path / "whole").iterdir():
        if path.is_file():
            (part / path.name).write_bytes(path.read_bytes())
    asked = read_questions(part)
    images = {question.image for question in asked if question.split != "test"}
    with StoreWriter(part, source=store.source) as writer:
        for image in sorted(images):
            writer.add(image, store[image])
    (blind,) = question_runs(part, ["question only"])
    assert set(blind.measured) == {"test"}
    assert blind.key == question_runs(tmp_path / "whole", ["question only"])[0].key
    # Other models could not be evaluated, so this raises before the training.
    with pytest.raises(ValueError, match="in the split 'test' have no features"):
        question_runs(part)


def test_translation_key_covers_all_splits(tmp_path):
    data, keys = backwards_folder(tmp_path / "pairs", train=200, val=10), []
    sides = {name: [tmp_path / f"{name}.{side}" for side in "st"] for name in ("some", "others")}
    for name, (source, target) in sides.items():
        source.write_text("red dog\n")
        target.write_text("Hund rot\n" if name == "some" else "Hund blau\n")
        splits = {
            split: Split([data.parent / f"{split}.source"], [data.parent / f"{split}.target"])
            for split in ("train", "val")
        }
        splits["test"] = Split([source], [target])
        prepare(tmp_path / name, splits, subwords=Subwords.load(data / FILE), language="de")
        place = ParallelConfig(folder=str(tmp_path / name))
        base = dataclasses.replace(read_recipe("multi30k-nsa"), data=place)
        keys.append(wanted_runs(TABLES["translation"], base, [0])[0].key)
    assert keys[0] != keys[1]
