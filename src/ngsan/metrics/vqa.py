"""The official accuracy of VQA, overall and by kind of question.

An answer is worth min(n / 3, 1), where n of the other nine people gave it, averaged over the ten
ways to leave one out; see `ngsan.text.answers` for how answers are compared.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ngsan import __version__
from ngsan.text.answers import answer_accuracy

_NAMED = 3


class Asked(Protocol):
    """What the score needs to know of a question."""

    @property
    def answers(self) -> tuple[str, ...]:
        """What people answered."""

    @property
    def answer_type(self) -> str:
        """Such as "yes/no"."""

    @property
    def question_type(self) -> str:
        """Such as "how many"."""


@dataclass(frozen=True)
class VqaScores:
    """Accuracies from 0 to 1."""

    overall: float
    """The mean over all questions."""

    by_answer_type: dict[str, float]
    """The mean over the questions of each type of answer, by name."""

    by_question_type: dict[str, float]
    """The mean over those of each type of question, by name."""

    single: dict[str, float]
    """The accuracy of each question."""

    signature: str
    """How the score was made: scores with the same line can be compared."""

    def percent(self) -> dict[str, float]:
        """The accuracy, and that of every type of answer that has a name, from 0 to 100."""
        found = {"accuracy": self.overall, **dict(sorted(self.by_answer_type.items()))}
        return {name: 100 * value for name, value in found.items() if name}


def score_answers(given: Mapping[str, str], questions: Mapping[str, Asked]) -> VqaScores:
    """Scores answers.

    Args:
        given: The answer to each question, by the question's id.
        questions: The questions by id, each with what people answered.

    Raises:
        ValueError: A question has no answer, an answer no question, or nobody answered a question.
    """
    if not questions:
        raise ValueError("there are no questions to score")
    for mine, its, what in ((questions, given, "answer"), (given, questions, "question")):
        lost = [name for name in mine if name not in its]
        if lost:
            such = ", ".join(lost[:_NAMED])
            raise ValueError(f"{len(lost)} of {len(mine)} have no {what}, such as {such}")
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
    people = str(min(counts)) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"
    return VqaScores(
        _mean(list(single.values())),
        by_answer,
        by_question,
        single,
        f"VQA|questions:{len(single)}|people:{people}|norm:2021|version:ngsan-{__version__}",
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
