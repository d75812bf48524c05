"""Tables of clips, translation and question answering: tiny runs of the command."""

import csv
import dataclasses
import json
import statistics
from collections import Counter

import numpy as np
import pytest

from ngsan.__main__ import main
from ngsan.config import AnswerDataConfig, AnsweringConfig, read_recipe
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.data.questions import Question, read_questions
from ngsan.data.store import FeatureStore, Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.data.synthetic.folders import (
    sample_moving_splits,
    sample_splits,
    scene_vocabulary,
    write_moving_folder,
    write_question_scenes,
    write_scene_folder,
)
from ngsan.metrics.translation import bleu_of_counts, sacre_bleu
from ngsan.reproduce.ledger import LEDGER, Ledger, Written
from ngsan.reproduce.runs import run_of, wanted_runs
from ngsan.reproduce.statistics import MixedModel
from ngsan.reproduce.tables import TABLES, Row, Table
from ngsan.reproduce.tasks import Answering, answer_priors
from ngsan.text.answers import answer_accuracy
from tests.translation_helpers import backwards_folder

SMALL = ["--model.dim=16", "--model.heads=2", "--model.hidden_dim=16", "--model.layers=1"]
PLACE = ["--runtime.device=cpu", "--runtime.threads=1"]
ANSWERER = [
    "--model.flat_dim=16", "--model.flat_hidden_dim=8", "--model.word_dim=8",
    "--training.epochs=1", "--training.batch_size=16",
]  # fmt: skip


def reproduce(name, data, folder, *words):
    return main(["reproduce", name, "--data", str(data), "--output", str(folder), *words, *PLACE])


def entries_of(folder):
    return [json.loads(line) for line in (folder / LEDGER).read_text().splitlines()]


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    write_question_scenes(folder, {"train": 40, "val": 16, "test": 12}, max_objects=3)
    return folder


@pytest.fixture(scope="module")
def answered(questions, tmp_path_factory):
    """The folder of the VQA table with two seeds."""
    folder = tmp_path_factory.mktemp("answered")
    assert reproduce("vqa", questions, folder, "--seeds", "2", *SMALL, *ANSWERER) == 0
    return folder


def test_ledger_has_answers_and_their_accuracies(questions, answered):
    asked = {question.id: question for question in read_questions(questions)}
    entries = entries_of(answered)
    assert len(entries) == 4 * 2
    ledger = Ledger(answered)
    for entry in entries:
        assert (entry["phase"], len(entry["curve"])) == ("answering", 1)
        for split, metrics in entry["metrics"].items():
            written = ledger.written(entry["key"], split)
            assert {asked[name].split for name in written.ids} == {split}
            for name, text, (score,) in zip(
                written.ids, written.texts, written.scores, strict=True
            ):
                assert score == pytest.approx(100 * answer_accuracy(text, asked[name].answers))
            mean = statistics.mean(score for (score,) in written.scores)
            assert metrics["accuracy"] == pytest.approx(mean, abs=1e-3)


def test_vqa_table_compares_with_mcan_and_shows_priors(questions, answered):
    text = (answered / "vqa.md").read_text()
    found = {line.split("|")[1].strip() for line in text.splitlines() if " − " in line}
    assert found == {
        f"{label} − MCAN" for label in ("question only", "MCAN + GSA on regions", "MCAN + GSA")
    }
    with (answered / "vqa.csv").open() as file:
        priors = [row for row in csv.DictReader(file) if row["row"].startswith("prior")]
    asked = [question for question in read_questions(questions) if question.split == "test"]
    train_questions = [
        question for question in read_questions(questions) if question.split == "train"
    ]
    best = Counter(Counter(question.answers).most_common(1)[0][0] for question in train_questions)
    answer = best.most_common(1)[0][0]
    expected = statistics.mean(answer_accuracy(answer, question.answers) for question in asked)
    found = next(row for row in priors if row["metric"] == "accuracy" and answer in row["row"])
    assert float(found["value"]) == pytest.approx(100 * expected)
    assert (answered / "vqa.png").stat().st_size > 1000


def test_split_option_shows_the_other_split(questions, answered, capsys):
    words = ["--seeds", "2", "--report-only", *SMALL, *ANSWERER]
    assert reproduce("vqa", questions, answered, "--split", "val", *words) == 0
    with (answered / "vqa-val.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "accuracy"]
    found = [row for row in rows if row["value"]]  # others have only the paper's
    values = {float(row["value"]) for row in found if row["row"] == "MCAN"}
    of_mcan = [entry for entry in entries_of(answered) if entry["model"]["regions"] == "guided"]
    assert values <= {entry["metrics"]["val"]["accuracy"] for entry in of_mcan}
    assert {row["split"] for row in found} == {"val"}
    assert reproduce("vqa", questions, answered, "--split", "tset", *words) == 2
    assert "'tset' is not measured" in capsys.readouterr().err


def test_all_models_answer_the_same_questions(questions, tmp_path, answered):
    kept = [image for number, image in enumerate(FeatureStore(questions).ids()) if number % 5]
    data = without_features(questions, tmp_path / "data", kept)
    words = ["--data.skip_missing=true", "--seeds", "1", "--rows", "question only", "MCAN"]
    assert reproduce("vqa", data, tmp_path / "to", *words, *SMALL, *ANSWERER) == 0
    ledger = Ledger(tmp_path / "to")
    ids = [ledger.written(entry["key"], "test").ids for entry in entries_of(tmp_path / "to")]
    assert ids[0] == ids[1]
    assert 0 < len(ids[0]) < 12


def without_features(questions, folder, keep=()):
    """A copy of the questions, with the features of the given images only."""
    folder.mkdir()
    for path in questions.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    if keep:
        whole = FeatureStore(questions)
        with StoreWriter(folder, source="some of them") as writer:
            for image in keep:
                writer.add(image, whole[image])
    return folder


@pytest.mark.parametrize("features", ["none", "none, skipped", "some"])
def test_question_only_model_needs_no_features(questions, tmp_path, answered, features):
    keep = [*FeatureStore(questions).ids()][::2] if features == "some" else ()
    data = without_features(questions, tmp_path / "data", keep)
    words = ["--seeds", "1", "--rows", "question only", *SMALL, *ANSWERER]
    words += ["--data.skip_missing=true"] if "skipped" in features else []
    assert reproduce("vqa", data, tmp_path / "to", *words) == 0
    # Training and evaluation equal those with features.
    (entry,) = entries_of(tmp_path / "to")
    (same,) = (
        other
        for other in entries_of(answered)
        if (other["model"]["regions"], other["seed"]) == ("none", 0)
    )
    assert entry["metrics"] == same["metrics"]
    assert entry["key"] != same["key"]
    table = tmp_path / "to" / "vqa.md"
    text = table.read_text()
    assert "prior by question type" in text
    table.unlink()
    again = [word for word in words if word not in ("--rows", "question only")]
    assert reproduce("vqa", data, tmp_path / "to", "--report-only", *again) == 0
    assert table.read_text() == text


def test_other_models_without_features_raise(questions, tmp_path, capsys):
    data = without_features(questions, tmp_path / "data")
    assert reproduce("vqa", data, tmp_path / "to", "--seeds", "1", *SMALL, *ANSWERER) == 2
    assert "no feature store in" in capsys.readouterr().err
    assert not (tmp_path / "to" / LEDGER).exists()


def test_rows_option_does_not_change_the_key(questions):
    base = AnsweringConfig(data=AnswerDataConfig(folder=str(questions)))
    keys = [
        {run.label: run.key for run in wanted_runs(TABLES["vqa"], base, [0], rows)}
        for rows in (None, ["question only"])
    ]
    assert keys[1]["question only"] == keys[0]["question only"]


def test_priors_by_question_type():
    def asked(name, kind, answer):
        return Question(name, "1", "train", "who?", (answer,) * 10, question_type=kind)

    train_questions = [
        asked("1", "is", "yes"), asked("2", "is", "yes"), asked("3", "is", "no"),
        asked("4", "how many", "2"), asked("5", "how many", "2"), asked("6", "what", "dog"),
    ]  # fmt: skip
    wanted = {kind: asked(kind, kind, "x") for kind in ("is", "how many", "why")}
    overall, by_type = answer_priors(train_questions, wanted).values()
    assert set(overall.values()) <= {"yes", "2"}
    assert len(set(overall.values())) == 1
    assert by_type == {"is": "yes", "how many": "2", "why": overall["why"]}


def test_ledger_has_translations_and_their_bleu_counts(tmp_path, capsys):
    data = backwards_folder(tmp_path / "pairs", train=200, val=40)
    words = [
        "--seeds", "1", *SMALL, "--cross_entropy.epochs=2", "--cross_entropy.batch_size=400",
        "--cross_entropy.average_epochs=0", "--validation.decoding.beam=2",
    ]  # fmt: skip
    assert reproduce("translation", data, tmp_path / "to", *words) == 0
    # Without a test split, the table shows the validation split.
    assert "Translation (Table 8, val)" in capsys.readouterr().out
    ledger, references = Ledger(tmp_path / "to"), ParallelSplit(data, "val").texts("target")
    for entry in entries_of(tmp_path / "to"):
        written = ledger.written(entry["key"], "val")
        value = sacre_bleu(written.texts, [references]).value
        assert entry["metrics"]["val"]["BLEU"] == pytest.approx(value, abs=1e-3)
        assert entry["curve"][-1] == pytest.approx(value, abs=2.0)
        rows = np.array(written.scores, float)
        assert bleu_of_counts(rows.sum(axis=0)) == pytest.approx(value)


def test_bleu_of_sentences_is_tested_over_seeds_and_sentences(tmp_path):
    data = backwards_folder(tmp_path / "pairs", train=40, val=40)
    words = [
        "--seeds=3", *SMALL, "--cross_entropy.epochs=1", "--cross_entropy.batch_size=400",
        "--cross_entropy.average_epochs=0", "--validation.decoding.beam=1",
    ]  # fmt: skip
    assert reproduce("translation", data, tmp_path / "to", *words) == 0
    ledger, random = Ledger(tmp_path / "to"), np.random.default_rng(0)
    pseudo = {}
    for entry in list(ledger):
        # Outputs of better models: counts of n-grams and matches.
        written = ledger.written(entry.key, "val")
        totals = random.integers(8, 20, (40, 1)) - np.arange(4)
        shares = np.array([0.7, 0.5, 0.4, 0.3]) + 0.02 * random.normal()
        rows = np.column_stack([random.binomial(totals, shares), totals, totals[:, [0, 0]]])
        ledger.add(entry, {"val": Written(written.ids, written.texts, rows.tolist())})
        each = [bleu_of_counts(np.delete(rows, place, axis=0).mean(axis=0)) for place in range(40)]
        values = 40 * bleu_of_counts(rows.mean(axis=0)) - 39 * np.array(each)
        model = entry.model["norm"], entry.model["dim"]  # Transformer-Big is twice as wide
        pseudo.setdefault(model, []).append(values)
    assert reproduce("translation", data, tmp_path / "to", *words, "--report-only") == 0
    model = MixedModel.fit(np.array(pseudo["instance", 16]) - np.array(pseudo["none", 16]))
    assert f"| {model.p:.3f} |\n" in (tmp_path / "to" / "translation.md").read_text()


def test_big_is_twice_as_wide_as_the_base():
    table = TABLES["translation"]
    row = next(row for row in table.rows if row.label == "Transformer-Big")
    base = read_recipe("transformer-base")
    assert run_of(row, base, 0).model == read_recipe("transformer-big").model


def test_mt_runs_in_both_phases(tmp_path):
    scenes = sample_splits({"train": 16, "val": 4}, min_objects=2, max_objects=2, seed=1)
    write_scene_folder(tmp_path / "data", scenes, scene_vocabulary())
    small = ["--model.dim=16", "--model.heads=2", "--model.hidden_dim=16", "--seeds=1"]
    phases = [
        f"--{phase}.{key}"
        for phase in ("cross_entropy", "self_critical")
        for key in ("epochs=1", "batch_size=8")
    ]
    words = ["--rows", "MT", *small, *phases]
    assert reproduce("others", tmp_path / "data", tmp_path / "to", *words) == 0
    assert [entry["phase"] for entry in entries_of(tmp_path / "to")] == [
        "cross-entropy",
        "self-critical",
    ]
    text = (tmp_path / "to" / "others.md").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("| MT | 0.0 |"))
    assert line.endswith("| 130.9 |")


def test_video_table(tmp_path):
    write_moving_folder(tmp_path / "data", sample_moving_splits({"train": 12, "val": 4}, frames=4))
    words = ["--seeds", "1", *SMALL, "--cross_entropy.epochs=1", "--cross_entropy.batch_size=6"]
    assert reproduce("video-cross-entropy", tmp_path / "data", tmp_path / "to", *words) == 0
    entries = entries_of(tmp_path / "to")
    rows = [(entry["model"]["norm_place"], entry["model"]["norm"]) for entry in entries]
    lstm = rows.pop(2)
    assert lstm == ("post", "none")
    assert rows == [(place, norm) for place in ("post", "pre") for norm in ("none", "instance")]
    kinds = [(entry["model"]["decoder"], entry["model"]["positions"]) for entry in entries]
    assert set(kinds) == {("transformer", "sinusoidal"), ("lstm", "none")}
    assert (
        "| 95 % interval | p, seeds | p, seeds and clips |"
        in (tmp_path / "to" / "video-cross-entropy.md").read_text()
    )


def with_changed_features(source, folder, change):
    """A copy of a folder whose features are changed by `change`."""
    folder.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    store = FeatureStore(source)
    name, regions_of = change
    with StoreWriter(folder, source=name or store.source) as writer:
        for image in store.ids():
            writer.add(image, regions_of(store[image]))
    return AnsweringConfig(data=AnswerDataConfig(folder=str(folder)))


def rounded_differently(regions):
    next_ones = np.nextafter(regions.features, np.float16(9))
    return Regions(next_ones, regions.boxes, regions.size)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (("", rounded_differently), True),
        (("another network", lambda regions: regions), False),
        (("", lambda regions: Regions(regions.features[:-1], regions.boxes[:-1])), False),
    ],
)
def test_recomputed_features_are_the_same_data(questions, tmp_path, change, same):
    task = Answering()
    before = task.fit(AnsweringConfig(data=AnswerDataConfig(folder=str(questions))))
    after = task.fit(with_changed_features(questions, tmp_path / "again", change))
    assert (before.data == after.data) is same
    assert (before.content == after.content) is (change[0] != "")


def test_runs_with_recomputed_features_are_reused(questions, answered, tmp_path):
    again = with_changed_features(questions, tmp_path / "again", ("", rounded_differently))
    before = entries_of(answered)
    command = ["--seeds", "2", *SMALL, *ANSWERER]
    assert reproduce("vqa", again.data.folder, answered, *command) == 0
    assert entries_of(answered) == before


def test_table_recipes_are_valid_for_all_rows(questions):
    for table in TABLES.values():
        recipe = table.base
        for row in table.rows:
            dataclasses.replace(recipe.model, **row.model)
        assert table.metric in table.metrics
    base = AnsweringConfig(data=AnswerDataConfig(folder=str(questions)))
    assert len({run.key for run in wanted_runs(TABLES["vqa"], base, [0, 1])}) == 4 * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compared_with": "SAM"}, "no row 'SAM'"),
        ({"metric": "CIDEr-D"}, "CIDEr-D is not among its metrics"),
        ({"rows": (Row("SAN", {}), Row("SAN", {}))}, "two rows have the same label"),
    ],
)
def test_invalid_tables_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        Table(**{"name": "x", "title": "", "place": "", "rows": (Row("SAN", {}),), **changes})


def test_help_lists_the_keys_of_the_tables_task(capsys):
    for name, key in (("vqa", "--training.epochs"), ("translation", "--model.hidden-dropout")):
        for words in ([name, "--help"], ["--report-only", name, "--output", "layers", "--help"]):
            with pytest.raises(SystemExit):
                main(["reproduce", *words])
            assert key in capsys.readouterr().out
