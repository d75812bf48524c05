"""The page: one HTML file that needs nothing else, loads nothing and sends nothing.

Everything that comes from files or models is escaped, and the page's own policy forbids all
addresses, and all scripts and styles but its own, which it knows by their hashes.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from string import Template

import ngsan
from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.durable import make_folder, write_output
from ngsan.explain.assets import as_json, as_text, asset
from ngsan.explain.cells import DIMMED, TINTED, WARM
from ngsan.explain.maps import Explainer
from ngsan.explain.section import About, Detail, section, thumbnail
from ngsan.vision.images import ImageError, open_image

_DEFAULT = DecodingConfig()

ROOM = 4_500_000
"""Bytes that the maps of the regions may take in a page; `Detail` follows from it."""

_SCRIPTS = ("page.js", "words.js", "regions.js", "start.js")


def write_page(
    model_folder: str | Path,
    images: Sequence[str | Path],
    to: str | Path,
    *,
    decoding: DecodingConfig = _DEFAULT,
    captions: Sequence[Sequence[str]] | None = None,
    bylines: Sequence[str] | None = None,
    on_image: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """Captions photographs and writes a page about how.

    A photograph that cannot be read is named on the page and in the result, and the page is
    written for the others.

    Args:
        model_folder: A model of photographs, as `load_captioner` opens it.
        images: The files.
        to: The HTML file, which is written whole or not at all; its folder is made if need be.
        decoding: How captions are written.
        captions: For each image captions that were written already, which are explained instead;
            an image without any gets new ones. None to write all of them.
        bylines: For each image whose it is, to be named beside it; None for nobody's.
        on_image: Told after each image, read or not, how many are done.

    Returns:
        A sentence for each photograph that cannot be read, in characters that UTF-8 can hold.

    Raises:
        ValueError: The folder is no model of photographs, there is no image, not one of them can
            be read, or `captions` or `bylines` are not as many.
        OSError: The page cannot be written.
    """
    for name, given in (("captions", captions), ("bylines", bylines)):
        if given is not None and len(given) != len(images):
            raise ValueError(f"{name} of {len(given)} images for {len(images)} images")
    if not images:
        raise ValueError("there are no images: name at least one")
    explainer = Explainer.open(model_folder)
    detail = choose_detail(explainer, len(images))
    sections: list[str] = []
    rules: list[str] = []
    links: list[str] = []
    failures: list[str] = []
    for number, path in enumerate(images):
        try:
            # As captioners read it, so that both see the same pixels.
            picture = open_image(path, near=2 * explainer.size)
        except ImageError as error:
            failures.append(as_text(str(error)))
        else:
            said = () if captions is None else captions[number]
            explained = explainer.explain(picture, decoding=decoding, number=number, said=said)
            place = len(sections) + 1
            name = as_text(Path(path).name)
            credit = "" if bylines is None else as_text(bylines[number])
            about = About(place, name, credit, explainer.grid, detail)
            sections.append(section(about, picture, explained))
            rules.append(f".thumb-{place}{{background-image:url({thumbnail(picture)})}}")
            links.append(_link(place, name, explained.captions[0].text))
        on_image(number + 1)
    if not sections:
        raise ImageError(f"not one of {len(images)} images can be read; the first: {failures[0]}")
    page = _page(explainer, detail, sections, rules, links, failures)
    target = Path(to)
    make_folder(target.parent)
    write_output(target, page)
    return failures


def choose_detail(explainer: Explainer, images: int) -> Detail:
    """What of the regions fits into `ROOM`, by the model's shape and the number of images."""
    rows, columns = explainer.grid
    has_bias, heads = _has_bias(explainer.config), explainer.config.heads
    # What one head, or the mean of all, takes in one map; `section` says which maps there are.
    one = images * explainer.config.layers * (rows * columns) * (rows * columns + 4)
    if one * (3 * heads + 1 if has_bias else heads) <= ROOM:
        return "heads"
    return "means" if one * (3 if has_bias else 1) <= ROOM else "none"


def _page(
    explainer: Explainer,
    detail: Detail,
    sections: Sequence[str],
    rules: Sequence[str],
    links: Sequence[str],
    failures: Sequence[str],
) -> str:
    config = explainer.config
    style = asset("page.css") + "\n".join(rules)
    script = "\n".join(asset(name) for name in _SCRIPTS)
    settings = {
        "grid": explainer.grid,
        "dimmed": DIMMED,
        "tinted": TINTED,
        "warm": WARM,
        "note": _note(config),
    }
    missing = ""
    if failures:
        items = "".join(f"<li>{escape(failure)}</li>" for failure in failures)
        missing = f'<div class="missing"><p>Could not be read:</p><ul>{items}</ul></div>\n'
    contents = ""
    if len(links) > 1:
        contents = f'<nav class="contents" aria-label="Photographs">{"".join(links)}</nav>'
    cells = f"{explainer.grid[0]} × {explainer.grid[1]}"
    return Template(asset("page.html")).substitute(
        policy=_policy(style, script),
        title="Where the model looked",
        style=style,
        facts=escape(_facts(config, cells, detail)),
        cells=cells,
        parts=_parts(config),
        missing=missing,
        contents=contents,
        photos="".join(sections),
        version=escape(ngsan.__version__),
        settings=as_json(settings),
        script=script,
    )


def _policy(style: str, script: str) -> str:
    """Forbids everything but pictures within the page, its own style and its own script."""
    own = [
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; img-src data:; style-src {own[0]}; script-src {own[1]}; "
        "base-uri 'none'; form-action 'none'"
    )


def _has_bias(config: CaptionerConfig) -> bool:
    return any(term != "absolute" for term in config.geometry_terms)


def _facts(config: CaptionerConfig, cells: str, detail: Detail) -> str:
    """The model in a line."""
    name = ("N" if config.norm != "none" else "") + ("G" if _has_bias(config) else "")
    parts = [f"{name}-SAN" if name else "SAN", f"{cells} cells", f"{config.layers} layers"]
    parts[-1] += f" of {config.heads} heads"
    if detail == "means":
        parts.append("of so many photographs, heads are shown by their mean")
    elif detail == "none":
        parts.append("of so many photographs, only the words are shown")
    return " · ".join(parts)


def _parts(config: CaptionerConfig) -> str:
    """What decides how much a cell looks at another, for the guide; HTML."""
    if not _has_bias(config):
        return "what they look like, the <b>content</b>"
    return (
        "two things: what they look like, the <b>content</b>, and how they lie to each other, the "
        "<b>geometry</b>. Content alone gives every cell a share; geometry makes it greater or "
        "smaller by a factor; the product, made to sum to one again, is what the model used"
    )


def _note(config: CaptionerConfig) -> str:
    """What is to be known of this model above its maps of the regions."""
    norm = ""
    if config.norm != "none":
        of = {"query": "The queries", "key": "The keys", "both": "Queries and keys"}[config.norm_of]
        norm = f"{of} of all cells are normalised first ({config.norm} norm)"
        norm += ", so that content tells cells apart (NSA). " if config.norm == "instance" else ". "
    if _has_bias(config):
        return f"{norm}Content times geometry is what the model used."
    if "absolute" in config.geometry_terms:
        return (
            f"{norm}This model adds the place of a cell to what it looks like; there is no "
            "geometric part of its attention."
        )
    return f"{norm}This model has no geometric part: its attention follows content alone."


def _link(place: int, name: str, caption: str) -> str:
    text = f"{escape(name)}: {escape(caption)}"
    return (
        f'<a class="thumb-{place}" href="#photo-{place}" title="{text}">'
        f'<span class="hidden">{text}</span></a>'
    )
