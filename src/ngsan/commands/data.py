"""`ngsan data`: brings captions and features into a dataset folder, and looks into one."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ngsan.commands.command_line import Parser
from ngsan.commands.data_captions import CAPTIONS
from ngsan.commands.data_features import FEATURES
from ngsan.commands.data_parallel import TEXT as PARALLEL_TEXT
from ngsan.commands.data_parallel import parallel_command
from ngsan.commands.data_questions import TEXT as QUESTIONS_TEXT
from ngsan.commands.data_questions import questions_command
from ngsan.data.gallery import write_gallery
from ngsan.data.inspection import inspect
from ngsan.durable import write_output

Command = Callable[[list[str], str], None]


def inspect_command(arguments: list[str], prog: str) -> None:
    """Print what a dataset folder holds and write a page with pictures, boxes and captions."""
    parser = Parser(prog=prog, description=inspect_command.__doc__)
    parser.add_argument("folder", type=str, help="the dataset folder")
    parser.add_argument("--json", type=str | None, help="also write the numbers to this file")
    parser.add_argument(
        "--html", type=str | None, help="the page to write; without it, inspect.html in the folder"
    )
    parser.add_argument("--images", type=str | None, help="folder of the pictures, for the page")
    parser.add_argument("--count", type=int, default=24, help="images to show on the page")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of images")
    parser.add_argument(
        "--verify", action="store_true", help="compare all features with their checksums"
    )
    options = parser.parse_args(arguments)
    facts = inspect(options.folder, verify=options.verify)
    console = Console()
    console.print(_table(options.folder, facts))
    for problem in facts["problems"]:
        console.print(f"problem: {problem}", style="red", markup=False, highlight=False)
    if options.verify and facts["regions"] is not None:
        console.print("verified: every checksum of the features is right")
    if options.json:
        write_output(options.json, json.dumps(facts, indent=2) + "\n")
    page = Path(options.html) if options.html else Path(options.folder) / "inspect.html"
    write_gallery(
        options.folder,
        page,
        facts=facts,
        images=options.images,
        count=options.count,
        seed=options.seed,
    )
    console.print(f"page: {page}", highlight=False, markup=False, soft_wrap=True)
    if facts["problems"]:
        sys.exit(1)


def _table(folder: str, facts: dict[str, Any]) -> Table:
    table = Table(title=str(folder), show_header=False, title_justify="left")
    for split, numbers in facts["splits"].items():
        table.add_row(split, f"{numbers['images']:,} images, {numbers['captions']:,} captions")
    if facts["captions"]:
        words = facts["captions"]["words"]
        table.add_row("words in a caption", _spread(words))
    if facts["vocabulary"]:
        known = ", ".join(
            f"{100 * share:.2f}% of {split}"
            for split, share in facts["vocabulary_facts"]["coverage"].items()
            if share is not None
        )
        table.add_row("vocabulary", f"{facts['vocabulary']:,} words; knows {known}")
    if facts["regions"]:
        regions = facts["region_facts"]
        table.add_row(
            "regions",
            f"{regions['images']:,} images, {_spread(regions)} each, {regions['feature_dim']} wide",
        )
    for key, text in (("missing", "without features"), ("orphaned", "without captions")):
        if facts[key] and facts[key]["count"]:
            first = ", ".join(facts[key]["first"])
            table.add_row(text, f"{facts[key]['count']:,} images, such as {first}")
    return table


def _spread(numbers: dict[str, Any]) -> str:
    if numbers["mean"] is None:
        return "none"
    return f"{numbers['fewest']} to {numbers['most']}, {numbers['mean']:.1f} on average"


TABLE: dict[str, Mapping[str, Command] | Command] = {
    "captions": CAPTIONS,
    "features": FEATURES,
    "inspect": inspect_command,
    "parallel": parallel_command,
    "questions": questions_command,
}


def usage() -> str:
    """The list of what `ngsan data` can do."""
    rows = [(f"captions {name}", importer.text) for name, importer in CAPTIONS.items()]
    rows += [(f"features {name}", importer.text) for name, importer in FEATURES.items()]
    rows.append(("questions", QUESTIONS_TEXT))
    rows.append(("inspect", inspect_command.__doc__ or ""))
    rows.append(("parallel", PARALLEL_TEXT))
    lines = "\n".join(f"  {words:20} {text}" for words, text in rows)
    return (
        f"usage: ngsan data COMMAND ...\n\ncommands:\n{lines}\n\nEach explains itself with --help."
    )


def main(arguments: list[str]) -> None:
    """Finds the command and runs it."""
    words = list(arguments)
    if words and words[0] in ("-h", "--help"):
        print(usage())
        sys.exit(0)
    entry = TABLE.get(words[0]) if words else None
    if isinstance(entry, Mapping) and len(words) > 1 and words[1] in entry:
        entry[words[1]](words[2:], f"ngsan data {words[0]} {words[1]}")
    elif entry is not None and not isinstance(entry, Mapping):
        entry(words[1:], f"ngsan data {words[0]}")
    else:
        said = " ".join(words[:2]) or "nothing"
        print(f"ngsan data: no such command: {said}\n\n{usage()}", file=sys.stderr)
        sys.exit(2)
