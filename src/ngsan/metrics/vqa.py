"""The official VQA accuracy, overall and by type of question.

An answer scores min(n / 3, 1), where n of nine annotators gave it, averaged over the ten ways to
leave one annotator out; `ngsan.text.answers` defines how answers are compared.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ngsan import __version__
from ngsan.text.answers import answer_accuracy

_NAMED = 3


class Question(Protocol):
    """A question with its human answers."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The human answers."""

    @property
    def answer_type(self) -> str:
        """For example "yes/no"."""

    @property
    def question_type(self) -> str:
        """For example "how many"."""


@dataclass(frozen=True)
class VqaScores:
    """Accuracies from 0 to 1."""

    overall: float
    """The mean over all questions."""
    by_answer_type: dict[str, float]
    """The mean over the questions of each answer type."""
    by_question_type: dict[str, float]
    """The mean over the questions of each question type."""
    single: dict[str, float]
    """The accuracy of each question by id."""
    signature: str
    """How the score was computed; scores with equal signatures can be compared."""

    def percent(self) -> dict[str, float]:
        """The accuracy, overall and by named answer type, from 0 to 100."""
        found = {"accuracy": self.overall, **dict(sorted(self.by_answer_type.items()))}
        return {name: 100 * value for name, value in found.items() if name}


def score_answers(given: Mapping[str, str], questions: Mapping[str, Question]) -> VqaScores:
    """Scores answers.

    Args:
        given: The answer to each question, by question id.
        questions: The questions with their human answers, by id.

    Raises:
        ValueError: The ids do not match, or a question has no human answers.
    """
    if not questions:
        raise ValueError("no questions to score")
    sides = ((questions, given, "questions", "answer"), (given, questions, "answers", "question"))
    for mine, other, what, needed in sides:
        if lost := [name for name in mine if name not in other]:
            raise ValueError(
                f"{len(lost)} of {len(mine)} {what} have no {needed}, for example "
                f"{', '.join(lost[:_NAMED])}"
            )
    single: dict[str, float] = {}
    types: tuple[dict[str, list[float]], ...] = (defaultdict(list), defaultdict(list))
    for name, question in questions.items():
        try:
            single[name] = answer_accuracy(given[name], question.answers)
        except ValueError as error:
            raise ValueError(f"question {name}: {error}") from None
        kinds = (question.answer_type, question.question_type)
        for kind, found in zip(kinds, types, strict=True):
            found[kind].append(single[name])
    by_answer, by_question = ({kind: _mean(found[kind]) for kind in found} for found in types)
    counts = {len(question.answers) for question in questions.values()}
    annotators = str(min(counts)) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"
    return VqaScores(
        _mean(list(single.values())),
        by_answer,
        by_question,
        single,
        f"VQA|questions:{len(single)}|people:{annotators}|norm:2021|version:ngsan-{__version__}",
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
