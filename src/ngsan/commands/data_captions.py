"""`ngsan data captions`: brings captions, their split and a vocabulary into a dataset folder."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ngsan.commands.command_line import Parser, importer_parser, progress_bar
from ngsan.data.captions import CAPTIONS as CAPTIONS_FILE
from ngsan.data.captions import VOCABULARY, ImageCaptions, read_captions, write_captions
from ngsan.data.importers.captions_coco import coco_captions
from ngsan.data.importers.captions_flickr import flickr_captions
from ngsan.data.importers.captions_karpathy import karpathy_captions
from ngsan.data.importers.captions_table import table_captions
from ngsan.data.importers.captions_vatex import vatex_captions
from ngsan.data.lock import folder_lock
from ngsan.data.problems import Problems
from ngsan.text.vocabulary import TOKENIZERS, Vocabulary

FEW_CAPTIONS = 10_000
"""Below as many captions every word is kept; from there on those seen more than 5 times."""


_OPTIONS: dict[str, dict[str, Any]] = {
    "val_ids": {"type": str | None, "help": "ids of the validation split, a line each"},
    "test_ids": {"type": str | None, "help": "ids of the test split, a line each"},
    "karpathy": {"type": str | None, "help": "Karpathy's dataset_coco.json, for its split"},
    "split": {"type": str | None, "help": "put everything into this split"},
    "train_list": {"type": str | None, "help": "image files of the training split, a line each"},
    "val_list": {"type": str | None, "help": "image files of the validation split"},
    "test_list": {"type": str | None, "help": "image files of the test split"},
    "val": {"type": float, "default": 0.1, "help": "share of validation in a random split"},
    "test": {"type": float, "default": 0.1, "help": "share of test in a random split"},
    "seed": {"type": int, "default": 0, "help": "seed of a random split"},
    "language": {"type": Literal["en", "zh"], "default": "en", "help": "which captions"},
}
"""Options of single importers, under the names of the readers' arguments."""


@dataclass(frozen=True)
class CaptionImporter:
    """A sub-command of `ngsan data captions`."""

    text: str
    """What it reads."""

    read: Callable[..., Iterator[ImageCaptions]]
    """The reader: gets a path, or paths, its options by keyword, and `problems`."""

    options: tuple[str, ...] = ()
    """Its keys of `_OPTIONS`."""

    several: bool = False
    """Whether it takes several files."""

    count_in: Literal["all", "train"] = "train"
    """The splits in which words are counted unless told otherwise."""

    def __call__(self, arguments: list[str], prog: str) -> None:
        """Reads the command line and imports."""
        options = self._parser(prog).parse_args(arguments)
        chosen = {name: options[name] for name in self.options}
        _import(options, lambda problems: self.read(options.path, problems=problems, **chosen))

    def _parser(self, prog: str) -> Parser:
        own = {name: _OPTIONS[name] for name in self.options}
        parser = importer_parser(prog, self.text, "captions", several=self.several, options=own)
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
            help="keep words seen more often than this; without it, 5, or 0 below 10,000 captions",
        )
        parser.add_argument(
            "--count-in",
            type=Literal["all", "train"],
            default=self.count_in,
            help="the splits in which words are counted",
        )
        return parser


_RANDOM = ("val", "test", "seed")
_TABLE = CaptionImporter(
    "Your own captions: CSV with the columns image and caption, or JSON lines.",
    table_captions,
    _RANDOM,
)

CAPTIONS = {
    "coco": CaptionImporter(
        "COCO annotation files, with the Karpathy split from lists of ids or his file.",
        coco_captions,
        ("val_ids", "test_ids", "karpathy", "split"),
        several=True,
        count_in="all",
    ),
    "karpathy": CaptionImporter(
        "Karpathy's dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json.",
        karpathy_captions,
        count_in="all",
    ),
    "flickr": CaptionImporter(
        "A token file of Flickr8k or Flickr30k, with the published lists or a random split.",
        flickr_captions,
        ("train_list", "val_list", "test_list", *_RANDOM),
    ),
    "csv": _TABLE,
    "jsonl": _TABLE,
    "vatex": CaptionImporter(
        "VATEX files of captioned video clips.",
        vatex_captions,
        ("split", "language"),
        several=True,
    ),
}


def _import(options: Any, read: Callable[[Problems], Iterator[ImageCaptions]]) -> None:
    console = Console()
    problems = Problems(skip=options.skip_bad)
    given = None if options.vocabulary is None else Vocabulary.load(options.vocabulary)
    # The vocabulary comes last and shows that the import is complete: captions without one are of
    # an import that was killed, and are written anew.
    complete = Path(options.to) / VOCABULARY
    with folder_lock(Path(options.to) / "captions.lock"):
        with progress_bar(console, "captions", None) as advance_to:
            records = _counted(read(problems), problems, advance_to)
            overwrite = options.overwrite or not complete.exists()
            splits = write_captions(options.to, records, overwrite=overwrite)
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
