"""The shipped answerer."""

import json
import subprocess
import sys

import numpy as np
import pytest

import ngsan
from ngsan.__main__ import main
from ngsan.examples import EXAMPLES
from ngsan.models.checkpoint import METRICS, load_model, read_metrics, read_task
from ngsan.predict.answerer import (
    PHOTO_MODEL,
    SHIPPED,
    Answerer,
    TorchAnswerer,
    photo_source,
)

PHOTOS = {example.file: example.path for example in EXAMPLES}


@pytest.fixture(scope="module")
def answerer():
    return ngsan.load_answerer()


def best(answerer, file, question):
    return answerer.answer(PHOTOS[file], question, num_return=1).answers[0].text


def test_model_is_small_and_has_its_task():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 20_000_000
    assert read_task(SHIPPED) == "answering"


def test_answers_about_obvious_objects(answerer):
    """Questions with an obvious answer for a human."""
    seen = {
        ("cat.jpg", "What animal is this?"): {"cat"},
        ("coffee.jpg", "What is in the cup?"): {"coffee"},
        ("coffee.jpg", "What is the table made of?"): {"wood"},
        ("gull.jpg", "What color is the bird?"): {"white"},
        ("bed.jpg", "What is on the bed?"): {"teddy bear", "bear", "stuffed animal"},
        ("mountains.jpg", "What is in the background?"): {"mountains", "mountain"},
    }
    for (file, question), right in seen.items():
        assert best(answerer, file, question) in right, (file, question)


def test_answers_have_the_type_of_the_question(answerer):
    """Correct or not."""
    for file in PHOTOS:
        assert best(answerer, file, "Is there a person in the picture?") in {"yes", "no"}
        count = best(answerer, file, "How many people are there?")
        assert count.isdigit() or count == "many"


def test_attention_is_on_the_object(answerer):
    given = answerer.answer(PHOTOS["gull.jpg"], "What color is the bird?")
    assert len(given.regions) == 64
    # The bird is in the left half.
    left = given.boxes[:, 0] < 0.5
    assert given.regions[left].sum() > 0.6


def test_command_uses_the_shipped_model_by_default(answerer, capsys):
    photo, question = str(PHOTOS["dogs.jpg"]), "how many dogs?"
    assert main(["answer", photo, question, "--format", "json", "--model", str(SHIPPED)]) == 0
    (named,) = json.loads(capsys.readouterr().out)
    assert main(["answer", photo, question, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [named]
    given = answerer.answer(photo, question)
    assert [answer.text for answer in given.answers] == [a["answer"] for a in named["answers"]]


def test_answering_needs_no_torch():
    script = (
        "import sys; sys.modules['torch'] = None; import ngsan;"
        f"print(ngsan.load_answerer().answer({str(PHOTOS['cat.jpg'])!r}, 'What animal is this?'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "cat", done.stderr


def test_backends_agree(answerer):
    model, config, companions = load_model(SHIPPED, "answering")
    words, answers = companions["vocabulary"], companions["answers"]
    on_torch = TorchAnswerer(model, config, words, answers)
    theirs = Answerer(on_torch, photo_source(PHOTO_MODEL))
    for file in ("cat.jpg", "dogs.jpg"):
        for question in ("how many dogs?", "what color is the animal?"):
            one, other = (each.answer(PHOTOS[file], question) for each in (answerer, theirs))
            assert [a.text for a in one.answers] == [a.text for a in other.answers]
            for a, b in zip(one.answers, other.answers, strict=True):
                assert a.probability == pytest.approx(b.probability, abs=1e-4)
            np.testing.assert_allclose(one.regions, other.regions, atol=1e-4)


def test_model_card_agrees_with_the_metrics():
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    metrics = read_metrics(SHIPPED)
    assert json.loads((SHIPPED / METRICS).read_text(encoding="utf-8")) == metrics
    (row,) = (line for line in card.splitlines() if line.startswith("| validation"))
    for name in ("accuracy", "yes/no", "number", "other"):
        assert f" {metrics[name]:.1f} " in row
    for part in ("## How it was made", "## Limits", "## Licences"):
        assert part in card
