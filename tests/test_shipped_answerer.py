"""The model of questions that comes with the package, as users meet it."""

import json

import pytest

import ngsan
from ngsan.__main__ import main
from ngsan.examples import EXAMPLES
from ngsan.models.folder import METRICS, read_metrics, read_task
from ngsan.predict.answers import SHIPPED

PHOTOS = {example.file: example.path for example in EXAMPLES}


@pytest.fixture(scope="module")
def answerer():
    return ngsan.QuestionAnswerer.load()


def best(answerer, file, question):
    return answerer.answer(PHOTOS[file], question, count=1).answers[0].text


def test_it_is_small_and_says_what_it_is_for():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 20_000_000
    assert read_task(SHIPPED) == "answering"


def test_it_sees_what_is_there(answerer):
    """What people see at first glance."""
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


def test_what_is_asked_for_is_answered(answerer):
    """Whether right or wrong."""
    for file in PHOTOS:
        assert best(answerer, file, "Is there a person in the picture?") in {"yes", "no"}
        count = best(answerer, file, "How many people are there?")
        assert count.isdigit() or count == "many"


def test_it_looks_at_the_photograph(answerer):
    given = answerer.answer(PHOTOS["gull.jpg"], "What color is the bird?")
    assert len(given.regions) == 64
    # The bird is left of the middle.
    left = given.boxes[:, 0] < 0.5
    assert given.regions[left].sum() > 0.6


def test_the_command_has_it_where_no_model_is_named(answerer, capsys):
    photo, question = str(PHOTOS["dogs.jpg"]), "how many dogs?"
    assert main(["answer", photo, question, "--json", "--model", str(SHIPPED)]) == 0
    (named,) = json.loads(capsys.readouterr().out)
    assert main(["answer", photo, question, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [named]
    given = answerer.answer(photo, question)
    assert [answer.text for answer in given.answers] == [a["answer"] for a in named["answers"]]


def test_the_card_tells_what_the_metrics_say():
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    metrics = read_metrics(SHIPPED)
    assert json.loads((SHIPPED / METRICS).read_text(encoding="utf-8")) == metrics
    (row,) = (line for line in card.splitlines() if line.startswith("| validation"))
    for name in ("accuracy", "yes/no", "number", "other"):
        assert f" {metrics[name]:.1f} " in row
    for part in ("## How it was made", "## What it is bad at", "## Licences"):
        assert part in card
