"""`ngsan data parallel`: cuts parallel text into word pieces, ready for training."""

from typing import Any

from rich.console import Console

from ngsan.commands.command_line import Parser
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.data.parallel.prepare import Split, prepare
from ngsan.text.subwords import Subwords

TEXT = "Plain parallel text, a sentence a line, as of WMT14: cuts it into word pieces."


def parallel_command(arguments: list[str], prog: str) -> None:
    """Reads the command line and prepares the texts."""
    options = _parser(prog).parse_args(arguments)
    splits = {}
    for name, prefix in (("train", ""), ("val", "val_"), ("test", "test_")):
        sources, targets = options[f"{prefix}source"], options[f"{prefix}target"]
        if bool(sources) != bool(targets):
            dashed = prefix.replace("_", "-")
            raise ValueError(f"--{dashed}source and --{dashed}target belong together")
        if sources:
            splits[name] = Split(sources, targets)
    console = Console()
    subwords = None if options.tokenizer is None else Subwords.load(options.tokenizer)
    with console.status("finding word pieces" if subwords is None else "reading") as status:
        problems = prepare(
            options.to,
            splits,
            vocabulary_size=options.vocabulary_size,
            subwords=subwords,
            language=options.language,
            longest=options.longest,
            ratio=options.ratio,
            skip_bad=options.skip_bad,
            overwrite=options.overwrite,
            on_pairs=lambda split, pairs: status.update(f"{split}: {pairs:,} pairs"),
        )
    plain: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    for name, found in problems.items():
        for line in found.summary():
            console.print(f"{name}: {line}", style="yellow", **plain)
        split = ParallelSplit(options.to, name)
        source, target = (len(split.ids[side]) for side in ("source", "target"))
        console.print(
            f"{name}: {len(split):,} pairs, {source:,} and {target:,} word pieces", **plain
        )
    language = split.language or "not known, so tokenised BLEU is left out: --language tells it"
    console.print(f"language of the translations: {language}", **plain)
    console.print(f"vocabulary: {split.vocab_size:,} ids; all is in {options.to}", **plain)


def _parser(prog: str) -> Parser:
    parser = Parser(prog=prog, description=TEXT)
    files: dict[str, Any] = {"type": str, "nargs": "+", "metavar": "FILE"}
    about = "files of {} sentences, plain or .gz, in UTF-8"
    parser.add_argument("--source", help=about.format("training"), **files)
    parser.add_argument("--target", help="their translations, line by line", **files)
    parser.add_argument("--val-source", help=about.format("validation"), **files)
    parser.add_argument("--val-target", help="their translations", **files)
    parser.add_argument("--test-source", help=about.format("test"), **files)
    parser.add_argument("--test-target", help="their translations", **files)
    parser.add_argument("--to", metavar="DIR", type=str, required=True, help="the folder to make")
    parser.add_argument(
        "--vocabulary-size",
        type=int,
        default=32768,
        help="ids of the word pieces that both languages share",
    )
    parser.add_argument(
        "--tokenizer", type=str | None, help="take these word pieces (tokenizer.json) instead"
    )
    parser.add_argument(
        "--language",
        type=str | None,
        help="of the translations, such as de, for tokenised BLEU; by default what the names of "
        "their files end with",
    )
    parser.add_argument(
        "--longest",
        type=int,
        default=250,
        help="leave out training pairs with more word pieces on a side",
    )
    parser.add_argument(
        "--ratio",
        type=float,
        default=0.0,
        help="leave out training pairs with a side so many times as long as the other; 0: none",
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="skip, count and report training lines of bad UTF-8"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace parallel text that is there already"
    )
    return parser
