"""`ngsan answer` and `ngsan extract --source photo`, from photographs to answers."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.config import (
    AnswerDataConfig,
    AnswererConfig,
    AnsweringConfig,
    AnswerPhaseConfig,
    CaptionerConfig,
    RuntimeConfig,
    ScheduleConfig,
)
from ngsan.data.questions import (
    ANSWERS,
    WORDS,
    Question,
    count_answers,
    count_words,
    write_questions,
)
from ngsan.data.store import FeatureStore
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.predict.answerer import photo_source
from ngsan.text.vocabulary import Vocabulary
from ngsan.train.run import train

QUESTIONS = [
    ("1", "train", "what colour is it?", "red"),
    ("2", "train", "what colour is it?", "blue"),
    ("1", "val", "is it red?", "red"),
]


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """A captioner with a backbone, photographs, and answerers trained on questions about them."""
    folder = tmp_path_factory.mktemp("answer")
    captioner = CaptionerConfig(
        vocab_size=3,
        feature_dim=320,
        backbone="efficientnet-lite0",
        image_size=64,
        dim=16,
        hidden_dim=16,
        layers=1,
    )
    for name in ("photo", "other"):
        save_model(
            folder / name,
            build_captioner(captioner),
            captioner,
            {"vocabulary": Vocabulary(["red", "blue"])},
        )
    rng = np.random.default_rng(0)
    (folder / "pictures").mkdir()
    for name in ("1", "2"):
        pixels = rng.integers(0, 255, (80, 120, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{name}.png")
    data = folder / "data"
    records = [
        Question(str(number), image, split, asked, (answer,) * 10)
        for number, (image, split, asked, answer) in enumerate(QUESTIONS)
    ]
    write_questions(data, records)
    count_words(records).save(data / WORDS)
    count_answers(records, more_than=0).save(data / ANSWERS)
    source = f"photo:{folder / 'photo'}"
    assert (
        main(["extract", str(folder / "pictures"), "--output", str(data), "--extractor", source])
        == 0
    )
    run = AnsweringConfig(
        model=AnswererConfig(
            word_dim=8, dim=16, heads=2, hidden_dim=16, layers=1, flat_hidden_dim=8, flat_dim=16
        ),
        data=AnswerDataConfig(folder=str(data)),
        training=AnswerPhaseConfig(epochs=1, schedule=ScheduleConfig("constant", 1e-3, 0)),
        runtime=RuntimeConfig(device="cpu", threads=1),
    )
    train(run, folder / "run")
    train(
        dataclasses.replace(
            run, model=dataclasses.replace(run.model, regions="none", geometry="none")
        ),
        folder / "blind",
    )
    return folder


def ask(setup, *more, model="run", photo="photo"):
    picture = str(setup / "pictures" / "1.png")
    options = ["--model", str(setup / model), "--photo-model", str(setup / photo)]
    return main(["answer", picture, *more, *options])


def test_store_records_the_source_of_its_features(setup):
    store = FeatureStore(setup / "data")
    assert store.feature_dim == 320
    assert store.source == f"extract {photo_source(setup / 'photo').signature}"
    assert store["1"].boxes.shape == (4, 4)


def test_answers_and_attended_cells_are_printed(setup, capsys):
    assert ask(setup, "what colour is it?") == 0
    shown = capsys.readouterr().out
    assert "red" in shown
    assert "blue" in shown
    assert "looked at: row" in shown
    assert "most important words:" in shown


def test_json_output_for_several_questions(setup, capsys):
    assert (
        ask(
            setup,
            "what colour is it?",
            "is the zebra red?",
            "--format",
            "json",
            "--num-return",
            "1",
        )
        == 0
    )
    first, second = json.loads(capsys.readouterr().out)
    assert first["question"] == "what colour is it?"
    assert len(first["answers"]) == 1
    assert sum(first["regions"]) == pytest.approx(1, abs=1e-5)
    assert second["unknown"] == ["the", "zebra"]


def test_figure_shows_the_attention(setup, tmp_path):
    assert ask(setup, "what colour is it?", "--figure", str(tmp_path / "looked.png")) == 0
    with Image.open(tmp_path / "looked.png") as found:
        assert found.size == (120, 80)


def test_questions_are_not_interpreted_as_markup(setup, capsys):
    assert ask(setup, "[/b] what [bold]xyz xyz is xyz?") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "[/b] what [bold]xyz xyz is xyz?"
    assert "unknown words: [, b], [bold]xyz, xyz\n" in out


def test_too_long_question_prints_a_warning(setup, capsys):
    fits = "is it " + "red " * 12
    assert ask(setup, f"{fits}?", f"{fits} red or blue?", "--format", "json") == 0
    printed = capsys.readouterr()
    asked = json.loads(printed.out)
    assert [len(one["words"]) for one in asked] == [14, 14]
    (line,) = printed.err.splitlines()
    assert line.endswith("blue?': the model reads the first 14 words only, not the last 3")
    assert ask(setup, "dog " * 500, "--format", "json") == 0
    printed = capsys.readouterr()
    assert "dog ...': the model reads the first 14 words only, not the last 486" in printed.err
    assert len(printed.err) < 200


def test_invalid_questions_and_models_raise(setup, tmp_path, capsys):
    assert ask(setup, "what colour is it?", photo="other") == 2
    assert "trained on regions of another source" in capsys.readouterr().err
    assert ask(setup, "what colour is it?", model="photo") == 2
    assert "a model for captioning, not for answering" in capsys.readouterr().err
    assert ask(setup, "?!") == 2
    assert "has no words" in capsys.readouterr().err
    assert ask(setup, "is it?", "--figure", str(tmp_path)) == 2
    assert "is a folder; pass a file" in capsys.readouterr().err
    assert ask(setup, "is it?", "--num-return", "0") == 2
    assert "--num-return: '0' is not" in capsys.readouterr().err
    assert main(["answer", str(tmp_path / "no.jpg"), "is it?", "--model", str(setup / "run"),
                 "--photo-model", str(setup / "photo")]) == 2  # fmt: skip
    assert "no.jpg" in capsys.readouterr().err


def test_question_only_model_needs_no_backbone(setup, tmp_path, capsys):
    assert ask(setup, "what colour is it?", model="blind", photo="nowhere") == 0
    assert "looked at" not in capsys.readouterr().out
    more = {"model": "blind", "photo": "nowhere"}
    assert ask(setup, "what colour is it?", "--figure", str(tmp_path / "seen.png"), **more) == 2
    printed = capsys.readouterr()
    assert "--figure: this model answers without the image" in printed.err
    assert printed.out == ""
