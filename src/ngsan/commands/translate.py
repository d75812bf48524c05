"""`ngsan translate`: translates lines of text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from ngsan.commands.caption_output import warn
from ngsan.commands.command_line import Parser
from ngsan.config.translation import TranslatingConfig
from ngsan.data.parallel.lines import lines_of, read_lines
from ngsan.durable import replacing_output

if TYPE_CHECKING:
    from ngsan.predict.translating import TextTranslator, Translation

DESCRIPTION = """Translates text, a sentence a line, from standard input or a file, to standard
output or a file; line k of the output is the translation of line k of the input. A line that
cannot be translated is reported, an empty one, or with --json an object with its error, stands in
its place, and the exit status is then 1.
The model that ships turns short English descriptions of pictures into German."""

_CHUNK = 2000
"""Lines that are translated together; a terminal gets each line at once."""


def make_parser() -> Parser:
    """The command line."""
    usual = TranslatingConfig()
    parser = Parser(prog="ngsan translate", description=DESCRIPTION)
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=str | None,
        nargs="?",
        help="the folder of a translator; without it, the model that ships",
    )
    parser.add_argument(
        "--input",
        type=str | None,
        help="a file to translate, plain or .gz; without it, standard input",
    )
    parser.add_argument(
        "--output", type=str | None, help="a file to write; without it, standard output"
    )
    parser.add_argument(
        "--beam", type=int, default=usual.beam, help="translations of a line that are followed"
    )
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=usual.length_penalty,
        help="scores are log-probabilities divided by the length to this power: more of it favours "
        "longer translations",
    )
    parser.add_argument(
        "--best",
        type=int,
        default=1,
        help="translations of each line, at most --beam; needs --json if above 1",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="write a JSON object a line: the source, and its translations with their scores",
    )
    parser.add_argument(
        "--words",
        type=int,
        default=4000,
        help="word pieces, padding included, that are translated together: fewer need less memory",
    )
    parser.add_argument(
        "--device", type=str, default="auto", help="where it runs: cpu, cuda, cuda:1, or auto"
    )
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
            partial = stack.enter_context(replacing_output(options.output))
            out = stack.enter_context(partial.open("w", encoding="utf-8", newline="\n"))
        size = 1 if options.input is None and sys.stdin.isatty() else _CHUNK
        lines, count, failed = _given(options.input), 0, 0
        while chunk := list(islice(lines, size)):
            for line in _translated(chunk, translator, decoding, words=options.words):
                if line.problem:
                    failed += 1
                    warn(f"{options.input or 'standard input'}, line {line.number}: {line.problem}")
                print(_written(line, as_json=options.json), file=out)
            out.flush()
            count += len(chunk)
    if failed:
        warn(f"{failed:,} of {count:,} lines could not be translated")
        sys.exit(1)


def _spare(source: str | None, target: str) -> None:
    """Refuses to write translations over what is translated."""
    if source is not None and Path(target).exists() and Path(target).samefile(source):
        raise ValueError(f"--output: {target} is what is translated, and would be overwritten")


@dataclass(frozen=True)
class _Line:
    """A line and what came of it."""

    number: int
    text: str | None
    """None if it could not be read."""

    translations: Sequence[Translation] = ()
    problem: str = ""
    """Why there are none."""


def _given(path: str | None) -> Iterator[_Line]:
    lines = lines_of(sys.stdin.buffer) if path is None else read_lines(path)
    for number, line in enumerate(lines, start=1):
        problem = f"{line.problem}: {line.message}" if line.text is None else ""
        yield _Line(number, line.text, problem=problem)


def _translated(
    chunk: Sequence[_Line], translator: TextTranslator, decoding: TranslatingConfig, words: int
) -> Iterator[_Line]:
    """The same lines with their translations, or with what is wrong with them."""
    from ngsan.predict.translating import too_long

    ids = translator.subwords.encode_all([line.text or "" for line in chunk])
    problems = [
        line.problem or too_long(sentence) for line, sentence in zip(chunk, ids, strict=True)
    ]
    sound = [sentence for sentence, problem in zip(ids, problems, strict=True) if not problem]
    found = iter(translator.translate_ids(sound, decoding=decoding, words=words))
    for line, problem in zip(chunk, problems, strict=True):
        yield replace(line, problem=problem, translations=() if problem else next(found))


def _written(line: _Line, *, as_json: bool) -> str:
    if not as_json:
        return str(line.translations[0]) if line.translations else ""
    content: dict[str, Any] = {"source": line.text}
    if line.problem:
        content["error"] = line.problem
    else:
        content["translations"] = [
            {
                "text": found.text,
                "score": round(found.score, 4),
                "log_probability": round(found.log_probability, 4),
                "cut_off": not found.ended,
            }
            for found in line.translations
        ]
    return json.dumps(content, ensure_ascii=False)
