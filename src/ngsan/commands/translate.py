"""`ngsan translate`: translates lines of text."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from ngsan.commands.command_line import Parser
from ngsan.config.translation import TranslatingConfig
from ngsan.data.parallel.lines import Line, line_of, read_lines
from ngsan.durable import replacing

DESCRIPTION = """Translates text, a sentence a line, from standard input or a file, to standard
output or a file; line k of the output is the translation of line k of the input. The model that
ships turns short English descriptions of pictures into German."""

_CHUNK = 2000
"""Lines that are translated together; a terminal gets each line at once."""


def make_parser() -> Parser:
    """The command line."""
    usual = TranslatingConfig()
    parser = Parser(prog="ngsan translate", description=DESCRIPTION)
    parser.add_argument(
        "model",
        type=str | None,
        nargs="?",
        help="the folder of a translator; without it, the model that ships",
    )
    parser.add_argument(
        "--input", type=str | None, help="a file to translate, plain or .gz (default: stdin)"
    )
    parser.add_argument("--output", type=str | None, help="a file to write (default: stdout)")
    parser.add_argument("--beam", type=int, default=usual.beam, help="translations followed")
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=usual.length_penalty,
        help="scores are log-probabilities divided by the length to this power",
    )
    parser.add_argument(
        "--best", type=int, default=1, help="translations of each line; needs --json if above 1"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="write a JSON object a line: the source, and its translations with their scores",
    )
    parser.add_argument(
        "--words", type=int, default=4000, help="word pieces that are looked at together"
    )
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument(
        "--precision",
        type=Literal["float32", "bfloat16", "float16"],
        default="float32",
        help="of the model's numbers",
    )
    return parser


def main(arguments: list[str]) -> None:
    """Reads the command line and translates."""
    options = make_parser().parse_args(arguments)
    decoding = TranslatingConfig(
        beam=options.beam, best=options.best, length_penalty=options.length_penalty
    )
    if options.best > 1 and not options.json:
        raise ValueError(f"--best {options.best}: several translations of a line need --json")
    if options.words < 1:
        raise ValueError(f"--words: {options.words} must be at least 1")
    if options.model is not None and not Path(options.model).is_dir():
        raise ValueError(
            f"{options.model}: there is no such folder of a model; texts are taken from standard "
            "input or --input"
        )
    if options.input is not None:
        Path(options.input).open("rb").close()  # before the seconds that the model takes
    if options.output is not None:
        folder = Path(options.output).absolute().parent
        if not folder.is_dir():
            raise ValueError(f"--output: there is no folder {folder}")
        _spare(options.input, options.output)
    from ngsan.predict.translating import open_translator

    translator = open_translator(options.model, device=options.device, precision=options.precision)
    with ExitStack() as stack:
        out: IO[str] = sys.stdout
        if options.output is not None:
            partial = stack.enter_context(replacing(options.output))
            out = stack.enter_context(partial.open("w", encoding="utf-8", newline="\n"))
        where = options.input or "standard input"
        lines = _texts(read_lines(options.input) if options.input else _typed(), where)
        size = 1 if options.input is None and sys.stdin.isatty() else _CHUNK
        done = 0
        while chunk := list(islice(lines, size)):
            found = translator.alternatives(
                chunk, decoding=decoding, words=options.words, first=done + 1
            )
            done += len(chunk)
            for text, translations in zip(chunk, found, strict=True):
                print(_written(text, translations, as_json=options.json), file=out)
            out.flush()


def _spare(source: str | None, target: str) -> None:
    """Refuses to write translations over what is translated."""
    if source is not None and Path(target).exists() and Path(target).samefile(source):
        raise ValueError(f"--output: {target} is what is translated, and would be overwritten")


def _typed() -> Iterator[Line]:
    while content := sys.stdin.buffer.readline():
        yield line_of(content)


def _texts(lines: Iterator[Line], where: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if line.text is None:
            raise ValueError(f"{where}, line {number}: {line.problem}: {line.message}")
        yield line.text


def _written(text: str, translations: list[Any], *, as_json: bool) -> str:
    if not as_json:
        return str(translations[0])
    content = {
        "source": text,
        "translations": [
            {
                "text": found.text,
                "score": round(found.score, 4),
                "log_probability": round(found.log_probability, 4),
                "cut_off": not found.ended,
            }
            for found in translations
        ],
    }
    return json.dumps(content, ensure_ascii=False)
