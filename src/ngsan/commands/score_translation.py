"""`ngsan score --translation`: BLEU of a file of translations against files of references."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ngsan.commands.command_line import Parser
from ngsan.commands.score_outputs import check_outputs
from ngsan.data.parallel.language import language_of
from ngsan.data.parallel.lines import read_lines
from ngsan.durable import write_output
from ngsan.metrics.translation import (
    TranslationScore,
    compound_bleu,
    compound_bleu_lacks,
    sacre_bleu,
)

FLAG = "--translation"

DESCRIPTION = """Scores translations, a sentence a line, against references: sacreBLEU with its
signature, and tokenised BLEU with compound splitting, as papers on WMT14 English-German report
it."""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(prog="ngsan score --translation", description=DESCRIPTION)
    parser.add_argument(FLAG, action="store_true", help="score translations rather than captions")
    parser.add_argument("results", type=str, help="the translations, detokenised, plain or .gz")
    parser.add_argument(
        "--references",
        type=str,
        nargs="+",
        required=True,
        metavar="FILE",
        help="files of references; tokenised BLEU takes the first",
    )
    parser.add_argument(
        "--language",
        type=str | None,
        help="for tokenised BLEU: de, en, or none for no such; by default what the name of the "
        "first file of references ends with",
    )
    parser.add_argument(
        "--tokenized",
        action="store_true",
        help="both are tokenised already, by Moses' own program; gives tokenised BLEU alone",
    )
    parser.add_argument("--json", type=str | None, help="also write the scores to this file")
    return parser


def main(arguments: list[str]) -> None:
    """Reads the command line and scores."""
    options = make_parser().parse_args(arguments)
    check_outputs({"--json": options.json}, [options.results, *options.references])
    results = _lines(options.results)
    references = [_lines(path) for path in options.references]
    for path, lines in zip(options.references, references, strict=True):
        if len(lines) != len(results):
            raise ValueError(
                f"{options.results} has {len(results):,} lines and {path} has {len(lines):,}: "
                "line k of one must be the reference of line k of the other"
            )
    scores: list[TranslationScore] = []
    if not options.tokenized:
        scores.append(sacre_bleu(results, references))
    language, lacks = options.language, ""
    if language is None:
        language = language_of(options.references[:1])
        lacks = "" if options.tokenized else compound_bleu_lacks(language)
    if options.tokenized or not (lacks or language == "none"):
        scores.append(
            compound_bleu(results, references[0], language=language, tokenized=options.tokenized)
        )
    print_scores(scores, lacks)
    if options.json:
        write_output(
            options.json, json.dumps([score_values(score) for score in scores], indent=2) + "\n"
        )


def _lines(path: str) -> list[str]:
    found = []
    for number, line in enumerate(read_lines(Path(path)), start=1):
        if line.text is None:
            raise ValueError(f"{path}, line {number}: {line.problem}: {line.message}")
        found.append(line.text)
    return found


def score_values(score: TranslationScore) -> dict[str, Any]:
    """A score as JSON values."""
    return {
        "name": score.name,
        "score": score.value,
        "signature": score.signature,
        "precisions": list(score.precisions),
        "brevity_penalty": score.brevity_penalty,
        "length": score.length,
        "reference_length": score.reference_length,
    }


def print_scores(scores: list[TranslationScore], lacks: str = "") -> None:
    """Shows scores and their signatures, and why there is no tokenised BLEU, if there is none."""
    console = Console()
    table = Table("score", title_justify="left")
    for name in ("of 100", "1", "2", "3", "4", "brevity", "length ratio"):
        table.add_column(name, justify="right")
    for score in scores:
        ratio = score.length / max(1, score.reference_length)
        table.add_row(
            score.name,
            f"{score.value:.2f}",
            *(f"{value:.1f}" for value in score.precisions),
            f"{score.brevity_penalty:.3f}",
            f"{ratio:.3f}",
        )
    console.print(table)
    for score in scores:
        console.print(
            f"{score.name}: {score.signature}", highlight=False, markup=False, soft_wrap=True
        )
    if lacks:
        console.print(
            f"tokenised BLEU is left out: {lacks}", highlight=False, markup=False, soft_wrap=True
        )
