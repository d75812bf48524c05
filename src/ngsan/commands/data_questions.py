"""`ngsan data questions`: brings questions and answers into a dataset folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from ngsan.commands.command_line import Parser, importer_parser
from ngsan.data.importers.questions_vqa import vqa_questions
from ngsan.data.lock import folder_lock
from ngsan.data.problems import Problems
from ngsan.data.questions import (
    ANSWERS,
    QUESTIONS,
    WORDS,
    Question,
    count_answers,
    count_words,
    read_questions,
    write_questions,
)

MANY_QUESTIONS = 200_000
"""From as many training questions on an answer must be the best of more than 8, as MCAN has it;
below, of more than 2."""

TEXT = "Questions and annotations of VQA, JSON or .json.gz, of any splits, in any order."


def questions_command(arguments: list[str], prog: str) -> None:
    """Reads the command line and imports."""
    options = _parser(prog).parse_args(arguments)
    console = Console()
    problems = Problems(skip=options.skip_bad)
    # The answers come last and show that the import is complete.
    folder = Path(options.to)
    with folder_lock(folder / "questions.lock"):
        records = vqa_questions(options.path, split=options.split, problems=problems)
        overwrite = options.overwrite or not (folder / ANSWERS).exists()
        splits = write_questions(folder, records, overwrite=overwrite)
        if "train" not in splits:
            raise ValueError(
                "no question is in the training split, from which words and answers are counted: "
                "import all splits at a time, or pass --split train"
            )
        words = count_words(_training(folder), more_than=options.words_more_than)
        more_than = options.answers_more_than
        if more_than is None:
            more_than = 8 if splits["train"] >= MANY_QUESTIONS else 2
        answers = count_answers(_training(folder), more_than=more_than, most=options.most_answers)
        words.save(folder / WORDS)
        answers.save(folder / ANSWERS)
    for line in problems.summary():
        console.print(line, style="yellow", highlight=False, markup=False)
    for split, count in splits.items():
        console.print(f"{split}: {count:,} questions", highlight=False)
    console.print(f"words: {len(words.words):,}", highlight=False)
    console.print(
        f"answers: {len(answers.words):,}, each the best of more than {more_than} questions",
        highlight=False,
    )
    console.print(f"questions are in {folder / QUESTIONS}", markup=False, soft_wrap=True)


def _training(folder: Path) -> Iterator[Question]:
    return (question for question in read_questions(folder) if question.split == "train")


def _parser(prog: str) -> Parser:
    own: dict[str, dict[str, Any]] = {
        "split": {"type": str | None, "help": "put everything into this split"},
        "words_more_than": {
            "type": int,
            "default": 0,
            "help": "keep words seen more often than this in training questions",
        },
        "answers_more_than": {
            "type": int | None,
            "help": "keep answers that are the best of more training questions than this; without "
            "it, than 8, or than 2 if there are fewer than 200,000",
        },
        "most_answers": {"type": int | None, "help": "keep no more answers than this"},
    }
    return importer_parser(prog, TEXT, "questions", several=True, options=own)
