"""The explain page: one HTML file that shows where a captioner of photographs looked.

The page loads nothing and sends nothing. Its content security policy forbids all addresses, and all
scripts and styles but its own, which it knows by their hashes.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

import ngsan
from ngsan.app.attention import Floats
from ngsan.app.maps import LARGEST_BIAS, Blob, CaptionMaps, Explainer, Explanation
from ngsan.atomic_io import make_folder, write_output
from ngsan.config import CaptionerConfig
from ngsan.html import data_uri, render
from ngsan.vision.decoding import shared_service
from ngsan.vision.images import ImageError

Detail = Literal["heads", "means", "none"]
"""Which maps of the regions the page has: of every head, of the mean of the heads, or none."""

MAX_MAP_BYTES = 4_500_000
"""Bytes that the maps of the regions may take in a page; `choose_detail` keeps to it."""

DIMMED, TINTED = 0.7, 0.24
"""Opacity of the black over cells without attention, and of the colour over the cell with most."""

WARM = (255, 168, 38)
"""The colour of attention."""

_PICTURE, _THUMBNAIL = 640, 112
"""Longest sides of the pictures, in pixels."""


def write_page(
    explainer: Explainer,
    images: Sequence[str | Path],
    page: str | Path,
    captions: Sequence[Sequence[str]],
    *,
    credit_lines: Sequence[str] | None = None,
    objects: Sequence[Sequence[Mapping[str, Any]]] | None = None,
    remarks: Sequence[str] | None = None,
    on_image: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """Writes a page that explains captions of photographs.

    A photograph that cannot be read is named on the page and in the result.

    Args:
        explainer: A model of photographs, from `Explainer.open`.
        images: The files.
        page: The HTML file, which is written whole or not at all; its folder is created if needed.
        captions: For each image one or more captions, the best first.
        credit_lines: For each image the name of its photographer, or "".
        objects: For each image the records of the objects in it, to be drawn over it.
        remarks: For each image what else is known about it or its caption, or "".
        on_image: Called after each image, read or not, with the number of images done.

    Returns:
        A sentence for each photograph that cannot be read, without characters that UTF-8 cannot
        hold.

    Raises:
        ValueError: The list is empty, no image can be read, or `captions`, `credit_lines`,
            `objects` or `remarks` differ from `images` in number.
        OSError: The page cannot be written.
    """
    lists = {"captions": captions, "credit_lines": credit_lines, "objects": objects}
    lists["remarks"] = remarks
    for name, given in lists.items():
        if given is not None and len(given) != len(images):
            raise ValueError(f"{name} of {len(given)} images for {len(images)} images")
    if not images:
        raise ValueError("no images; pass at least one")
    detail = choose_detail(explainer, len(images))
    photos: list[dict[str, Any]] = []
    failures: list[str] = []
    for number, path in enumerate(images):
        try:
            # Read as captioners read it, so that both see the same pixels.
            picture = shared_service().picture(path, min_side=2 * explainer.size).image
        except ImageError as error:
            failures.append(_printable(str(error)))
        else:
            explanation = explainer.explain(picture, captions[number])
            about = {
                "name": Path(path).name,
                "credit": credit_lines[number] if credit_lines is not None else "",
                "remark": remarks[number] if remarks is not None else "",
                **_photo(picture, explanation, explainer.grid, detail),
            }
            drawn = None if objects is None else [_drawn(one, about) for one in objects[number]]
            about["objects"] = drawn
            photos.append(about)
        on_image(number + 1)
    if not photos:
        raise ImageError(f"none of {len(images)} images can be read; the first: {failures[0]}")
    target = Path(page)
    make_folder(target.parent)
    write_output(target, _render(explainer, detail, photos, failures))
    return failures


def choose_detail(explainer: Explainer, images: int) -> Detail:
    """Which maps of the regions fit into `MAX_MAP_BYTES`."""
    cells, config = len(explainer.cell_boxes), explainer.config
    # The bytes of one map of one head, or of the mean of the heads; `_data` lists the maps.
    one = images * config.layers * cells * (cells + 4)
    has_bias = explainer.model.has_bias
    if one * (3 * config.heads + 1 if has_bias else config.heads) <= MAX_MAP_BYTES:
        return "heads"
    return "means" if one * (3 if has_bias else 1) <= MAX_MAP_BYTES else "none"


def _render(
    explainer: Explainer, detail: Detail, photos: list[dict[str, Any]], failures: list[str]
) -> str:
    config, has_bias = explainer.config, explainer.model.has_bias
    name = ("N" if config.norm != "none" else "") + ("G" if has_bias else "")
    return render(
        "explain.html.j2",
        config=config,
        model_name=f"{name}-SAN" if name else "SAN",
        grid=explainer.grid,
        has_bias=has_bias,
        detail=detail,
        photos=photos,
        failures=failures,
        version=ngsan.__version__,
        settings={
            "grid": explainer.grid,
            "dimmed": DIMMED,
            "tinted": TINTED,
            "warm": WARM,
            "note": _note(config, has_bias),
        },
    )


def _note(config: CaptionerConfig, has_bias: bool) -> str:
    """What readers should know about this model before they look at its maps of the regions."""
    norm = ""
    if config.norm != "none":
        what = {"query": "The queries", "key": "The keys", "both": "Queries and keys"}
        norm = f"{what[config.norm_of]} of all cells are normalized first ({config.norm} norm)"
        norm += ", so that content tells cells apart (NSA). " if config.norm == "instance" else ". "
    if has_bias:
        return f"{norm}Content times geometry gives the attention that the model used."
    if "absolute" in config.geometry_terms:
        return (
            f"{norm}This model adds the position of a cell to its features; its attention has no "
            "separate geometric part."
        )
    return f"{norm}This model has no geometric part: its attention follows content alone."


@dataclass(frozen=True)
class _Word:
    """A word of a caption as the page shows it."""

    text: str
    is_end: bool
    probability: float
    percent: str
    """The probability in percent."""
    veil: str
    """A picture to lay over the photograph, as a `data:` address."""
    strongest: str
    """The three cells that it looked at most, in words."""


def _photo(
    picture: Image.Image, explanation: Explanation, grid: tuple[int, int], detail: Detail
) -> dict[str, Any]:
    """What the template shows of a photograph."""
    first = explanation.captions[0]
    scale = min(1, _PICTURE / max(picture.size))
    captions = [
        {
            "text": caption.text,
            "odds": _odds(caption.probability, first.probability),
            "words": _words(caption, grid),
        }
        for caption in explanation.captions
    ]
    return {
        "captions": captions,
        "picture": _jpeg(picture, _PICTURE),
        "thumbnail": _jpeg(picture, _THUMBNAIL),
        "width": max(1, round(picture.width * scale)),
        "height": max(1, round(picture.height * scale)),
        "data": _data(explanation, detail),
    }


def _drawn(found: Mapping[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """An object as a rectangle in the pixels of the picture, with a label."""
    x, y, width, height = found["box"]
    return {
        "text": f"{found['label']} {percent(found['confidence'])}",
        "left": round((x - width / 2) * about["width"]),
        "top": round((y - height / 2) * about["height"]),
        "width": round(width * about["width"]),
        "height": round(height * about["height"]),
    }


def _words(caption: CaptionMaps, grid: tuple[int, int]) -> list[_Word]:
    means = caption.attention[-1].mean(0)  # of the heads of the last layer
    words = [*caption.words, "(end)"]
    return [
        _Word(
            text,
            index == len(caption.words),
            caption.probabilities[index],
            percent(caption.probabilities[index]),
            veil(means[index], grid),
            "; ".join(
                f"{place(cell, grid)} ({percent(float(means[index][cell]))})"
                for cell in np.argsort(-means[index], kind="stable")[:3].tolist()
            ),
        )
        for index, text in enumerate(words)
    ]


def _data(explanation: Explanation, detail: Detail) -> dict[str, Any]:
    """What the script needs: words, probabilities, and the maps in a blob."""
    blob = Blob()

    def shown(maps: Floats) -> Floats:
        return maps if detail == "heads" else maps.mean(1, keepdims=True)

    captions = [
        {
            "words": caption.words,
            "probabilities": [round(share, 5) for share in caption.probabilities],
            "attention": blob.put(shown(caption.attention)),
        }
        for caption in explanation.captions
    ]
    regions = None
    if detail != "none":
        regions = {"weights": blob.put(shown(explanation.weights))}
        if explanation.geometry is not None:
            regions["content"] = blob.put(shown(explanation.content))
            regions["mean"] = blob.put(_mean_factors(explanation), signed=True)
            if detail == "heads":
                clipped = explanation.geometry.clip(-LARGEST_BIAS, LARGEST_BIAS)
                regions["geometry"] = blob.put(clipped, signed=True)
    return {"captions": captions, "regions": regions, "blob": blob.base64()}


def _mean_factors(explanation: Explanation) -> Floats:
    """By which factors geometry changes the mean of the heads, which has no bias of its own.

    Returns:
        (L, 1, N, N) their logarithms, at most `LARGEST_BIAS` either way.
    """
    least = np.finfo(np.float32).tiny  # so that shares of zero have a logarithm, too
    content = explanation.content.mean(1, keepdims=True).clip(least)
    weights = explanation.weights.mean(1, keepdims=True).clip(least)
    factors: Floats = np.log(weights) - np.log(content)
    return factors.clip(-LARGEST_BIAS, LARGEST_BIAS)


def veil(weights: Floats, grid: tuple[int, int]) -> str:
    """A picture to lay over a photograph: it darkens cells without attention.

    Args:
        weights: (N,) the attention of one word.
        grid: Rows and columns of cells.

    Returns:
        A PNG of one pixel per cell, as a `data:` address.
    """
    shares = weights[:, None] / max(float(weights.max()), 1e-9)
    tint = TINTED * shares
    alpha = DIMMED * (1 - shares) + tint
    pixels = np.concatenate((np.array(WARM) * tint / alpha, 255 * alpha), 1)
    content = io.BytesIO()
    image = Image.fromarray(np.rint(pixels).astype(np.uint8).reshape(*grid, 4))
    image.save(content, "PNG", optimize=True)
    return data_uri(content.getvalue(), "image/png")


def place(cell: int, grid: tuple[int, int]) -> str:
    """The position of a cell, such as "row 3, column 5", counted from one."""
    return f"row {cell // grid[1] + 1}, column {cell % grid[1] + 1}"


def percent(share: float) -> str:
    """A share in percent, such as "4.2 %"."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %" if value >= 0.05 else "< 0.1 %"


def _odds(probability: float, best: float) -> str:
    """How probable a caption is relative to the first."""
    share = probability / best if best else 0.0
    return f"{percent(share)} as probable" if share < 1 else f"{share:.1f} times as probable"


def _jpeg(picture: Image.Image, max_side: int) -> str:
    """A reduced picture, as a `data:` address."""
    small = picture.copy()
    small.thumbnail((max_side, max_side))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=80, optimize=True)
    return data_uri(content.getvalue(), "image/jpeg")


def _printable(text: str) -> str:
    """Text without lone surrogates, which stand for bytes of a file name that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
