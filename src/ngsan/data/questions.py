"""Questions about images in a dataset folder, and the vocabularies beside them.

`questions.jsonl` has a JSON object per line, one per question:

    {"id": "458752000", "image": "458752", "split": "train", "question": "What is he wearing?",
     "answers": ["hat", "a hat", ...], "answer_type": "other", "question_type": "what is"}

A question without known answers has no `answers`. `question_words.json` holds the words of the
training questions, `answers.json` the answers that a model chooses from.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ngsan.data.captions import SPLITS, parse_object, read_records, write_records
from ngsan.data.ids import canonical_id
from ngsan.data.problems import is_unicode, shown
from ngsan.text.answers import graded_answers
from ngsan.text.tokenizers import TOKENIZERS
from ngsan.text.vocabulary import Origin, Vocabulary

QUESTIONS = "questions.jsonl"
"""The file in a dataset folder."""

WORDS = "question_words.json"
"""The vocabulary of the questions."""

ANSWERS = "answers.json"
"""The answers to choose from."""

ANSWERS_VERSION = "vqa-answers-2021"
"""How answers were normalised, for the record."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about an image, and its human answers."""

    id: str
    """Unique in the folder."""

    image: str
    """The image, in the form of `canonical_id`."""

    split: str
    """One of `SPLITS`."""

    question: str

    answers: tuple[str, ...] = ()
    """Human answers, ten in VQA; empty if unknown."""

    answer_type: str = ""
    """Such as "yes/no", "number" or "other"; "" if unknown."""

    question_type: str = ""
    """How the question begins, such as "how many"; "" if unknown."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split: {self.split!r} is not one of {', '.join(SPLITS)}")
        for name in ("id", "image", "question"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name}: {shown(value)} is empty, or not a text")
        for name in ("id", "image"):
            if getattr(self, name) != canonical_id(getattr(self, name)):
                raise ValueError(f"{name}: write {canonical_id(getattr(self, name))!r}")
        if not isinstance(self.answers, tuple):
            raise ValueError(f"answers: {shown(self.answers)} is not a tuple")
        for text in (*self.answers, self.answer_type, self.question_type):
            if not isinstance(text, str):
                raise ValueError(f"answers and types are texts, not {shown(text)}")
        for text in (self.id, self.question, *self.answers, self.answer_type, self.question_type):
            if not is_unicode(text):
                raise ValueError(f"{text!r} has a lone surrogate")


def write_questions(
    folder: str | Path, records: Iterable[Question], *, overwrite: bool = False
) -> dict[str, int]:
    """Writes the questions of a dataset folder; a failure leaves the old file.

    Args:
        folder: The dataset folder; created if needed.
        records: The questions, each once.
        overwrite: Whether to replace existing questions. Their vocabularies are removed.

    Returns:
        Number of questions of every split that has any.
    """
    counts: Counter[str] = Counter()

    def lines() -> Iterator[tuple[str, str]]:
        for record in records:
            counts[record.split] += 1
            yield record.id, _to_json(record)

    stale = (WORDS, ANSWERS)
    write_records(Path(folder) / QUESTIONS, lines(), "question", stale=stale, overwrite=overwrite)
    return {split: counts[split] for split in SPLITS if counts[split]}


def read_questions(folder: str | Path) -> Iterator[Question]:
    """Reads questions in the order of the file; see `read_records`."""
    return read_records(folder, QUESTIONS, _from_json, "question")


def _to_json(record: Question) -> str:
    entry = {name: getattr(record, name) for name in ("id", "image", "split", "question")}
    for name in ("answers", "answer_type", "question_type"):
        if getattr(record, name):
            entry[name] = getattr(record, name)
    return json.dumps(entry, ensure_ascii=False)


def _from_json(text: str) -> Question:
    entry = parse_object(text, ("id", "image", "split", "question"))
    answers = entry.get("answers", [])
    if not isinstance(answers, list):
        raise ValueError(f"answers must be a list, not {shown(answers)}")
    return Question(
        id=canonical_id(entry["id"]),
        image=canonical_id(entry["image"]),
        split=entry["split"],
        question=entry["question"],
        answers=tuple(answers),
        answer_type=entry.get("answer_type", ""),
        question_type=entry.get("question_type", ""),
    )


def count_words(questions: Iterable[Question], *, more_than: int = 0) -> Vocabulary:
    """The words that occur more than `more_than` times in questions."""
    tokenizer = TOKENIZERS["question"]
    return Vocabulary.build(
        (tokenizer.tokenize(question.question) for question in questions),
        more_than=more_than,
        tokenizer=tokenizer.version,
    )


def count_answers(
    questions: Iterable[Question], *, more_than: int = 8, max_answers: int | None = None
) -> Vocabulary:
    """The answers to choose from: those that are the best answer of enough questions.

    Args:
        questions: The training questions; those without answers do not count.
        more_than: An answer must be the best of more questions than this. MCAN: 8.
        max_answers: Maximum number of answers; None for no limit.

    Returns:
        The answers by falling count and then by alphabet; answer k has id k + 1.
    """
    counts: Counter[str] = Counter()
    total = 0
    for question in questions:
        graded = graded_answers(question.answers)
        if graded:
            total += 1
            counts[next(iter(graded))] += 1
    kept = sorted(
        (answer for answer, count in counts.items() if count > more_than and answer),
        key=lambda answer: (-counts[answer], answer),
    )[:max_answers]
    if not kept:
        raise ValueError(
            f"no answer is the best of more than {more_than} of {total} questions; lower more_than"
        )
    return Vocabulary(kept, origin=Origin(ANSWERS_VERSION, more_than, total))
