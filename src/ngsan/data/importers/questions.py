"""VQA's files of questions and of annotations with the answers, as .json or .json.gz."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from ngsan.data.problems import Problems, caption_text, entry_fields, image_id, is_unicode, shown
from ngsan.data.questions import Question
from ngsan.data.splits import canonical_split, split_of_file
from ngsan.data.text_files import first_array, read_items


class _Answered(NamedTuple):
    """An annotation."""

    answers: tuple[str, ...]
    answer_type: str
    question_type: str
    image: str
    where: str


@dataclass
class _Split:
    files: list[str | Path] = field(default_factory=list)
    """Those with questions."""

    answered: dict[str, _Answered] = field(default_factory=dict)
    """Annotations of questions that were not read yet, by id."""

    annotated: bool = False
    """Whether there are annotations, so that every question must have one."""


def vqa_questions(
    paths: Sequence[str | Path], *, split: str | None = None, problems: Problems
) -> Iterator[Question]:
    """Reads questions, and their answers where the split has annotations.

    Args:
        paths: The files in any order, each with an array "questions" or "annotations".
        split: The split of all files; None to use their names.
        problems: Where bad entries are reported.

    Yields:
        The questions in the order of the files; the answers of all splits are held in memory.
    """
    splits: dict[str, _Split] = {}
    for path in paths:
        kind = _kind(path)  # first, so that a missing file is reported as such
        own = split_of_file(path) if split is None else canonical_split(split)
        held = splits.setdefault(own, _Split())
        if kind == "questions":
            held.files.append(path)
        else:
            held.annotated = True
            _read_answers(held.answered, path, problems)
    for name, held in splits.items():
        if not held.files:
            raise ValueError(f"split {name!r} has annotations but no questions: add their file")
    seen: dict[str, str] = {}
    for name, held in splits.items():
        for path in held.files:
            yield from _questions(path, name, held, seen, problems)
        for identity, left in held.answered.items():
            message = f"no question has the id {identity}"
            problems.report("answers without question", left.where, message)


def _kind(path: str | Path) -> str:
    """The array that the file has; reads no farther than its beginning."""
    kind = first_array(path, "questions", "annotations")
    if kind is None:
        raise ValueError(f"{path} has neither questions nor annotations")
    return kind


class _Entry(NamedTuple):
    identity: str
    image: str
    fields: dict[str, Any]
    where: str


def _entries(path: str | Path, array: str, needed: str, problems: Problems) -> Iterator[_Entry]:
    """The items with both ids and the needed key; others are reported."""
    for _, number, item in read_items(path, array):
        where = f"{path}: {array.removesuffix('s')} {number}"
        fields = entry_fields(item, ("question_id", "image_id", needed), problems, where)
        identity = image_id(fields["question_id"], problems, where) if fields else None
        image = image_id(fields["image_id"], problems, where) if fields else None
        if fields is not None and identity is not None and image is not None:
            yield _Entry(identity, image, fields, f"{where} (question {identity})")


def _read_answers(answered: dict[str, _Answered], path: str | Path, problems: Problems) -> None:
    for identity, image, fields, where in _entries(path, "annotations", "answers", problems):
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
        answered[identity] = _Answered(answers, intern(types[0]), intern(types[1]), image, where)


def _answers(values: object, problems: Problems, where: str) -> tuple[str, ...]:
    """The answers of an annotation, each a text or an object; empty if one is bad."""
    if not isinstance(values, list) or not values:
        problems.report("wrong answers", where, f"expected a list of answers, not {shown(values)}")
        return ()
    texts = []
    for value in values:
        text = value.get("answer") if isinstance(value, dict) else value
        if not isinstance(text, str) or not is_unicode(text):
            problems.report("wrong answers", where, f"{shown(value)} has no answer in it")
            return ()
        texts.append(intern(text))  # few of them are different
    return tuple(texts)


def _questions(
    path: str | Path, split: str, held: _Split, seen: dict[str, str], problems: Problems
) -> Iterator[Question]:
    for identity, image, fields, where in _entries(path, "questions", "question", problems):
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
            else:
                yield Question(identity, image, split, text)
        elif known.image != image:
            message = f"it asks about {image}, and {known.where} is about {known.image}"
            problems.report("two images", where, message)
        else:
            yield Question(identity, image, split, text, *known[:3])
