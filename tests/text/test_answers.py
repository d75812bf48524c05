"""Answers in normal form and their accuracy, against the official program and by brute force."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngsan.text.answers import (
    CONTRACTIONS,
    agreement,
    answer_accuracy,
    clean_answer,
    graded_answers,
    normalize_answer,
)
from ngsan.text.tokenizers import question_words

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/vqa_answers.json").read_text())


def test_odd_answers_have_the_official_form():
    found = {text: normalize_answer(clean_answer(text)) for text in GOLDEN["normal"]}
    assert found == GOLDEN["normal"]


def test_accuracies_equal_the_official_program():
    assert len({case["accuracy"] for case in GOLDEN["accuracy"]}) == 5
    for case in GOLDEN["accuracy"]:
        found = answer_accuracy(case["answer"], case["people"])
        assert found == pytest.approx(case["accuracy"], abs=1e-9), case


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.sampled_from("abcd"))
def test_agreement_equals_leaving_one_annotator_out(people, answer):
    shares = []
    for place in range(len(people)):
        others = people[:place] + people[place + 1 :]
        shares.append(min(others.count(answer) / 3, 1))
    expected = sum(shares) / len(shares)
    assert agreement(people.count(answer), len(people)) == pytest.approx(expected)


def test_ten_people():
    found = [agreement(same, 10) for same in range(11)]
    assert found == pytest.approx([0, 0.3, 0.6, 0.9, *[1] * 7])


def test_unanimous_answers_are_not_normalized():
    assert answer_accuracy("2", ["two"] * 10) == 0
    assert answer_accuracy("two", ["two"] * 10) == 1
    assert answer_accuracy("two", ["two"] * 9 + ["2"]) == 1
    assert answer_accuracy("the dog", ["dog"] * 10) == 0
    assert answer_accuracy("the dog", ["dog"] * 9 + ["cat"]) == 1


def test_graded_answers_have_their_accuracy():
    people = ["A dog", "dog", "dog!", "cat", "puppy", "puppy", "Cat", "two", "2", "horse"]
    graded = graded_answers(people)
    assert next(iter(graded)) == "dog"
    for text, grade in graded.items():
        assert grade == answer_accuracy(text, people)
    assert graded == pytest.approx({"dog": 0.9, "cat": 0.6, "puppy": 0.6, "2": 0.6, "horse": 0.3})


def test_contractions_get_one_apostrophe_back():
    assert CONTRACTIONS["youre"] == "you're"
    assert CONTRACTIONS["y'alld've"] == "y'all'd've"
    assert "well" not in CONTRACTIONS
    assert "shed" not in CONTRACTIONS
    assert "im" not in CONTRACTIONS


def test_no_human_answers():
    with pytest.raises(ValueError, match="no human answers"):
        answer_accuracy("yes", [])
    assert graded_answers([]) == {}


def test_words_of_questions():
    assert question_words("What's on the T-shirt/hat (left), #2?") == [
        "whats",
        "on",
        "the",
        "t",
        "shirt",
        "hat",
        "left",
        "2",
    ]
    assert question_words("?!") == []
