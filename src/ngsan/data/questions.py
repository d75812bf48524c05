"""Questions about images: the record of one, their file, and the vocabularies beside it.

A dataset folder has one `questions.jsonl` with a JSON object a line, a question each:

    {"id": "458752000", "image": "458752", "split": "train", "question": "What is he wearing?",
     "answers": ["hat", "a hat", ...], "answer_type": "other", "question_type": "what is"}

A question that nobody has answered has no `answers`. `question_words.json` holds the words of the
training questions, `answers.json` the answers that a model chooses from.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ngsan.data.captions import SPLITS
from ngsan.data.ids import canonical_id
from ngsan.data.lines import is_unicode, shown
from ngsan.data.records import parse_object, read_records, write_records
from ngsan.text.answers import graded_answers
from ngsan.text.vocabulary import TOKENIZERS, Origin, Vocabulary

QUESTIONS = "questions.jsonl"
"""Name of the file in a dataset folder."""

WORDS = "question_words.json"
"""The words' name there."""

ANSWERS = "answers.json"
"""The name of the answers to choose from."""

ANSWERS_VERSION = "vqa-answers-2021"
"""How answers were brought into normal form, for the record."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about an image, and what people answered."""

    id: str
    """Told apart from all others of the folder."""

    image: str
    """The image, in the form of `canonical_id`."""

    split: str
    """One of `SPLITS`."""

    question: str
    """The question itself."""

    answers: tuple[str, ...] = ()
    """What people answered, ten of them in VQA; empty when that is not known."""

    answer_type: str = ""
    """Such as "yes/no", "number" or "other"; "" when not known."""

    question_type: str = ""
    """How the question begins, such as "how many"; "" when not known."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names it."""
        if self.split not in SPLITS:
            raise ValueError(f"split: {self.split!r} is not one of {', '.join(SPLITS)}")
        for name in ("id", "image", "question"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name}: {shown(value)} has nothing in it, or is no text")
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
                raise ValueError(f"{text!r} has half a surrogate pair and cannot be written")


def write_questions(
    folder: str | Path, records: Iterable[Question], *, overwrite: bool = False
) -> dict[str, int]:
    """Writes the questions of a dataset folder, all of them or nothing.

    Args:
        folder: The dataset folder; it is made if need be.
        records: The questions, each once.
        overwrite: Whether questions that are there are replaced; their vocabularies go with them.

    Returns:
        Questions of every split that has any.

    Raises:
        ValueError: There are questions already, one comes twice, or none comes at all.
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
    """Reads the questions of a dataset folder, in the order of the file.

    Args:
        folder: The dataset folder, or the JSON lines themselves.

    Raises:
        ValueError: There are none, or a line is wrong; names file and line.
    """
    return read_records(folder, QUESTIONS, _from_json, "question")


def _to_json(record: Question) -> str:
    entry: dict[str, object] = {
        "id": record.id,
        "image": record.image,
        "split": record.split,
        "question": record.question,
    }
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
    """The words of questions that are seen more often than a number of times."""
    tokenizer = TOKENIZERS["question"]
    return Vocabulary.build(
        (tokenizer.tokenize(question.question) for question in questions),
        more_than=more_than,
        tokenizer=tokenizer.version,
    )


def count_answers(
    questions: Iterable[Question], *, more_than: int = 8, most: int | None = None
) -> Vocabulary:
    """The answers to choose from: those that are the best of enough questions.

    Args:
        questions: The training questions; those without answers do not count.
        more_than: An answer is kept when it is the best of more questions than this. MCAN: 8.
        most: How many answers are kept at most; None for all.

    Returns:
        The answers by falling count and then by alphabet; answer k has id k + 1.

    Raises:
        ValueError: None is frequent enough.
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
    )[:most]
    if not kept:
        raise ValueError(
            f"no answer is the best of more than {more_than} of {total} questions; "
            "lower the threshold (more_than)"
        )
    return Vocabulary(kept, origin=Origin(ANSWERS_VERSION, more_than, total))
