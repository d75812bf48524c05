"""`ngsan data captions`: brings captions, their split and a vocabulary into a dataset folder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ngsan.commands.command_line import Parser, progress_bar
from ngsan.data.captions import CAPTIONS as CAPTIONS_FILE
from ngsan.data.captions import VOCABULARY, ImageCaptions, read_captions, write_captions
from ngsan.data.importers.captions_coco import coco_captions
from ngsan.data.importers.captions_flickr import flickr_captions
from ngsan.data.importers.captions_karpathy import karpathy_captions
from ngsan.data.importers.captions_table import table_captions
from ngsan.data.importers.captions_vatex import vatex_captions
from ngsan.data.importers.problems import Problems
from ngsan.text.vocabulary import TOKENIZERS, Vocabulary

FEW_CAPTIONS = 10_000
"""Below as many captions every word is kept; from there on those seen more than 5 times."""


def coco(arguments: list[str], prog: str) -> None:
    """COCO annotation files, with the Karpathy split from two lists of ids."""
    parser = _parser(prog, coco, count_in="all")
    parser.add_argument("annotations", nargs="+", type=str, help="the JSON files")
    parser.add_argument(
        "--val-ids", type=str | None, help="ids of the validation split, a line each"
    )
    parser.add_argument("--test-ids", type=str | None, help="ids of the test split, a line each")
    parser.add_argument("--split", type=str | None, help="put all images into this split")
    options = parser.parse_args(arguments)
    _import(
        options,
        lambda problems: coco_captions(
            options.annotations,
            val_ids=options.val_ids,
            test_ids=options.test_ids,
            split=options.split,
            problems=problems,
        ),
    )


def karpathy(arguments: list[str], prog: str) -> None:
    """Karpathy's dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json."""
    parser = _parser(prog, karpathy, count_in="all")
    parser.add_argument("file", type=str, help="the JSON file")
    options = parser.parse_args(arguments)
    _import(options, lambda problems: karpathy_captions(options.file, problems=problems))


def flickr(arguments: list[str], prog: str) -> None:
    """A token file of Flickr8k or Flickr30k, with the published lists or a random split."""
    parser = _parser(prog, flickr)
    parser.add_argument("file", type=str, help="the token file")
    for split in ("train", "val", "test"):
        parser.add_argument(f"--{split}-list", type=str | None, help=f"image files of {split}")
    _add_random_split(parser)
    options = parser.parse_args(arguments)
    _import(
        options,
        lambda problems: flickr_captions(
            options.file,
            train_list=options.train_list,
            val_list=options.val_list,
            test_list=options.test_list,
            val=options.val,
            test=options.test,
            seed=options.seed,
            problems=problems,
        ),
    )


def table(arguments: list[str], prog: str) -> None:
    """Your own captions: CSV with the columns image and caption, or JSON lines."""
    parser = _parser(prog, table)
    parser.add_argument("file", type=str, help="the CSV or JSON lines file")
    _add_random_split(parser)
    options = parser.parse_args(arguments)
    _import(
        options,
        lambda problems: table_captions(
            options.file,
            val=options.val,
            test=options.test,
            seed=options.seed,
            problems=problems,
        ),
    )


def vatex(arguments: list[str], prog: str) -> None:
    """VATEX files of captioned video clips."""
    parser = _parser(prog, vatex)
    parser.add_argument("annotations", nargs="+", type=str, help="the JSON files")
    parser.add_argument("--split", type=str | None, help="put all clips into this split")
    parser.add_argument("--language", type=Literal["en", "zh"], default="en", help="which captions")
    options = parser.parse_args(arguments)
    _import(
        options,
        lambda problems: vatex_captions(
            options.annotations,
            split=options.split,
            language=options.language,
            problems=problems,
        ),
    )


CAPTIONS = {
    "coco": coco,
    "karpathy": karpathy,
    "flickr": flickr,
    "csv": table,
    "jsonl": table,
    "vatex": vatex,
}


def _parser(
    prog: str, command: Callable[..., None], *, count_in: Literal["all", "train"] = "train"
) -> Parser:
    """The options that all caption importers share."""
    parser = Parser(prog=prog, description=command.__doc__)
    parser.add_argument("--to", type=str, required=True, help="the dataset folder")
    parser.add_argument(
        "--skip-bad", action="store_true", help="skip, count and report what is bad"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace captions that are there already"
    )
    parser.add_argument(
        "--vocabulary",
        type=str | None,
        help="take this vocabulary file instead of making one from the captions",
    )
    parser.add_argument(
        "--tokenizer",
        type=Literal["plain", "ptb"],
        default="plain",
        help="how the vocabulary cuts captions into words",
    )
    parser.add_argument(
        "--more-than",
        type=int | None,
        help="keep words seen more often than this (default: 5, or 0 below 10,000 captions)",
    )
    parser.add_argument(
        "--count-in",
        type=Literal["all", "train"],
        default=count_in,
        help="the splits in which words are counted",
    )
    return parser


def _add_random_split(parser: Parser) -> None:
    for split in ("val", "test"):
        parser.add_argument(
            f"--{split}", type=float, default=0.1, help=f"share of {split} in a random split"
        )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random split")


def _import(options: Any, read: Callable[[Problems], Iterator[ImageCaptions]]) -> None:
    console = Console()
    problems = Problems(skip=options.skip_bad)
    given = None if options.vocabulary is None else Vocabulary.load(options.vocabulary)
    # The vocabulary comes last and shows that the import is complete: captions without one are of
    # an import that was killed, and are written anew.
    complete = Path(options.to) / VOCABULARY
    if options.overwrite:
        complete.unlink(missing_ok=True)
    with progress_bar(console, "captions", None) as advance_to:
        records = _counted(read(problems), problems, advance_to)
        splits = write_captions(options.to, records, overwrite=not complete.exists())
    vocabulary = _vocabulary(options, splits) if given is None else given
    vocabulary.save(complete)
    for line in problems.summary():
        console.print(line, style="yellow", highlight=False, markup=False)
    for split, (images, captions) in splits.items():
        console.print(f"{split}: {images:,} images, {captions:,} captions", highlight=False)
    console.print(f"vocabulary: {len(vocabulary.words):,} words", highlight=False)
    console.print(
        f"captions are in {Path(options.to) / CAPTIONS_FILE}", markup=False, soft_wrap=True
    )


def _counted(
    records: Iterator[ImageCaptions], problems: Problems, advance_to: Callable[[float], None]
) -> Iterator[ImageCaptions]:
    """The same records; tells how many have come, and says why if none has."""
    count = 0
    for record in records:
        yield record
        count += 1
        if count % 1000 == 0:
            advance_to(count)
    if not count:
        raise ValueError("; ".join(("there is no image with captions", *problems.summary())))


def _vocabulary(options: Any, splits: dict[str, tuple[int, int]]) -> Vocabulary:
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
            for record in read_captions(options.to)
            if record.split in wanted
            for caption in record.captions
        ),
        more_than=more_than,
        tokenizer=tokenizer.version,
    )
