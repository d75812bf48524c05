"""The files of VQA: questions, and annotations with the answers, as JSON or compressed JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from ngsan.data.captions import caption_text, entry_fields, image_id
from ngsan.data.importers.json_stream import stream_items
from ngsan.data.lines import is_unicode, shown
from ngsan.data.problems import Problems
from ngsan.data.questions import Question
from ngsan.data.splits import canonical_split, split_of_file


@dataclass(frozen=True, slots=True)
class _Answered:
    """What an annotation tells of a question."""

    answers: tuple[str, ...]
    """What people said."""

    answer_type: str
    """Such as "yes/no"; empty if it is not told."""

    question_type: str
    """Such as "how many"; empty if it is not told."""

    image: str
    """What it is about."""

    where: str
    """Where the annotation stands."""


@dataclass
class _Split:
    """The files of a split: those with questions, and what the others tell, by question."""

    files: list[str | Path] = field(default_factory=list)
    """Those with questions."""

    answered: dict[str, _Answered] = field(default_factory=dict)
    """What annotations tell of questions that have not been read yet, by id."""

    annotated: bool = False
    """Whether there are annotations, so that every question must have one."""


def vqa_questions(
    paths: Sequence[str | Path], *, split: str | None = None, problems: Problems
) -> Iterator[Question]:
    """Reads questions, and their answers where there are annotations of the split.

    Args:
        paths: The files in any order, each with an array "questions" or "annotations". What a file
            is follows from its content, its split from its name.
        split: The split of all files, in place of their names.
        problems: Takes what is wrong with the files.

    Yields:
        The questions in the order of the files; the answers of all splits are held in memory.

    Raises:
        ValueError: A file is not JSON, is neither of the two, or its split is not clear; there are
            annotations of a split without questions.
    """
    splits: dict[str, _Split] = {}
    for path in paths:
        kind = _kind(path)  # first: of a file that is not there the name tells nothing
        own = split_of_file(path) if split is None else canonical_split(split)
        held = splits.setdefault(own, _Split())
        if kind == "questions":
            held.files.append(path)
        else:
            held.annotated = True
            _take_answers(held.answered, path, problems)
    for name, held in splits.items():
        if not held.files:
            raise ValueError(f"there are annotations of the split {name!r} and no questions of it")
    seen: dict[str, str] = {}
    for name, held in splits.items():
        for path in held.files:
            yield from _questions(path, name, held, seen, problems)
        for number, (identity, left) in enumerate(held.answered.items()):
            if number < 1 or problems.skip:
                problems.report(
                    "answers without question", left.where, f"no question has the id {identity}"
                )


def _kind(path: str | Path) -> str:
    """Which of the two arrays a file has; looks no farther than to its first item."""
    found = []
    for array, _, _ in stream_items(path):
        if array in ("questions", "annotations"):
            return array
        if array not in found:
            found.append(array)
    raise ValueError(
        f"{path} has neither questions nor annotations"
        + (f", only {', '.join(map(repr, found))}" if found else "")
    )


class _Entry(NamedTuple):
    """An item of one of the two arrays."""

    identity: str
    """Of the question."""

    image: str
    """What it asks about."""

    fields: dict[str, Any]
    """All that the item says."""

    where: str
    """Where it stands, for whoever is told of a problem."""


def _entries(path: str | Path, array: str, needed: str, problems: Problems) -> Iterator[_Entry]:
    """The items of an array that have both ids and what is needed; others are reported."""
    for name, number, item in stream_items(path):
        if name != array:
            continue
        where = f"{path}: {array.removesuffix('s')} {number}"
        fields = entry_fields(item, ("question_id", "image_id", needed), problems, where)
        identity = image_id(fields["question_id"], problems, where) if fields else None
        image = image_id(fields["image_id"], problems, where) if fields else None
        if fields is not None and identity is not None and image is not None:
            yield _Entry(identity, image, fields, f"{where} (question {identity})")


def _take_answers(answered: dict[str, _Answered], path: str | Path, problems: Problems) -> None:
    for entry in _entries(path, "annotations", "answers", problems):
        identity, image, fields, where = entry
        if identity in answered:
            problems.report("duplicate question", where, f"it is in {answered[identity].where}")
            continue
        answers = _answers(fields["answers"], problems, where)
        if not answers:
            continue
        types = [fields.get(key, "") for key in ("answer_type", "question_type")]
        if not all(isinstance(kind, str) and is_unicode(kind) for kind in types):
            problems.report("wrong type", where, f"types are texts, not {shown(types)}")
            continue
        answered[identity] = _Answered(
            answers, intern(str(types[0])), intern(str(types[1])), image, where
        )


def _answers(values: object, problems: Problems, where: str) -> tuple[str, ...]:
    """The answers of an annotation, each a text or an object with one; none if something is bad."""
    if not isinstance(values, list) or not values:
        problems.report("wrong answers", where, f"expected a list of answers, not {shown(values)}")
        return ()
    texts = []
    for value in values:
        text = value.get("answer") if isinstance(value, dict) else value
        if not isinstance(text, str) or not is_unicode(text):
            problems.report("wrong answers", where, f"{shown(value)} has no answer in it")
            return ()
        texts.append(intern(text))  # there are few different ones
    return tuple(texts)


def _questions(
    path: str | Path, split: str, held: _Split, seen: dict[str, str], problems: Problems
) -> Iterator[Question]:
    for entry in _entries(path, "questions", "question", problems):
        identity, image, fields, where = entry
        if identity in seen:
            problems.report("duplicate question", where, f"it is in {seen[identity]}")
            continue
        seen[identity] = where
        known = held.answered.pop(identity, None)
        text = caption_text(fields["question"], problems, where, "question")
        if text is None:
            continue
        if known is None:
            if held.annotated:
                problems.report("question without answers", where, "no annotation has its id")
                continue
            yield Question(identity, image, split, text)
        elif known.image != image:
            problems.report(
                "two images", where, f"it asks about {image}, and {known.where} is of {known.image}"
            )
        else:
            yield Question(
                identity, image, split, text, known.answers, known.answer_type, known.question_type
            )
