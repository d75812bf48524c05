"""`ngsan answer`: answers questions about a photograph, and shows where the model looked."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ngsan.commands.caption_output import warn
from ngsan.commands.command_line import Parser
from ngsan.durable import write_output

if TYPE_CHECKING:
    from ngsan.predict.answers import Answers

DESCRIPTION = """Answers questions about a photograph: prints the best answers, how sure the model
is of each, and where it looked. A photograph is cut into cells, counted from the top left."""

STRONGEST = 3
"""Cells that are told."""

_SHOWN = 80
"""Characters of a question that are repeated where something is wrong with it."""


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    options = _parser().parse_args(arguments)
    if options.count < 1:
        raise ValueError(f"--count: {options.count} is not at least 1")
    if options.picture and len(options.questions) > 1:
        raise ValueError("--picture shows where the model looked for one question: ask one")
    if options.picture and not (folder := Path(options.picture).absolute().parent).is_dir():
        raise ValueError(f"--picture: there is no folder {folder}")
    # Only now: it takes seconds, and a wrong command line should be told at once.
    from ngsan.predict.answers import QuestionAnswerer

    answerer = QuestionAnswerer.load(
        options.model, photo_model=options.photo_model, device=options.device
    )
    if options.picture and answerer.config.regions == "none":
        raise ValueError("--picture: this model answers from the question alone")
    given = [
        answerer.answer(options.image, asked, count=options.count) for asked in options.questions
    ]
    for one in given:
        if one.unread:
            read = len(one.words)
            asked = shorten(one.question, _SHOWN, placeholder=" ...")
            warn(f"{asked!r}: only its first {read} words are read, {one.unread} are not")
    if options.json:
        print(json.dumps([_plain(one) for one in given], ensure_ascii=False, indent=2))
    else:
        for one in given:
            _show(one)
    if options.picture:
        _draw(options.image, given[0], Path(options.picture))


def _show(given: "Answers") -> None:
    console = Console()
    console.print(given.question, style="italic", highlight=False, markup=False, soft_wrap=True)
    table = Table(show_header=False)
    for answer in given.answers:
        # As text, since words in square brackets would be taken for markup.
        table.add_row(Text(answer.text), f"{100 * answer.probability:.1f} %")
    console.print(table)
    for line in _lines(given):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _lines(given: "Answers") -> list[str]:
    lines = []
    if given.regions is not None:
        places = ", ".join(f"{place} ({100 * share:.0f} %)" for place, share in _looked(given))
        lines.append(f"looked at: {places}")
    heard = sorted(given.words, key=lambda pair: -pair[1])[:STRONGEST]
    lines.append("listened to: " + ", ".join(f"{word} ({100 * w:.0f} %)" for word, w in heard))
    if given.unknown:
        lines.append(f"does not know: {', '.join(dict.fromkeys(given.unknown))}")
    return lines


def _looked(given: "Answers") -> list[tuple[str, float]]:
    """The places that counted most, in words, and how much they did."""
    assert given.regions is not None
    side = math.isqrt(len(given.regions))
    order = (-given.regions).argsort(kind="stable")[:STRONGEST].tolist()
    is_grid = side * side == len(given.regions)
    return [
        (
            f"row {cell // side + 1}, column {cell % side + 1}"
            if is_grid
            else f"region {cell + 1}",
            float(given.regions[cell]),
        )
        for cell in order
    ]


def _plain(given: "Answers") -> dict[str, Any]:
    """The answers as JSON values."""
    return {
        "question": given.question,
        "answers": [{"answer": a.text, "probability": a.probability} for a in given.answers],
        "words": [{"word": word, "weight": weight} for word, weight in given.words],
        "unknown": list(given.unknown),
        "regions": None if given.regions is None else given.regions.tolist(),
        "boxes": None if given.boxes is None else given.boxes.tolist(),
    }


def _draw(image: str, given: "Answers", path: Path) -> None:
    """Writes the photograph, dark where the model did not look."""
    import io

    import numpy as np
    from PIL import Image

    from ngsan.vision.images import open_image

    assert given.regions is not None
    assert given.boxes is not None
    photo = open_image(image)
    light = np.zeros((photo.height, photo.width))
    for weight, (x, y, w, h) in zip(given.regions, given.boxes, strict=True):
        rows = slice(_pixel(y - h / 2, photo.height), _pixel(y + h / 2, photo.height))
        columns = slice(_pixel(x - w / 2, photo.width), _pixel(x + w / 2, photo.width))
        light[rows, columns] += weight
    share = 0.25 + 0.75 * light / max(float(light.max()), 1e-9)
    pixels = np.asarray(photo) * share[..., None]
    content = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(content, "PNG")
    write_output(path, content.getvalue())


def _pixel(place: float, size: int) -> int:
    return min(size, max(0, round(place * size)))


def _parser() -> Parser:
    parser = Parser(prog="ngsan answer", description=DESCRIPTION)
    parser.add_argument("image", metavar="IMAGE", type=str, help="the photograph")
    parser.add_argument(
        "questions",
        metavar="QUESTION",
        type=str,
        nargs="+",
        help='such as "how many dogs?"; several are answered one after the other',
    )
    options: Sequence[tuple[str, Any, Any, str]] = (
        ("model", str | None, None, "the model's folder; without it, the model that ships"),
        (
            "photo-model",
            str | None,
            None,
            "the captioner whose backbone made the regions that the model has learned from; "
            "without it, the one that ships",
        ),
        ("device", str, "cpu", "where it runs, such as cuda; auto for a GPU if there is one"),
        ("count", int, 5, "answers to each question"),
        (
            "picture",
            str | None,
            None,
            "write a PNG that shows where the model looked, for one question",
        ),
    )
    for name, kind, default, text in options:
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON: the answers, and the weights of all words and regions",
    )
    return parser
