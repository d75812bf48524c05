"""Scores of many questions are means by type."""

import pytest

from ngsan.data.questions import Question
from ngsan.metrics.vqa import score_answers


def asked(name, people, answer_type="other", question_type="what"):
    return Question(name, "1", "val", "what?", tuple(people), answer_type, question_type)


QUESTIONS = {
    "1": asked("1", ["yes"] * 10, "yes/no", "is the"),
    "2": asked("2", ["red"] * 3 + ["blue"] * 7),
    "3": asked("3", ["red"] * 1 + ["blue"] * 9),
    "4": asked("4", ["2"] * 2 + ["3"] * 8, "number", "how many"),
}


def test_means_by_type():
    found = score_answers({"1": "yes", "2": "Red.", "3": "the red", "4": "two"}, QUESTIONS)
    assert found.single == pytest.approx({"1": 1, "2": 0.9, "3": 0.3, "4": 0.6})
    assert found.overall == pytest.approx(0.7)
    assert found.by_answer_type == pytest.approx({"yes/no": 1, "other": 0.6, "number": 0.6})
    assert found.by_question_type == pytest.approx({"is the": 1, "what": 0.6, "how many": 0.6})
    assert found.signature.startswith("VQA|questions:4|people:10|norm:2021|version:ngsan-")


@pytest.mark.parametrize(
    ("given", "questions", "message"),
    [
        ({"1": "yes"}, QUESTIONS, "3 of 4 questions have no answer, for example 2"),
        (
            {**dict.fromkeys(QUESTIONS, "a"), "9": "b"},
            QUESTIONS,
            "1 of 5 answers have no question.* 9",
        ),
        ({"1": "a"}, {"1": asked("1", ())}, "question 1: .*no human answers"),
        ({}, {}, "no questions"),
    ],
)
def test_mismatched_ids_raise(given, questions, message):
    with pytest.raises(ValueError, match=message):
        score_answers(given, questions)
