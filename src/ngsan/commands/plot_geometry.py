"""`ngsan plot geometry`: the geometric bias of a model as a function of geometry."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ngsan.commands.command_line import Parser
from ngsan.plots import SurfaceRow, check_ending, plot_surfaces

if TYPE_CHECKING:
    from torch import Tensor

    from ngsan.config import CaptionerConfig
    from ngsan.models import Captioner
    from ngsan.studio.bias import Bias

DESCRIPTION = """Draws the geometric bias of a model's attention as the paper's appendix does: over
the distances dx, dy of two regions at sizes dw = dh of 0.5, 1 and 2, and over the ratios dw, dh of
their sizes, that of the region that looks to that of the other, which is smaller where they are
larger, at distances dx = dy of 0.5, 1 and 2. A bias that depends on the query is drawn for the mean
query of the images that are given, or, without any, for the part of the query that does not depend
on content. docs/geometry.md tells how to read it."""

_MOST_IMAGES = 200
_STEPS = 61


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(prog="ngsan plot geometry", description=DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", type=str, help="a model's folder, also packed")
    parser.add_argument("--to", type=str, required=True, help="the figure: .png, .pdf or .svg")
    parser.add_argument("--layer", type=int, default=1, help="whose heads are drawn, from 1")
    parser.add_argument(
        "--mean",
        action="store_true",
        help="draw a row for each layer, the mean of its heads, rather than for each head",
    )
    parser.add_argument(
        "--images",
        type=str,
        nargs="+",
        default=[],
        help="photographs or folders of them, for the mean query of a model of photographs",
    )
    parser.add_argument(
        "--data",
        type=str,
        default=None,
        help="a dataset folder, for the mean query of a model of regions",
    )
    parser.add_argument("--title", type=str, default="", help="above the figure")
    return parser


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    options = make_parser().parse_args(arguments)
    plot_geometry(
        options.model,
        options.to,
        layer=None if options.mean else options.layer,
        images=options.images,
        data=options.data,
        title=options.title,
    )


def plot_geometry(
    model: str,
    to: str,
    *,
    layer: int | None = 1,
    images: list[str] | None = None,
    data: str | None = None,
    title: str = "",
) -> None:
    """Draws the bias of a model.

    Args:
        model: Its folder.
        to: The figure.
        layer: Whose heads are drawn, from 1; None for the mean of the heads of every layer.
        images: Photographs or folders of them, for the mean query.
        data: A dataset folder, for the mean query of a model of regions.
        title: Above the figure; of itself it says what is drawn.

    Raises:
        ValueError: The model has no geometric bias or no such layer, or takes other images.
    """
    from ngsan.models.saved_captioner import load_captioner
    from ngsan.studio.bias import Bias, bias_surfaces

    check_ending(to)
    captioner, config, _ = load_captioner(model)
    if layer is not None and not 1 <= layer <= config.layers:
        raise ValueError(f"--layer: {layer} is not one of 1 to {config.layers}")
    state = {name: tensor.float().numpy() for name, tensor in captioner.state_dict().items()}
    biases = [Bias.of(state, config, number) for number in range(config.layers)]
    found = [bias for bias in biases if bias is not None]
    if not found:
        raise ValueError(
            f"{model}: geometry: {config.geometry} adds no bias to the scores; there is nothing "
            "to draw"
        )
    typical, of_what = _typical(captioner, config, found, images or [], data)
    chosen = (
        [(number, None, f"layer {number + 1}") for number in range(config.layers)]
        if layer is None
        else [(layer - 1, head, f"head {head + 1}") for head in range(config.heads)]
    )
    rows = []
    for number, head, label in chosen:
        query, key = typical[number]
        surfaces = bias_surfaces(
            found[number],
            head=head,
            query=query,
            key=key,
            steps=_STEPS,
            two_sided=config.signed_geometry,
        )
        rows.append(SurfaceRow(label, surfaces.position, surfaces.size))
    where = "mean of the heads" if layer is None else f"layer {layer}"
    plot_surfaces(
        rows,
        to,
        offsets=surfaces.offsets,
        title=title or f"Geometric bias ({found[0].kind}), {where}{of_what}",
    )
    Console().print(f"the figure is in {to}", highlight=False)


_Means = list[tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]]


def _typical(
    captioner: "Captioner",
    config: "CaptionerConfig",
    biases: "list[Bias]",
    images: list[str],
    data: str | None,
) -> tuple[_Means, str]:
    """Of each layer the Q' and K' to draw for, and in words whose they are."""
    from ngsan.explain.biases import mean_inputs

    depends = [name for name in ("query", "key") if name in biases[0].parts]
    if not depends:
        return [(None, None)] * len(biases), ""
    if not images and data is None:
        return [(None, None)] * len(biases), f"; constant part of the {' and '.join(depends)}"
    photographs = config.backbone != "none"
    if photographs != bool(images) or (images and data is not None):
        wanted = "photographs: --images" if photographs else "regions: --data"
        raise ValueError(f"this model takes {wanted}, and no other, gives its mean query")
    taken = _pixels(images, config.image_size) if photographs else _regions(str(data))
    number = 0

    def counted() -> "Iterator[tuple[Tensor, Tensor | None]]":
        nonlocal number
        for image in islice(taken, _MOST_IMAGES):
            number += 1
            yield image

    means: Any = [
        tuple(None if (of := bias.project(x[None], name)) is None else of[0] for name in _BOTH)
        for bias, x in zip(biases, mean_inputs(captioner.float(), counted()), strict=True)
    ]
    return means, f"; mean {' and '.join(depends)} of {number} images"


_BOTH = ("query", "key")


def _pixels(paths: list[str], size: int) -> "Iterator[tuple[Tensor, None]]":
    import torch

    from ngsan.vision.images import find_images, open_image, to_square

    for path in find_images(paths):
        square = to_square(open_image(path, near=2 * size), size)
        yield torch.from_numpy(square).permute(2, 0, 1)[None], None


def _regions(folder: str) -> "Iterator[tuple[Tensor, Tensor | None]]":
    import torch

    from ngsan.data import FeatureStore

    store = FeatureStore(Path(folder))
    for identity in store.ids():
        regions = store[identity]
        boxes = None if regions.boxes is None else torch.tensor(regions.boxes)[None]
        yield torch.tensor(regions.features).float()[None], boxes
