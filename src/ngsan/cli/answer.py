"""`ngsan answer`: answers questions about a photograph, and shows where the model looked."""

import argparse
import io
import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from ngsan.atomic_io import write_output
from ngsan.cli.output import Record, RecordWriter, check_outputs, note, warn
from ngsan.cli.parser import TORCH_DEVICE, Command, Parser

if TYPE_CHECKING:
    from ngsan.predict.answerer import Answers

_STRONGEST = 3
"""Cells and words that are listed."""

_SHOWN = 80
"""Characters of a question that are repeated in a warning."""


def _add_options(parser: Parser) -> None:
    parser.add_argument("image", metavar="IMAGE", help="photograph")
    parser.add_argument(
        "questions", metavar="QUESTION", nargs="+", help='question such as "how many dogs?"'
    )
    parser.options("model", "output", "format")
    parser.option("num-return", default=5, help="answers per question, best first")
    parser.option(
        "figure",
        metavar="FILE",
        help="write a PNG that shows where the model looked, for one question",
    )
    parser.option(
        "photo-model",
        metavar="DIR",
        help="captioner whose backbone made the regions of the training data (default: the one "
        "that ships with ngsan)",
    )
    parser.option("device", help=TORCH_DEVICE)


def _run(options: argparse.Namespace) -> None:
    if options.figure and len(options.questions) > 1:
        raise ValueError("--figure shows one question only; pass one question")
    check_outputs({"--output": options.output, "--figure": options.figure}, [options.image])
    from ngsan.predict.answerer import load_answerer  # late: it takes a second

    answerer = load_answerer(options.model, photo_model=options.photo_model, device=options.device)
    if options.figure and answerer.config.regions == "none":
        raise ValueError("--figure: this model answers without the image")
    found = [
        answerer.answer(options.image, question, num_return=options.num_return)
        for question in options.questions
    ]
    for answers in found:
        if answers.unread:
            question = shorten(answers.question, _SHOWN, placeholder=" ...")
            warn(
                f"{question!r}: the model reads the first {len(answers.words)} words only, not the "
                f"last {answers.unread}"
            )
    writer = RecordWriter(
        options.output,
        options.format,
        text=_text,
        fields=("image", "question", "answer", "probability"),
        rows=lambda record: [{**record, **answer} for answer in record["answers"]],
    )
    for answers in found:
        writer.add({"image": options.image, **_record(answers)})
    writer.close()
    if options.figure:
        _draw(options.image, found[0], Path(options.figure))
        note(f"wrote {options.figure}")


def _text(record: Record) -> str:
    lines = [record["question"]]
    width = max((len(one["answer"]) for one in record["answers"]), default=0)
    for one in record["answers"]:
        lines.append(f"  {one['answer']:{width}}  {100 * one['probability']:5.1f} %")
    if record["regions"] is not None:
        places = _strongest(_places(len(record["regions"])), record["regions"])
        lines.append(f"looked at: {places}")
    words = [word["word"] for word in record["words"]]
    weights = [word["weight"] for word in record["words"]]
    lines.append(f"most important words: {_strongest(words, weights)}")
    if record["unknown"]:
        lines.append(f"unknown words: {', '.join(dict.fromkeys(record['unknown']))}")
    return "\n".join(lines) + "\n"


def _strongest(names: Sequence[str], weights: Sequence[float]) -> str:
    order = sorted(range(len(names)), key=lambda place: -weights[place])[:_STRONGEST]
    return ", ".join(f"{names[place]} ({100 * weights[place]:.0f} %)" for place in order)


def _places(count: int) -> list[str]:
    """The names of regions: the rows and columns of cells if they make a square."""
    side = math.isqrt(count)
    if side * side != count:
        return [f"region {number + 1}" for number in range(count)]
    return [f"row {cell // side + 1}, column {cell % side + 1}" for cell in range(count)]


def _record(answers: "Answers") -> dict[str, Any]:
    return {
        "question": answers.question,
        "answers": [{"answer": a.text, "probability": a.probability} for a in answers.answers],
        "words": [{"word": word, "weight": weight} for word, weight in answers.words],
        "unknown": list(answers.unknown),
        "regions": None if answers.regions is None else answers.regions.tolist(),
        "boxes": None if answers.boxes is None else answers.boxes.tolist(),
    }


def _draw(image: str, answers: "Answers", path: Path) -> None:
    """Writes the photograph, dark where the model did not look."""
    import numpy as np
    from PIL import Image

    from ngsan.vision.decoding import shared_service

    assert answers.regions is not None
    assert answers.boxes is not None
    photo = shared_service().picture(image).image
    light = np.zeros((photo.height, photo.width))
    for weight, (x, y, w, h) in zip(answers.regions, answers.boxes, strict=True):
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


ANSWER = Command(
    """Answer questions about a photograph. Prints the best answers with their probabilities, and
    where the model looked: rows and columns of cells, counted from the top left.""",
    _add_options,
    _run,
    [
        'answer photo.jpg "how many dogs?"',
        'answer photo.jpg "what animal is it?" "where is it?" --format json',
        'answer photo.jpg "how many dogs?" --figure looked.png --model runs/mcan-gsa',
    ],
)
