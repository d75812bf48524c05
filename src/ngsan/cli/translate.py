"""`ngsan translate`: translates lines of text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngsan.cli.output import Record, RecordWriter, check_outputs, warn
from ngsan.cli.parser import TORCH_DEVICE, Command, Parser
from ngsan.config import TranslationDecodingConfig
from ngsan.data.text_files import lines_of, read_lines

if TYPE_CHECKING:
    from ngsan.predict.translator import Translator

_CHUNK = 2000
"""Lines that are translated together; on a terminal, each line is translated at once."""


def _add_options(parser: Parser) -> None:
    usual = TranslationDecodingConfig()
    parser.add_argument(
        "files", metavar="FILE", nargs="*", help="text, plain or .gz (default: standard input)"
    )
    parser.options("model", "output", "format")
    parser.option("num-return", default=1, help="translations per line, at most --beam")
    parser.option("beam", default=usual.beam)
    parser.option("length-penalty", default=usual.length_penalty)
    parser.option("batch-size", default=4000, help="subwords per batch, padding included")
    parser.option("device", help=TORCH_DEVICE)
    parser.option("precision")


@dataclass(frozen=True)
class _Line:
    """A line of input; without text if it could not be read."""

    source: str
    number: int
    text: str | None
    problem: str = ""


def _run(options: argparse.Namespace) -> int:
    decoding = TranslationDecodingConfig(
        beam=options.beam, num_return=options.num_return, length_penalty=options.length_penalty
    )
    if options.model is not None and not Path(options.model).is_dir():
        raise ValueError(f"--model: folder not found: {options.model}")
    for path in options.files:
        Path(path).open("rb").close()  # before the seconds that the model takes
    check_outputs({"--output": options.output}, options.files)
    from ngsan.predict.translator import load_translator

    translator = load_translator(options.model, device=options.device, precision=options.precision)
    writer = RecordWriter(
        options.output,
        options.format,
        text=_text,
        fields=("source", "translation", "score", "error"),
        rows=_rows,
    )
    lines, count, failed = _lines(options.files), 0, 0
    size = 1 if not options.files and sys.stdin.isatty() else _CHUNK
    try:
        while chunk := list(islice(lines, size)):
            for line, record in _translated(chunk, translator, decoding, options.batch_size):
                if "error" in record:
                    failed += 1
                    warn(f"{line.source}, line {line.number}: {record['error']}")
                writer.add(record)
            count += len(chunk)
    except BaseException:
        writer.discard()
        raise
    writer.close()
    if failed:
        warn(f"{failed:,} of {count:,} lines could not be translated")
    return 1 if failed else 0


def _lines(paths: Sequence[str]) -> Iterator[_Line]:
    sources = [(path, read_lines(path)) for path in paths]
    if not sources:
        sources = [("standard input", lines_of(sys.stdin.buffer))]
    return chain.from_iterable(
        (
            _Line(
                source,
                number,
                line.text,
                "" if line.text is not None else f"{line.problem}: {line.message}",
            )
            for number, line in enumerate(lines, start=1)
        )
        for source, lines in sources
    )


def _translated(
    chunk: Sequence[_Line],
    translator: Translator,
    decoding: TranslationDecodingConfig,
    batch_size: int,
) -> Iterator[tuple[_Line, dict[str, Any]]]:
    """The lines with records of their translations, or of what is wrong with them."""
    from ngsan.predict.translator import too_long

    ids = translator.subwords.encode_all([line.text or "" for line in chunk])
    problems = [line.problem or too_long(one) for line, one in zip(chunk, ids, strict=True)]
    sound = [one for one, problem in zip(ids, problems, strict=True) if not problem]
    found = iter(translator.translate_ids(sound, decoding=decoding, words=batch_size))
    for line, problem in zip(chunk, problems, strict=True):
        record: dict[str, Any] = {"source": line.text}
        if problem:
            yield line, {**record, "error": problem}
            continue
        found_line = next(found)
        best, *others = [
            {
                "translation": one.text,
                "score": round(one.score, 4),
                "log_probability": round(one.log_probability, 4),
                "cut_off": not one.ended,
            }
            for one in (found_line, *found_line.others)
        ]
        record |= best
        yield line, {**record, "others": others} if decoding.num_return > 1 else record


def _text(record: Record) -> str:
    """A line per translation, and an empty one for a line that has none."""
    return "".join(f"{one.get('translation', '')}\n" for one in _rows(record))


def _rows(record: Record) -> list[Record]:
    return [record, *({**record, **one} for one in record.get("others", ()))]


TRANSLATE = Command(
    """Translate text, one sentence per line. A line that cannot be translated is reported, an empty
    line (or a record with its error) stands in its place, and the exit status is 1. The model that
    ships translates short English descriptions of pictures into German.""",
    _add_options,
    _run,
    [
        "translate captions.en -o captions.de",
        "translate --model runs/translator --num-return 3 --format json captions.en",
    ],
)
