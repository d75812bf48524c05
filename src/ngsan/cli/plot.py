"""`ngsan plot`: figures of training runs, and of a model's geometric bias."""

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ngsan.cli.output import note
from ngsan.cli.parser import Command, Group, Parser
from ngsan.plots import SurfaceRow, check_ending, plot_curves, plot_surfaces, read_curve

if TYPE_CHECKING:
    from ngsan.app.attention import AttentionModel, Floats

_MAX_IMAGES = 200
"""Images whose mean query is drawn for."""

_STEPS = 61


def _figure_options(parser: Parser) -> None:
    parser.option(
        "output", metavar="FILE", required=True, help="figure to write: .png, .pdf or .svg"
    )
    parser.option("title")


def _metrics_options(parser: Parser) -> None:
    parser.add_argument(
        "logs", metavar="LOG", nargs="+", help="log.jsonl of a run; NAME=LOG names the run"
    )
    _figure_options(parser)
    parser.option("metrics", default="CIDEr", help="metrics, separated by commas, a panel each")


def _plot_metrics(options: argparse.Namespace) -> None:
    names = [name.strip() for name in options.metrics.split(",")]
    runs = [_named(log) for log in options.logs]
    curves = {name: [read_curve(path, name, label) for label, path in runs] for name in names}
    plot_curves(curves, options.output, title=options.title)
    note(f"wrote {options.output}")


def _named(log: str) -> tuple[str | None, str]:
    """The label and the file of NAME=FILE, or of FILE alone."""
    label, mark, path = log.partition("=")
    return (label, path) if mark and "/" not in label else (None, log)


def _geometry_options(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model folder, also a packed one")
    _figure_options(parser)
    parser.option("layer", type=int, metavar="N", default=1, help="layer whose heads are drawn")
    parser.option(
        "mean", action="store_true", help="draw a row per layer, the mean of its heads, instead"
    )
    parser.option(
        "images", help="folder of photographs, for the mean query of a model of photographs"
    )
    parser.option("data", help="dataset folder, for the mean query of a model of regions")


def _run_geometry(options: argparse.Namespace) -> None:
    plot_geometry(
        options.model,
        options.output,
        layer=None if options.mean else options.layer,
        images=[options.images] if options.images else (),
        data=options.data,
        title=options.title,
    )
    note(f"wrote {options.output}")


def plot_geometry(
    model: str,
    output: str,
    *,
    layer: int | None = 1,
    images: Sequence[str] = (),
    data: str | None = None,
    title: str = "",
) -> None:
    """Draws the geometric bias of a model.

    Args:
        model: Its folder.
        output: The figure.
        layer: Whose heads are drawn, from 1; None for the mean of the heads of every layer.
        images: Photographs or folders of them, for the mean query.
        data: A dataset folder, for the mean query of a model of regions.
        title: Above the figure; by default it says what is drawn.

    Raises:
        ValueError: The model has no geometric bias or no such layer, or reads other images.
    """
    from ngsan.app.attention import AttentionModel

    check_ending(output)
    found = AttentionModel.open(model)
    config = found.config
    if layer is not None and not 1 <= layer <= config.layers:
        raise ValueError(f"--layer: {layer} is not one of 1 to {config.layers}")
    if not found.has_bias:
        raise ValueError(f"{model}: geometry: {config.geometry} has no bias to draw")
    mean, of_what = _mean_inputs(found, images, data)
    chosen = (
        [(number, None, f"layer {number + 1}") for number in range(config.layers)]
        if layer is None
        else [(layer - 1, head, f"head {head + 1}") for head in range(config.heads)]
    )
    rows = []
    for number, head, label in chosen:
        surfaces = found.surfaces(
            layer=number,
            head=head,
            query=mean,
            key=mean,
            steps=_STEPS,
            two_sided=config.signed_geometry,
        )
        rows.append(SurfaceRow(label, surfaces.position, surfaces.size))
    where = "mean of the heads" if layer is None else f"layer {layer}"
    plot_surfaces(
        rows,
        output,
        offsets=surfaces.offsets,
        title=title or f"Geometric bias ({surfaces.kind}), {where}{of_what}",
    )


def _mean_inputs(
    model: "AttentionModel", images: Sequence[str], data: str | None
) -> "tuple[Floats | None, str]":
    """The mean inputs of the bias to draw it for, (L, D), and their description."""
    depends = [name for name in ("query", "key") if name in model.config.geometry_terms]
    if not depends:
        return None, ""
    if not images and data is None:
        return None, f"; constant part of the {' and '.join(depends)}"
    photographs = model.cell_boxes is not None
    if photographs != bool(images) or (images and data is not None):
        wanted = "photographs: pass --images" if photographs else "regions: pass --data"
        raise ValueError(f"the mean query of this model needs {wanted}")
    regions = _cells(model, images) if photographs else _regions(str(data))
    count = 0

    def counted() -> "Iterator[tuple[Floats, Floats | None]]":
        nonlocal count
        for image in islice(regions, _MAX_IMAGES):
            count += 1
            yield image

    mean = model.mean_inputs(counted())
    return mean, f"; mean {' and '.join(depends)} of {count} images"


def _cells(
    model: "AttentionModel", paths: Sequence[str]
) -> "Iterator[tuple[Floats, Floats | None]]":
    from ngsan.vision.decoding import shared_service
    from ngsan.vision.images import find_images

    size = model.config.image_size
    for path in find_images(paths):
        (square,), _ = shared_service().squares(path, (size,))
        yield model.cell_features(square), model.cell_boxes


def _regions(folder: str) -> "Iterator[tuple[Floats, Floats | None]]":
    from ngsan.data import FeatureStore

    store = FeatureStore(Path(folder))
    for image in store.ids():
        regions = store[image]
        yield regions.features, regions.boxes


PLOT = Group(
    "Draw figures.",
    {
        "metrics": Command(
            "Draw metrics by epoch from the logs of training runs, as Figure 2 of the paper does.",
            _metrics_options,
            _plot_metrics,
            [
                "plot metrics runs/mine/log.jsonl -o curve.png",
                "plot metrics SAN=runs/san/log.jsonl NG-SAN=runs/mine/log.jsonl -o curves.pdf "
                "--metrics CIDEr,BLEU-4",
            ],
        ),
        "geometry": Command(
            """Draw the geometric bias of a model's attention, as the paper's appendix does: over
            the distances dx, dy of two regions at sizes dw = dh of 0.5, 1 and 2, and over the
            ratios dw, dh of their sizes (query divided by key) at distances
            dx = dy of 0.5, 1 and 2. A bias that depends on the query is drawn for the mean query of
            the given images or, without any, for the part of the query that does not depend on
            content. See docs/geometry.md.""",
            _geometry_options,
            _run_geometry,
            [
                "plot geometry runs/mine -o bias.png --data mydata",
                "plot geometry runs/photo -o bias.png --mean --images photos",
            ],
        ),
    },
)
