"""`ngsan data captions` and `ngsan data questions`: imports with a split and vocabularies."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ngsan.atomic_io import folder_lock
from ngsan.cli.output import open_console, progress_bar, say
from ngsan.cli.parser import Command, Group, Parser, natural, number, positive
from ngsan.data.captions import CAPTIONS as CAPTIONS_FILE
from ngsan.data.captions import VOCABULARY, ImageCaptions, read_captions, write_captions
from ngsan.data.importers.captions_json import coco_captions, karpathy_captions, vatex_captions
from ngsan.data.importers.captions_text import flickr_captions, table_captions
from ngsan.data.importers.questions import vqa_questions
from ngsan.data.problems import Problems
from ngsan.data.questions import (
    ANSWERS,
    WORDS,
    Question,
    count_answers,
    count_words,
    read_questions,
    write_questions,
)
from ngsan.data.questions import (
    QUESTIONS as QUESTIONS_FILE,
)
from ngsan.text.tokenizers import TOKENIZERS
from ngsan.text.vocabulary import Vocabulary

FEW_CAPTIONS = 10_000
"""Below this number of captions, every word is kept; above it, those seen more than 5 times."""

MANY_QUESTIONS = 200_000
"""From this number of training questions on, an answer must be the best of more than 8, as in
MCAN; below it, of more than 2."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "val_ids": {"metavar": "FILE", "help": "ids of the validation split, one per line"},
    "test_ids": {"metavar": "FILE", "help": "ids of the test split, one per line"},
    "karpathy": {"metavar": "FILE", "help": "Karpathy's dataset_coco.json, for its split"},
    "split": {"help": "put everything into this split"},
    "train_list": {"metavar": "FILE", "help": "image files of the training split, one per line"},
    "val_list": {"metavar": "FILE", "help": "image files of the validation split"},
    "test_list": {"metavar": "FILE", "help": "image files of the test split"},
    "val": {
        "type": number,
        "metavar": "X",
        "default": 0.1,
        "help": "fraction for validation in a random split",
    },
    "test": {
        "type": number,
        "metavar": "X",
        "default": 0.1,
        "help": "fraction for test in a random split",
    },
    "seed": {"default": 0, "help": "seed of a random split"},
    "language": {"choices": ("en", "zh"), "default": "en", "help": "language of the captions"},
}
"""Options of single importers, under the names of the readers' arguments."""


def add_import_options(
    parser: Parser, *, several: bool, own: dict[str, dict[str, Any]], what: str
) -> None:
    """Adds the arguments that all importers have, and an importer's own.

    Args:
        parser: Where to add them.
        several: Whether the importer reads several paths.
        own: Arguments of `Parser.option` by name, with underscores.
        what: What is imported, for the help.
    """
    nargs: dict[str, Any] = {"nargs": "+"} if several else {}
    parser.add_argument("path", metavar="PATH", help="file or folder to import", **nargs)
    parser.option("output", metavar="DIR", required=True, help="dataset folder to write to")
    parser.options("skip-bad")
    parser.option("overwrite", help=f"replace existing {what}")
    for name, about in own.items():
        parser.option(name.replace("_", "-"), **about)


def _importer(
    name: str,
    text: str,
    read: Callable[..., Iterator[ImageCaptions]],
    names: tuple[str, ...] = (),
    *,
    several: bool = False,
    count_in: str = "train",
    example: str,
) -> Command:
    """A command that imports captions.

    Args:
        name: Its name.
        text: Its help.
        read: The reader: gets a path, or paths, its options by keyword, and `problems`.
        names: Its options, keys of `_OPTIONS`.
        several: Whether it reads several files.
        count_in: The splits in which words are counted by default.
        example: A command line after the name.
    """

    def add_options(parser: Parser) -> None:
        own = {name: _OPTIONS[name] for name in names}
        add_import_options(parser, several=several, own=own, what="captions")
        parser.option(
            "vocabulary", metavar="FILE", help="use this vocabulary instead of making one"
        )
        parser.option(
            "tokenizer",
            choices=("plain", "ptb"),
            default="plain",
            help="how the vocabulary splits captions into words",
        )
        parser.option(
            "more-than",
            type=natural,
            metavar="N",
            help="keep words seen more often than this (default: 5; 0 below 10,000 captions)",
        )
        parser.option(
            "count-in",
            choices=("all", "train"),
            default=count_in,
            help="splits in which words are counted",
        )

    def run(options: argparse.Namespace) -> None:
        chosen = {name: getattr(options, name) for name in names}
        _import(options, partial(read, options.path, **chosen))

    return Command(text, add_options, run, [f"data captions {name} {example} -o mydata"])


_RANDOM = ("val", "test", "seed")

CAPTIONS = Group(
    "Import captions, their splits and a vocabulary.",
    {
        "coco": _importer(
            "coco",
            "COCO annotation files, with the Karpathy split from lists of ids or his file.",
            coco_captions,
            ("val_ids", "test_ids", "karpathy", "split"),
            several=True,
            count_in="all",
            example="captions_*2014.json --karpathy dataset_coco.json",
        ),
        "karpathy": _importer(
            "karpathy",
            "Karpathy's dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json.",
            karpathy_captions,
            count_in="all",
            example="dataset_flickr30k.json",
        ),
        "flickr": _importer(
            "flickr",
            "A token file of Flickr8k or Flickr30k, with the published lists or a random split.",
            flickr_captions,
            ("train_list", "val_list", "test_list", *_RANDOM),
            example="results_20130124.token",
        ),
        **{
            name: _importer(
                name,
                "Your own captions: CSV with the columns image and caption, or JSON lines.",
                table_captions,
                _RANDOM,
                example=f"captions.{name}",
            )
            for name in ("csv", "jsonl")
        },
        "vatex": _importer(
            "vatex",
            "VATEX files of captioned video clips.",
            vatex_captions,
            ("split", "language"),
            several=True,
            example="vatex_training_v1.0.json",
        ),
    },
)


def _import(options: argparse.Namespace, read: Callable[..., Iterator[ImageCaptions]]) -> None:
    console, folder = open_console(), Path(options.output)
    problems = Problems(skip=options.skip_bad)
    given = None if options.vocabulary is None else Vocabulary.load(options.vocabulary)
    # The vocabulary comes last and marks a complete import: captions without one are from an
    # import that was killed, and are overwritten.
    complete = folder / VOCABULARY
    with folder_lock(folder / "captions.lock"):
        with progress_bar(console, "captions", None) as advance_to:
            records = _counted(read(problems=problems), problems, advance_to)
            overwrite = options.overwrite or not complete.exists()
            splits = write_captions(folder, records, overwrite=overwrite)
        vocabulary = _vocabulary(options, splits) if given is None else given
        vocabulary.save(complete)
    for line in problems.summary():
        say(console, line, style="yellow")
    for split, (images, captions) in splits.items():
        say(console, f"{split}: {images:,} images, {captions:,} captions")
    say(console, f"vocabulary: {len(vocabulary.words):,} words")
    say(console, f"wrote {folder / CAPTIONS_FILE}")


def _counted(
    records: Iterator[ImageCaptions], problems: Problems, advance_to: Callable[[float], None]
) -> Iterator[ImageCaptions]:
    """The same records, with progress; raises a `ValueError` if there are none."""
    count = 0
    for record in records:
        yield record
        count += 1
        if count % 1000 == 0:
            advance_to(count)
    advance_to(count)
    if not count:
        raise ValueError("; ".join(("no image has captions", *problems.summary())))


def _vocabulary(options: argparse.Namespace, splits: dict[str, tuple[int, int]]) -> Vocabulary:
    """Counts the words of the captions just written, in a second pass over their file."""
    wanted = set(splits) if options.count_in == "all" else {"train"}
    tokenizer = TOKENIZERS[options.tokenizer]
    captions = sum(count for split, (_, count) in splits.items() if split in wanted)
    if not captions:
        raise ValueError("no image is in the training split: pass --count-in all, or --vocabulary")
    more_than = options.more_than
    if more_than is None:
        more_than = 5 if captions >= FEW_CAPTIONS else 0
    return Vocabulary.build(
        (
            tokenizer.tokenize(caption)
            for record in read_captions(options.output)
            if record.split in wanted
            for caption in record.captions
        ),
        more_than=more_than,
        tokenizer=tokenizer.version,
    )


def _question_options(parser: Parser) -> None:
    own: dict[str, dict[str, Any]] = {
        "split": _OPTIONS["split"],
        "words_more_than": {
            "type": natural,
            "metavar": "N",
            "default": 0,
            "help": "keep words seen more often than this in training questions",
        },
        "answers_more_than": {
            "type": natural,
            "metavar": "N",
            "help": "keep answers that are the best of more training questions than this (default: "
            "8; 2 below 200,000 questions)",
        },
        "max_answers": {"type": positive, "metavar": "N", "help": "keep at most this many answers"},
    }
    add_import_options(parser, several=True, own=own, what="questions")


def _import_questions(options: argparse.Namespace) -> None:
    console, folder = open_console(), Path(options.output)
    problems = Problems(skip=options.skip_bad)

    def training() -> Iterator[Question]:
        return (question for question in read_questions(folder) if question.split == "train")

    # The answers come last and mark a complete import.
    with folder_lock(folder / "questions.lock"):
        records = vqa_questions(options.path, split=options.split, problems=problems)
        overwrite = options.overwrite or not (folder / ANSWERS).exists()
        splits = write_questions(folder, records, overwrite=overwrite)
        if "train" not in splits:
            raise ValueError(
                "no question is in the training split, in which words and answers are counted: "
                "import all splits together, or pass --split train"
            )
        words = count_words(training(), more_than=options.words_more_than)
        more_than = options.answers_more_than
        if more_than is None:
            more_than = 8 if splits["train"] >= MANY_QUESTIONS else 2
        answers = count_answers(training(), more_than=more_than, max_answers=options.max_answers)
        words.save(folder / WORDS)
        answers.save(folder / ANSWERS)
    for line in problems.summary():
        say(console, line, style="yellow")
    for split, count in splits.items():
        say(console, f"{split}: {count:,} questions")
    say(console, f"words: {len(words.words):,}")
    say(
        console,
        f"answers: {len(answers.words):,}, each the best of > {more_than} questions",
    )
    say(console, f"wrote {folder / QUESTIONS_FILE}")


QUESTIONS = Command(
    "Import questions and annotations of VQA. Files are JSON or .json.gz, of any splits, in any "
    "order.",
    _question_options,
    _import_questions,
    ["data questions questions_*.json.gz annotations_*.json.gz -o data/vqa"],
)
