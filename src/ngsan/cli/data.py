"""`ngsan data`: imports into a dataset folder, and looks into one."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.table import Table

from ngsan.atomic_io import write_output
from ngsan.cli.data_captions import CAPTIONS, QUESTIONS
from ngsan.cli.data_features import FEATURES
from ngsan.cli.output import open_console, say
from ngsan.cli.parser import Command, Group, Parser, natural, number, positive
from ngsan.data.gallery import write_gallery
from ngsan.data.inspection import inspect
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.data.parallel.prepare import Split, prepare
from ngsan.text.subwords import Subwords

_SIDES = (("train", ""), ("val", "val_"), ("test", "test_"))


def _inspect_options(parser: Parser) -> None:
    parser.add_argument("folder", metavar="DIR", help="dataset folder")
    parser.option("output", metavar="FILE", help="also write the numbers to this file, as JSON")
    parser.option("page", help="HTML page to write (default: inspect.html in the folder)")
    parser.option("images", help="folder of the photographs, for the page")
    parser.option("num-images", type=natural, metavar="N", default=24, help="images on the page")
    parser.option("seed", default=0, help="seed of the choice of images")
    parser.option("verify", action="store_true", help="compare all features with their checksums")


def _inspect(options: argparse.Namespace) -> int:
    facts = inspect(options.folder, verify=options.verify)
    console = open_console(results=True)
    console.print(_table(options.folder, facts))
    for problem in facts["problems"]:
        say(console, f"problem: {problem}", style="red")
    if options.verify and facts["regions"] is not None:
        say(console, "verified: all checksums of the features match")
    if options.output:
        write_output(options.output, json.dumps(facts, indent=2) + "\n")
    page = Path(options.page or Path(options.folder) / "inspect.html")
    write_gallery(
        options.folder,
        page,
        facts=facts,
        images=options.images,
        count=options.num_images,
        seed=options.seed,
    )
    say(console, f"page: {page}")
    return 1 if facts["problems"] else 0


def _table(folder: str, facts: dict[str, Any]) -> Table:
    table = Table(title=str(folder), show_header=False, title_justify="left")
    for split, numbers in facts["splits"].items():
        table.add_row(split, f"{numbers['images']:,} images, {numbers['captions']:,} captions")
    if facts["captions"]:
        table.add_row("words per caption", _range(facts["captions"]["words"]))
    if facts["vocabulary"]:
        coverage = ", ".join(
            f"{100 * share:.2f}% of {split}"
            for split, share in facts["vocabulary_facts"]["coverage"].items()
            if share is not None
        )
        table.add_row("vocabulary", f"{facts['vocabulary']:,} words; covers {coverage}")
    if facts["regions"]:
        regions = facts["region_facts"]
        table.add_row(
            "regions",
            f"{regions['images']:,} images, {_range(regions)} each, {regions['feature_dim']} wide",
        )
    for key, text in (("missing", "without features"), ("orphaned", "without captions")):
        if facts[key] and facts[key]["count"]:
            first = ", ".join(facts[key]["first"])
            table.add_row(text, f"{facts[key]['count']:,} images, such as {first}")
    return table


def _range(numbers: dict[str, Any]) -> str:
    if numbers["mean"] is None:
        return "none"
    return f"{numbers['min']} to {numbers['max']}, {numbers['mean']:.1f} on average"


def _parallel_options(parser: Parser) -> None:
    for split, prefix in (("training", ""), ("validation", "val-"), ("test", "test-")):
        files: dict[str, Any] = {"nargs": "+", "metavar": "FILE"}
        parser.option(f"{prefix}source", help=f"{split} sentences, UTF-8, plain or .gz", **files)
        parser.option(f"{prefix}target", help="their translations, line by line", **files)
    parser.option("output", metavar="DIR", required=True, help="folder to write")
    parser.option(
        "vocabulary-size",
        type=positive,
        metavar="N",
        default=32768,
        help="subwords that both languages share",
    )
    parser.option("subwords", metavar="FILE", help="use these subwords (tokenizer.json)")
    parser.option(
        "language",
        metavar="CODE",
        help="language of the translations, such as de, for tokenised BLEU (default: the ending of "
        "their files' names)",
    )
    parser.option("max-length", default=250, help="skip training pairs with more subwords")
    parser.option(
        "ratio",
        type=number,
        metavar="X",
        default=0.0,
        help="skip training pairs in which one side is more than X times as long; 0: none",
    )
    parser.options("skip-bad", "overwrite")


def _parallel(options: argparse.Namespace) -> None:
    splits = {}
    for name, prefix in _SIDES:
        sources, targets = (getattr(options, f"{prefix}{side}") for side in ("source", "target"))
        if bool(sources) != bool(targets):
            dashed = prefix.replace("_", "-")
            raise ValueError(f"--{dashed}source and --{dashed}target need each other")
        if sources:
            splits[name] = Split(sources, targets)
    console = open_console()
    subwords = None if options.subwords is None else Subwords.load(options.subwords)
    with console.status("finding subwords" if subwords is None else "reading") as status:
        problems = prepare(
            options.output,
            splits,
            vocabulary_size=options.vocabulary_size,
            subwords=subwords,
            language=options.language,
            max_length=options.max_length,
            ratio=options.ratio,
            skip_bad=options.skip_bad,
            overwrite=options.overwrite,
            on_pairs=lambda split, pairs: status.update(f"{split}: {pairs:,} pairs"),
        )
    for name, found in problems.items():
        for line in found.summary():
            say(console, f"{name}: {line}", style="yellow")
        split = ParallelSplit(options.output, name)
        source, target = (len(split.ids[side]) for side in ("source", "target"))
        say(console, f"{name}: {len(split):,} pairs, {source:,} and {target:,} subwords")
    language = split.language or "unknown, so tokenised BLEU is not available; pass --language"
    say(console, f"language of the translations: {language}")
    say(console, f"vocabulary: {split.vocab_size:,} ids; wrote {options.output}")


DATA = Group(
    "Import captions, features, questions and parallel text into a dataset folder, or inspect one.",
    {
        "captions": CAPTIONS,
        "features": FEATURES,
        "inspect": Command(
            "Print what a dataset folder holds, and write a page with images, boxes and captions.",
            _inspect_options,
            _inspect,
            ["data inspect mydata", "data inspect mydata --images photos --verify"],
        ),
        "parallel": Command(
            "Cut parallel text (one sentence per line, such as WMT14) into subwords.",
            _parallel_options,
            _parallel,
            [
                "data parallel --source train.en --target train.de --val-source val.en "
                "--val-target val.de -o pairs"
            ],
        ),
        "questions": QUESTIONS,
    },
)
