"""A page that shows a dataset: its numbers, and some images with regions and captions.

The page is one file that loads nothing from elsewhere. All text from the data is escaped.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ngsan.atomic_io import write_output
from ngsan.data.captions import CAPTIONS, ImageCaptions, read_captions
from ngsan.data.inspection import inspect
from ngsan.data.sampler import random_keys
from ngsan.data.store import FeatureStore, Regions
from ngsan.html import data_uri, render

MAX_BOXES = 36
"""Boxes drawn on an image."""

_MAX_BAR = 40
_THUMBNAIL = 480
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_UNKNOWN_SIZE = (4, 3)


class _Uncaptioned(NamedTuple):
    """An image with features but no captions."""

    id: str
    split: str = ""
    captions: tuple[str, ...] = ()
    file: str | None = None
    size: tuple[int, int] | None = None


def write_gallery(
    folder: str | Path,
    path: str | Path,
    *,
    facts: dict[str, Any] | None = None,
    images: str | Path | None = None,
    count: int = 24,
    seed: int = 0,
) -> None:
    """Writes the page.

    Args:
        folder: The dataset folder; captions or features alone are enough.
        path: The HTML file; replaced.
        facts: The result of `inspect` for the folder; None to call it.
        images: The folder of the pictures, which become small JPEGs in the page. A missing picture
            is replaced by a plain box with the image's proportions.
        count: Number of images to show, chosen at random.
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
    coverage = (facts["vocabulary_facts"] or {"coverage": {}})["coverage"]
    page = render(
        "gallery.html.j2",
        title=folder.resolve().name,
        facts=facts,
        total=_images(facts) or len(store or ()),
        seed=seed,
        splits=[
            (name, split["images"], split["captions"], _percent(coverage.get(name)))
            for name, split in facts["splits"].items()
        ],
        bars=_bars(facts["captions"]["words"]["histogram"]) if facts["captions"] else None,
        cards=cards,
        max_boxes=MAX_BOXES,
        shown=_shown,
    )
    write_output(path, page)


def _images(facts: Mapping[str, Any]) -> int:
    return sum(split["images"] for split in facts["splits"].values())


def _chosen(
    folder: Path, store: FeatureStore | None, facts: Mapping[str, Any], count: int, seed: int
) -> Iterator[ImageCaptions | _Uncaptioned]:
    """Some images in the order of the folder, or of the store if it has no captions."""
    if (folder / CAPTIONS).exists():
        total = _images(facts)
        records: Iterable[ImageCaptions | _Uncaptioned] = read_captions(folder)
    else:
        total = len(store or ())
        records = map(_Uncaptioned, store.ids() if store is not None else ())
    wanted = set(np.argsort(random_keys(total, seed), kind="stable")[:count].tolist())
    # `total` ends at the first bad line.
    for place, record in zip(range(total), records, strict=False):
        if place in wanted:
            yield record


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f} %"


def _bars(histogram: Mapping[str, int]) -> dict[str, Any] | None:
    """Bars for the lengths from the shortest to the longest; the last holds all above 40."""
    if not histogram:
        return None
    longest = max(map(int, histogram))
    last = min(_MAX_BAR, longest)
    first = min(last, *map(int, histogram))
    counts = dict.fromkeys(range(first, last + 1), 0)
    for length, captions in histogram.items():
        counts[min(int(length), last)] += captions
    most = max(counts.values())
    bars = [(length, count, f"{100 * count / most:.1f}") for length, count in counts.items()]
    return {"bars": bars, "first": first, "last": last, "more": longest > last}


def _card(
    record: ImageCaptions | _Uncaptioned, regions: Regions | None, images: str | Path | None
) -> dict[str, Any]:
    """One image with its boxes and captions."""
    picture, shape = _thumbnail(record, images)
    width, height = (regions.size if regions else None) or record.size or shape or _UNKNOWN_SIZE
    number = 0 if regions is None else len(regions.features)
    about = [record.split] if record.split else []
    return {
        "id": record.id,
        "captions": record.captions,
        "about": " · ".join([*about, f"{number} regions" if number else "no features"]),
        "width": width,
        "height": height,
        "picture": picture,
        "view": f"{1000 * height / width:.1f}",
        "boxes": _boxes(regions, height / width),
    }


def _boxes(regions: Regions | None, ratio: float) -> list[dict[str, Any]]:
    """Boxes on a picture that is 1000 units wide; small ones come last."""
    if regions is None or regions.boxes is None:
        return []
    boxes = regions.boxes[:MAX_BOXES] * np.array([1000.0, 1000.0 * ratio] * 2)
    found = []
    for number in np.argsort(-boxes[:, 2] * boxes[:, 3], kind="stable").tolist():
        x, y, width, height = boxes[number].tolist()
        left, top = x - width / 2, y - height / 2
        numbers = {"x": left, "y": top, "width": width, "height": height}
        numbers |= {"text_x": min(left + 8, 900), "text_y": top + 60}
        shown = {name: f"{value:.1f}" for name, value in numbers.items()}
        found.append({"number": number, "hue": number * 137 % 360, **shown})
    return found


def _thumbnail(
    record: ImageCaptions | _Uncaptioned, images: str | Path | None
) -> tuple[str | None, tuple[int, int] | None]:
    """A picture as a data address, and its size; None without one, "" if it cannot be read."""
    path = None if images is None else _picture_path(record, Path(images))
    if path is None:
        return None, None
    try:
        with Image.open(path) as picture:
            size = picture.size
            picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
            content = io.BytesIO()
            picture.convert("RGB").save(content, "JPEG", quality=80)
    except (OSError, Image.DecompressionBombError):
        return "", None
    return data_uri(content.getvalue(), "image/jpeg"), size


def _picture_path(record: ImageCaptions | _Uncaptioned, images: Path) -> Path | None:
    """The file of an image: named by the captions, or by its id."""
    names = [record.file, Path(record.file).name] if record.file else []
    names += [record.id + suffix for suffix in _SUFFIXES]
    for name in names:
        path = images / name
        # Data from elsewhere must not put other files of this machine into the page.
        if path.is_file() and path.resolve().is_relative_to(images.resolve()):
            return path
    return None
