"""One photograph's part of the page."""

import base64
import io
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Any, Literal

import numpy as np
from PIL import Image

from ngsan.explain.assets import as_json, asset
from ngsan.explain.cells import as_data, percent, strongest, veil
from ngsan.explain.maps import Explained, Floats, Said
from ngsan.explain.packing import Blob

Detail = Literal["heads", "means", "none"]
"""What of the regions is in the page: every head, the mean of the heads, or nothing."""

FARTHEST = float(np.log(1000))
"""Largest bias that is told, either way: a factor of a thousand is as good as any beyond it, and in
8 bits the small ones would be lost."""

_PICTURE, _THUMBNAIL = 640, 112
"""Longest sides of the pictures, in pixels."""


@dataclass(frozen=True)
class About:
    """What is said of a photograph besides the model's part."""

    place: int
    """Its number in the page, from one."""

    name: str
    """Its file's name."""

    credit: str
    """Whose it is, or nothing."""

    grid: tuple[int, int]
    """Rows and columns of cells."""

    detail: Detail
    """What of the regions to put in."""


def section(about: About, picture: Image.Image, explained: Explained) -> str:
    """One photograph, as HTML.

    Args:
        about: What is said of it.
        picture: Upright and RGB.
        explained: What the model saw.
    """
    place, grid = about.place, about.grid
    credit = f' <span class="credit">Photograph: {escape(about.credit)}</span>'
    first, *others = explained.captions
    shown = [_spoken(first, place, grid), '<div class="which"></div>']
    shown += [
        f"<details><summary>Or: {escape(said.text)} "
        f'<span class="soft">({_odds(said.probability, first.probability)})</span></summary>'
        f"{_spoken(said, place, grid)}</details>"
        for said in others
    ]
    shown.append(_table(first, grid))
    scale = min(1, _PICTURE / max(picture.size))
    return Template(asset("photo.html")).substitute(
        number=place,
        name=escape(about.name),
        credit=credit if about.credit else "",
        picture=_jpeg(picture, _PICTURE),
        width=max(1, round(picture.width * scale)),
        height=max(1, round(picture.height * scale)),
        alt=escape(f"{about.name}: {first.text}"),
        hint="The small pictures show where the model looked: what stays bright, word by word.",
        captions="\n".join(shown),
        data=as_json(_data(explained, about.detail)),
    )


def _odds(probability: float, best: float) -> str:
    """How probable a caption is beside the first."""
    share = probability / best if best else 0.0
    return f"{percent(share)} as probable" if share < 1 else f"{share:.1f} times as probable"


def _spoken(said: Said, place: int, grid: tuple[int, int]) -> str:
    """A caption with a small picture for each word, which needs no script."""
    means = said.attention[-1].mean(0)
    words = [*said.words, "(end)"]
    sentence, frames = [], []
    for index, (word, share) in enumerate(zip(words, said.probabilities, strict=True)):
        is_end = index == len(said.words)
        bar = (
            '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect width="100" height="1"/><rect width="{100 * share:.0f}" height="1"/></svg>'
        )
        sentence.append(
            f'<span class="word{" end" if is_end else ""}">{escape(word)}'
            f'<span class="hidden">, {percent(share)}</span>{bar}</span>'
        )
        frames.append(
            f'<li class="frame"><div class="picture thumb-{place}">'
            f'<img alt="" src="{veil(means[index], grid)}"></div>'
            f"<b>{escape(word)}</b><span>{percent(share)}</span></li>"
        )
    return (
        f'<div class="spoken"><p class="sentence">{" ".join(sentence)}</p>'
        f'<ol class="strip" aria-label="Where the model looked, word by word">{"".join(frames)}'
        "</ol></div>"
    )


def _table(said: Said, grid: tuple[int, int]) -> str:
    """The words as a table, for those who do not see the pictures."""
    means = said.attention[-1].mean(0)
    rows = []
    for index, share in enumerate(said.probabilities):
        word = said.words[index] if index < len(said.words) else "(end)"
        cells = "; ".join(f"{where} ({percent(w)})" for where, w in strongest(means[index], grid))
        rows.append(
            f'<tr><th scope="row">{escape(word)}</th><td>{percent(share)}</td><td>{cells}</td></tr>'
        )
    return (
        '<details><summary>The words as a table</summary><div class="scroll"><table><thead><tr>'
        '<th scope="col">word</th><th scope="col">probability</th><th scope="col">looks most at'
        f"</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _data(explained: Explained, detail: Detail) -> dict[str, Any]:
    """What the script needs: words, probabilities, and the maps in a blob."""
    blob = Blob()

    def of_heads(maps: Floats) -> Floats:
        return maps if detail == "heads" else maps.mean(1, keepdims=True)

    captions = [
        {
            "words": said.words,
            "probabilities": [round(share, 5) for share in said.probabilities],
            "attention": blob.put(of_heads(said.attention)),
        }
        for said in explained.captions
    ]
    regions = None
    if detail != "none":
        regions = {"weights": blob.put(of_heads(explained.weights))}
        if explained.geometry is not None:
            regions["content"] = blob.put(of_heads(explained.content))
            regions["mean"] = blob.put(_mean_factors(explained), signed=True)
            if detail == "heads":
                told = explained.geometry.clip(-FARTHEST, FARTHEST)
                regions["geometry"] = blob.put(told, signed=True)
    content = base64.b64encode(blob.content()).decode()
    return {"captions": captions, "regions": regions, "blob": content}


def _mean_factors(explained: Explained) -> Floats:
    """By which factors geometry changes the mean of the heads, which has no bias of its own.

    Returns:
        (L, 1, N, N) their logarithms, at most `FARTHEST` either way.
    """
    least = np.finfo(np.float32).tiny  # shares of none at all have a logarithm, too
    content = explained.content.mean(1, keepdims=True).clip(least)
    weights = explained.weights.mean(1, keepdims=True).clip(least)
    factors: Floats = np.log(weights) - np.log(content)
    return factors.clip(-FARTHEST, FARTHEST)


def thumbnail(picture: Image.Image) -> str:
    """A small version for the list of photographs and the words, as a `data:` address."""
    return _jpeg(picture, _THUMBNAIL)


def _jpeg(picture: Image.Image, longest: int) -> str:
    """A picture made small, as a `data:` address."""
    small = picture.copy()
    small.thumbnail((longest, longest))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=80, optimize=True)
    return as_data("image/jpeg", content.getvalue())
