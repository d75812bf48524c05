"""`ngsan evaluate` of a model that answers questions: the answers to a split and their accuracy."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ngsan.data.question_set import QuestionSet
from ngsan.durable import write_output
from ngsan.metrics.vqa import VqaScores, score_answers
from ngsan.models.saved_answerer import SavedAnswerer, load_answerer
from ngsan.predict import best_device


def evaluate_answers(
    model: str,
    data: str,
    to: str,
    split: str,
    *,
    device: str = "auto",
    batch_size: int | None = None,
    json_file: str | None = None,
) -> None:
    """Answers the questions of a split, writes the answers, and scores them.

    Args:
        model: The model's folder.
        data: The dataset folder.
        to: The file to write, in the format of VQA's results.
        split: Which split.
        device: Where the model runs.
        batch_size: Questions at a time; None for 512.
        json_file: Where to write the scores, too, if anywhere.

    Raises:
        ValueError: The model has learned from other regions than those of the dataset, or the
            dataset lacks something.
    """
    from ngsan.evaluate import best_answers

    saved, console = load_answerer(model), Console()
    sees = saved.config.regions != "none"
    asked = QuestionSet(
        data,
        split,
        longest=saved.config.longest,
        regions=sees,
        answered=False,
        words=saved.words,
        answers=saved.answers,
    )
    if sees:
        _check_regions(saved, asked)
    given = best_answers(
        saved.answerer.to(best_device(device)),
        asked,
        batch_size=512 if batch_size is None else batch_size,
    )
    Path(to).parent.mkdir(parents=True, exist_ok=True)
    rows = [{"question_id": _number(name), "answer": text} for name, text in given.items()]
    write_output(to, json.dumps(rows, ensure_ascii=False) + "\n")
    console.print(f"{len(given):,} answers are in {to}", highlight=False, markup=False)
    known = {question.id: question for question in asked.questions}
    silent = sum(not question.answers for question in asked.questions)
    if silent:
        console.print(f"not scored, as nobody has answered {silent:,} of the questions")
        return
    scores = score_answers(given, known)
    _print(console, scores)
    if json_file is not None:
        write_output(json_file, json.dumps(_values(scores), indent=2) + "\n")


def _check_regions(saved: SavedAnswerer, asked: QuestionSet) -> None:
    """Refuses regions that cannot be such as the model has learned from.

    What made imported features is not known: their source names files alone, and those of another
    dataset have other names.
    """
    assert asked.store is not None
    learned, found = saved.config.features, asked.store.source
    extracted = all(source.startswith("extract ") for source in (learned, found))
    if asked.feature_dim != saved.config.feature_dim or (extracted and learned != found):
        raise ValueError(
            f"the model has learned from regions of another source ({learned!r}, "
            f"{saved.config.feature_dim} wide) than those of {asked.folder} ({found!r}, "
            f"{asked.feature_dim} wide)"
        )
    if saved.answerer.needs_boxes and not asked.has_boxes:
        raise ValueError(f"the model needs boxes, and the features of {asked.folder} have none")


def _number(name: str) -> int | str:
    """The id of a question as VQA writes it, which is a number."""
    return int(name) if name.isascii() and name.isdigit() else name


def _values(scores: VqaScores) -> dict[str, Any]:
    """Flat, 0 to 100."""
    types = {kind or "no type": value for kind, value in sorted(scores.by_answer_type.items())}
    found = {"accuracy": scores.overall, **types}
    return {name: 100 * value for name, value in found.items()} | {"signature": scores.signature}


def _print(console: Console, scores: VqaScores) -> None:
    table = Table("questions")
    table.add_column("VQA accuracy", justify="right")
    for name, value in _values(scores).items():
        if name != "signature":
            table.add_row(Text("all" if name == "accuracy" else name), f"{value:.2f}")
    console.print(table)
    console.print(scores.signature, highlight=False, markup=False, soft_wrap=True)
