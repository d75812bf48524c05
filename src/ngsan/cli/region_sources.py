"""The options of `ngsan extract` that say what the regions are, and what they open."""

import argparse
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngsan.cli.parser import Parser, UsageError, number
from ngsan.data.boxes import read_boxes
from ngsan.predict.captioner import PHOTO_MODEL

if TYPE_CHECKING:
    from ngsan.vision.regions import Boxes, RegionSource

_DEFAULTS = {
    "source": ["cells"],
    "extractor": "grid",
    "top": None,
    "pool": "crop",
    "size": 0,
    "engine": "local",
    "detector": None,
    "min_regions": None,
    "max_regions": None,
    "min_score": None,
}
"""Defaults of options that do not apply everywhere."""

_OF_CELLS = ("extractor", "top", "size")
_OF_BOXES = ("max_regions", "pool")
_OF_OBJECTS = ("detector", "min_regions", "min_score")


def add_source_options(parser: Parser) -> None:
    """Adds the options to a parser."""
    parser.option(
        "source",
        metavar=("NAME", "FILE"),
        nargs="+",
        default=_DEFAULTS["source"],
        help="the regions: cells (the default: what --extractor makes), objects (boxes of a "
        "detector) or boxes FILE (COCO's annotations, or npz with image_id, offset and box)",
    )
    parser.option(
        "extractor",
        metavar="NAME",
        default=_DEFAULTS["extractor"],
        help="with cells or --pool roi: grid, grid:NAME, photo (the backbone of the model that "
        "ships with ngsan), photo:DIR (of another), hf:NAME or timm:NAME (an image model of "
        "transformers or timm), onnx:FILE or torchvision:NAME",
    )
    parser.option(
        "size",
        type=int,
        metavar="N",
        default=_DEFAULTS["size"],
        help="side of the images of a grid (default: what its network was made for; 256 for "
        "EfficientNet-Lite; with --pool roi 448)",
    )
    parser.option(
        "top",
        choices=("features", "head"),
        default=_DEFAULTS["top"],
        help="last layer of a grid's network (default: features; with --pool roi head, which has "
        "1280 channels)",
    )
    parser.option(
        "pool",
        choices=("crop", "roi"),
        default=_DEFAULTS["pool"],
        help="with objects or boxes: crop, every box is cut out and encoded alone, or roi, pooled "
        "from the map of the whole image, with PyTorch",
    )
    parser.option(
        "detector",
        metavar="NAME",
        help="with objects: hf:NAME of transformers or torchvision:NAME (default: the detector "
        "that comes with the package)",
    )
    parser.option(
        "min-regions",
        type=int,
        metavar="N",
        help="with objects: boxes per image that are kept however low their scores (default: 10)",
    )
    parser.option(
        "max-regions",
        type=int,
        metavar="N",
        help="with objects or boxes: most boxes per image (default: 100)",
    )
    parser.option(
        "min-score",
        type=number,
        metavar="P",
        help="with objects: lowest score of boxes beyond --min-regions (default: 0.05)",
    )


def take_source(options: argparse.Namespace) -> None:
    """Splits the words after --source into its name, a file of boxes, and paths of images.

    Sets `options.source` to the name and `options.boxes` to the file, or to None.
    """
    kind, *rest = options.source
    options.boxes = None
    if kind == "boxes":
        if not rest:
            raise UsageError("--source boxes: the file of boxes is missing")
        options.boxes, *rest = rest
    elif kind not in ("cells", "objects"):
        raise UsageError(f"--source: {kind!r} is not one of cells, objects, boxes")
    options.source = kind
    options.paths = [*options.paths, *rest]
    if not options.paths:
        raise UsageError("PATH is missing; see 'ngsan extract --help'")
    if kind == "cells":
        refuse(options, (*_OF_BOXES, *_OF_OBJECTS), "--source cells")
    elif options.pool == "crop":
        refuse(options, _OF_CELLS, f"--source {kind} --pool crop")
    if kind == "boxes":
        refuse(options, _OF_OBJECTS, "--source boxes")


def refuse(options: argparse.Namespace, names: Sequence[str], where: str) -> None:
    """Raises a `UsageError` if an option was given that does not apply."""
    for name in names:
        default = "cells" if name == "source" else _DEFAULTS[name]
        if getattr(options, name) != default:
            raise UsageError(f"--{name.replace('_', '-')} does not apply to {where}")


def open_source(options: argparse.Namespace, device: str) -> "RegionSource":
    """Opens what the options name.

    Args:
        options: After `take_source`.
        device: Where PyTorch runs networks.

    Raises:
        ValueError: A file is missing or wrong, or a package is missing.
    """
    if options.source == "cells":
        return _open_cells(options.extractor, options.size, options.top or "features", device)
    boxes = _open_boxes(options, device)
    if options.pool == "roi":
        return _open_roi(options, boxes, device)
    from ngsan.vision.keywords import EYE, KEYWORD_MODEL, Eye
    from ngsan.vision.regions import CropSource

    return CropSource(boxes, Eye(KEYWORD_MODEL / EYE, threads=options.threads))


_CELLS = re.compile(r"grid (?P<name>\S+) \w+, (?P<size>\d+) px, \d+ cells x (?P<width>\d+)")
_OBJECTS = re.compile(
    r"(crops by eye \w+|roi of (?P<name>\S+) \w+, (?P<size>\d+) px x (?P<width>\d+)), "
    r"(?P<least>\d+) to (?P<most>\d+) boxes of detector (?P<detector>\S+), score (?P<score>\S+)"
)
_TORCHVISION = re.compile(r"torchvision (?P<name>\S+) .*")


def open_described(description: str, parse: Callable[[list[str]], Any]) -> "RegionSource":
    """Opens the source that made the features of a store.

    Args:
        description: What the store says of its source.
        parse: Reads the options of `add_source_options`.

    Raises:
        ValueError: It cannot be opened for other photographs, or is another one by now.
    """
    signature = description.removeprefix("extract ")
    for words in _commands(signature):
        source = open_source(parse(words), "cpu")
        if source.signature == signature:
            return source
    raise ValueError(
        f"the model was trained on features of {description!r}, which cannot be made of other "
        "photographs here: extract them with `ngsan extract` in the same way, and pass them to "
        "Captioner.caption_regions in Python"
    )


def _commands(signature: str) -> list[list[str]]:
    """Options that may name the source with a signature."""
    if found := _CELLS.fullmatch(signature):
        name = found["name"]
        if ":" in name:
            return [["--extractor", name]]
        top = ["--top", "head"] if found["width"] == "1280" else []
        return [["--extractor", f"grid:{name}", "--size", found["size"], *top]] + (
            [] if top else [["--extractor", "photo"]]
        )
    if found := _OBJECTS.fullmatch(signature):
        names = {"min-regions": "least", "max-regions": "most", "min-score": "score"}
        limits = [word for name, key in names.items() for word in (f"--{name}", found[key])]
        own = ["--detector", found["detector"]] if ":" in found["detector"] else []
        if found["name"] is not None:
            network = found["name"] if ":" in found["name"] else f"grid:{found['name']}"
            layer = "head" if found["width"] == "1280" else "features"
            own += [
                "--pool",
                "roi",
                "--extractor",
                network,
                "--size",
                found["size"],
                "--top",
                layer,
            ]
        return [["--source", "objects", *limits, *own]]
    if found := _TORCHVISION.fullmatch(signature):
        return [["--extractor", f"torchvision:{found['name']}"]]
    return []


def _open_roi(options: argparse.Namespace, boxes: "Boxes", device: str) -> "RegionSource":
    from ngsan.predict.backend_torch import best_device  # late: it takes seconds
    from ngsan.vision.backbone import build_backbone
    from ngsan.vision.roi import SIZE, RoiSource

    kind, _, name = options.extractor.partition(":")
    if kind not in ("grid", "hf", "timm"):
        raise UsageError(f"--extractor: {kind!r} has no map for --pool roi; use grid, hf or timm")
    text = name or "efficientnet-lite2" if kind == "grid" else options.extractor
    size = options.size or (SIZE if kind == "grid" else 0)
    backbone = build_backbone(text, size=size, top=options.top or "head")
    return RoiSource(boxes, backbone, best_device(device))


def _open_boxes(options: argparse.Namespace, device: str) -> "Boxes":
    from ngsan.vision.detector import SHIPPED_DETECTOR, load_detector
    from ngsan.vision.regions import DetectedBoxes, GivenBoxes

    names = ("min_regions", "max_regions", "min_score")
    limits = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.boxes is not None:
        return GivenBoxes(read_boxes(options.boxes), **limits)
    name = options.detector
    path = Path(name or SHIPPED_DETECTOR)
    detector = load_detector(name, threads=options.threads, device=device)
    content = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else name
    return DetectedBoxes(detector, content, **limits)


def _open_cells(text: str, size: int, top: str, device: str) -> "RegionSource":
    from ngsan.predict.backend_torch import best_device  # late: it takes seconds
    from ngsan.vision.sources import open_source

    kind, _, folder = text.partition(":")
    if kind == "photo":
        from ngsan.predict.answerer import photo_source

        return photo_source(folder or PHOTO_MODEL, device)
    return open_source(text, size=size, top=top, device=best_device(device))  # type: ignore[arg-type]
