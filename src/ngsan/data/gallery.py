"""A page that shows a dataset: its numbers, and some images with regions and captions.

The page is one file that needs nothing else: style, pictures and boxes are in it, and it names no
host. All text that comes from the data is escaped.
"""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ngsan.data.captions import CAPTIONS, ImageCaptions, read_captions
from ngsan.data.inspection import inspect
from ngsan.data.store import FeatureStore, Regions
from ngsan.durable import write_output

MOST_BOXES = 36
"""Boxes drawn on an image."""

_THUMBNAIL = 480
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_UNKNOWN_SIZE = (4, 3)

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf7; --card: #fff; --ink: #22252a; --soft: #6a7078;
  --line: #e0ddd5; --accent: #b4431f; --empty: #ebe8e1; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --card: #1f2226; --ink: #e6e4df;
  --soft: #9aa0a8; --line: #34383e; --accent: #f0906a; --empty: #2b2f35; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 1.25rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .75rem; }
p { margin: .25rem 0; } .soft { color: var(--soft); font-size: .875rem; }
.tables, .cards { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
.panel, .card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
.panel { padding: .75rem 1rem; } .panel h2 { margin: 0 0 .5rem; font-size: 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem 0; border-top: 1px solid var(--line); text-align: left; font-weight: 400; }
tr:first-child > * { border-top: 0; } td, th.number { text-align: right; padding-left: 1rem; }
thead th { color: var(--soft); font-size: .875rem; }
.problems li { color: var(--accent); }
.bars { display: flex; align-items: flex-end; height: 6rem; gap: 1px; margin-top: .5rem; }
.bars i { flex: 1; background: var(--accent); min-height: 1px; }
.ends { display: flex; justify-content: space-between; }
.card { overflow: hidden; } .card .text { padding: .75rem 1rem; }
.card ul { margin: .5rem 0 0; padding-left: 1.1rem; }
.picture { position: relative; background: var(--empty); }
.picture img, .picture svg { position: absolute; inset: 0; width: 100%; height: 100%;
  display: block; }
rect { fill: transparent; stroke: var(--box); stroke-width: 1.5; opacity: .8;
  vector-effect: non-scaling-stroke; }
g text { opacity: 0; pointer-events: none; fill: #fff; stroke: #000; stroke-width: 8;
  paint-order: stroke; font: 700 60px system-ui, sans-serif; }
g:hover rect { stroke-width: 3.5; opacity: 1; } g:hover text { opacity: 1; }
"""


class _Uncaptioned(NamedTuple):
    """What is known of an image when there are features alone."""

    id: str
    split: str = ""
    captions: tuple[str, ...] = ()
    file: str | None = None
    size: tuple[int, int] | None = None


def write_gallery(
    folder: str | Path,
    to: str | Path,
    *,
    facts: dict[str, Any] | None = None,
    images: str | Path | None = None,
    count: int = 24,
    seed: int = 0,
) -> None:
    """Writes the page.

    Args:
        folder: The dataset folder; captions or features alone are enough.
        to: The HTML file, which is written anew.
        facts: What `inspect` said of the folder; None to ask it.
        images: The folder of the pictures, which become small JPEGs in the page. Without it, or
            where a picture is not found, a plain box of the image's proportions stands for it.
        count: Images to show, chosen by chance.
        seed: Seed of the choice.
    """
    folder = Path(folder)
    if count < 0:
        raise ValueError(f"count: {count} must be at least 0")
    if images is not None and not Path(images).is_dir():
        raise ValueError(f"images: {images} is not a folder")
    facts = inspect(folder) if facts is None else facts
    store = None if facts["regions"] is None else FeatureStore(folder)
    cards = [
        _card(record, None if store is None or record.id not in store else store[record.id], images)
        for record in _chosen(folder, store, facts, count, seed)
    ]
    total = sum(split["images"] for split in facts["splits"].values()) or len(store or ())
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(folder.resolve().name)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header><h1>{escape(folder.resolve().name)}</h1>
<p class="soft">{len(cards)} of {total:,} images, chosen by chance (seed {seed})</p></header>
<main>
<section class="tables">{"".join(_tables(facts))}</section>
<h2>Images</h2>
<p class="soft">Point at a box, or tap it, for the region's number in the store, from 0. At most
{MOST_BOXES} boxes are drawn.</p>
<section class="cards">{"".join(cards)}</section>
</main>
</body>
</html>
"""
    write_output(to, page)


def _chosen(
    folder: Path, store: FeatureStore | None, facts: Mapping[str, Any], count: int, seed: int
) -> Iterator[ImageCaptions | _Uncaptioned]:
    """Some images in the order of the folder; of a folder without captions, those of the store."""
    if (folder / CAPTIONS).exists():
        total = sum(split["images"] for split in facts["splits"].values())
        records: Iterable[ImageCaptions | _Uncaptioned] = read_captions(folder)
    else:
        total = len(store or ())
        ids = store.ids() if store is not None else iter(())
        records = map(_Uncaptioned, ids)
    keys = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(total)
    wanted = set(np.argsort(keys, kind="stable")[:count].tolist())
    # `total` ends where a bad line stands: beyond it nothing can be read.
    for place, record in zip(range(total), records, strict=False):
        if place in wanted:
            yield record


def _tables(facts: Mapping[str, Any]) -> Iterator[str]:
    """The inspection's numbers."""
    if facts["problems"]:
        items = "".join(f"<li>{escape(problem)}</li>" for problem in facts["problems"])
        yield f'<div class="panel problems"><h2>Problems</h2><ul>{items}</ul></div>'
    if facts["splits"]:
        coverage = (facts["vocabulary_facts"] or {"coverage": {}})["coverage"]
        yield _panel(
            "Splits",
            [
                (name, split["images"], split["captions"], _percent(coverage.get(name)))
                for name, split in facts["splits"].items()
            ],
            head=("split", "images", "captions", "words known"),
        )
    if facts["vocabulary"]:
        about = facts["vocabulary_facts"]
        rows = [("words", facts["vocabulary"]), ("ids", about["ids"])]
        rows += [("signature", about["signature"])]
        yield _panel("Vocabulary", rows)
    if facts["captions"]:
        words = facts["captions"]["words"]
        yield _panel("Words in a caption", _spread(words), more=_bars(words["histogram"]))
    if facts["regions"]:
        about = facts["region_facts"]
        rows = [("images", about["images"]), ("regions", facts["regions"]), *_spread(about)]
        rows += [("feature width", about["feature_dim"]), ("signature", about["signature"])]
        yield _panel("Regions", rows)
    for key, title in (("missing", "Without features"), ("orphaned", "Without captions")):
        if facts[key]:
            rows = [("images", facts[key]["count"])]
            rows += [("such as", ", ".join(facts[key]["first"]))] if facts[key]["first"] else []
            yield _panel(title, rows)


def _panel(
    title: str, rows: Iterable[tuple[Any, ...]], *, head: tuple[str, ...] = (), more: str = ""
) -> str:
    titles = "".join(
        f'<th scope="col"{" class=number" if place else ""}>{escape(name)}</th>'
        for place, name in enumerate(head)
    )
    lines = "".join(
        f'<tr><th scope="row">{escape(str(name))}</th>'
        + "".join(f"<td>{escape(_shown(value))}</td>" for value in values)
        + "</tr>"
        for name, *values in rows
    )
    return (
        f'<div class="panel"><h2>{escape(title)}</h2><table>'
        + (f"<thead><tr>{titles}</tr></thead>" if head else "")
        + f"<tbody>{lines}</tbody></table>{more}</div>"
    )


def _shown(value: object) -> str:
    """A value as people read it."""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f} %"


def _spread(about: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, about[name]) for name in ("fewest", "mean", "most")]


def _bars(histogram: Mapping[str, int]) -> str:
    """Bars for the lengths from the shortest to the longest, all above 40 in the last."""
    if not histogram:
        return ""
    first, last = min(map(int, histogram)), min(40, max(map(int, histogram)))
    heights = [0] * (last - min(first, last) + 1)
    for length, captions in histogram.items():
        heights[min(int(length), last) - min(first, last)] += captions
    bars = "".join(
        f'<i style="height:{100 * height / max(heights):.1f}%" '
        f'title="{place} words: {height:,} captions"></i>'
        for place, height in enumerate(heights, start=min(first, last))
    )
    more = " or more" if max(map(int, histogram)) > last else ""
    return (
        f'<div class="bars" role="img" aria-label="captions of each length">{bars}</div>'
        f'<div class="ends soft"><span>{min(first, last)}</span><span>{last}{more}</span></div>'
    )


def _card(
    record: ImageCaptions | _Uncaptioned, regions: Regions | None, images: str | Path | None
) -> str:
    """One image with its boxes and captions."""
    picture, shape = _thumbnail(record, images)
    width, height = (regions.size if regions else None) or record.size or shape or _UNKNOWN_SIZE
    number = 0 if regions is None else len(regions.features)
    about = [record.split] if record.split else []
    about += [f"{number} regions" if number else "no features"]
    captions = "".join(f"<li>{escape(caption)}</li>" for caption in record.captions)
    return (
        f'<article class="card"><div class="picture" style="aspect-ratio:{width}/{height}">'
        f"{picture}{_boxes(regions, height / width)}</div>"
        f'<div class="text"><strong>{escape(record.id)}</strong> '
        f'<span class="soft">{escape(" · ".join(about))}</span>'
        f"<ul>{captions}</ul></div></article>"
    )


def _boxes(regions: Regions | None, ratio: float) -> str:
    """Boxes as drawing over the picture, 1000 units wide; small ones above large ones."""
    if regions is None or regions.boxes is None:
        return ""
    scale = np.array([1000.0, 1000.0 * ratio] * 2)
    boxes = regions.boxes[:MOST_BOXES] * scale
    shapes = []
    for number in np.argsort(-boxes[:, 2] * boxes[:, 3], kind="stable").tolist():
        x, y, width, height = boxes[number].tolist()
        left, top = x - width / 2, y - height / 2
        shapes.append(
            f'<g style="--box:hsl({number * 137 % 360} 85% 55%)"><title>region {number}</title>'
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
            f'<text x="{min(left + 8, 900):.1f}" y="{top + 60:.1f}">{number}</text></g>'
        )
    view = f"0 0 1000 {1000 * ratio:.1f}"
    return f'<svg viewBox="{view}" role="img" aria-label="regions">{"".join(shapes)}</svg>'


def _thumbnail(
    record: ImageCaptions | _Uncaptioned, images: str | Path | None
) -> tuple[str, tuple[int, int] | None]:
    """A picture as an element of the page and its size; nothing if there is none."""
    path = None if images is None else _picture_path(record, Path(images))
    if path is None:
        return "", None
    try:
        with Image.open(path) as picture:
            size = picture.size
            picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
            content = io.BytesIO()
            picture.convert("RGB").save(content, "JPEG", quality=80)
    except (OSError, Image.DecompressionBombError):
        return '<p class="soft" style="padding:1rem">This picture cannot be read.</p>', None
    data = base64.b64encode(content.getvalue()).decode()
    return f'<img alt="{escape(record.id)}" src="data:image/jpeg;base64,{data}">', size


def _picture_path(record: ImageCaptions | _Uncaptioned, images: Path) -> Path | None:
    """The file of an image: as the captions name it, or else called by its id."""
    names = [record.file, Path(record.file).name] if record.file else []
    names += [record.id + suffix for suffix in _SUFFIXES]
    for name in names:
        path = images / name
        # Data that others wrote shall not put any file of this machine into the page.
        if path.is_file() and path.resolve().is_relative_to(images.resolve()):
            return path
    return None
