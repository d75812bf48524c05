"""The geometric bias of a photograph's cell: a part of `/v1/explain`.

Shapes: `N` cells, `D` model width.
"""

import dataclasses
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from ngsan.serve.options import Option, read_value
from ngsan.serve.reading import Square
from ngsan.serve.refusals import Refusal

if TYPE_CHECKING:
    from ngsan.explain import Explainer

_MOST = 1000

OPTIONS = {
    "region": Option(int, "A cell, row by row from 0, whose bias is to be told.", 0, _MOST),
    "layer": Option(int, "With region: the layer, from 0 (0).", 0, _MOST),
    "head": Option(int, "With region: the head, from 0; without it, the mean.", 0, _MOST),
}
"""Options of a request that asks for it."""


@dataclasses.dataclass(frozen=True)
class Looking:
    """Whose bias is asked for."""

    region: int
    """The cell that looks, from 0."""

    layer: int = 0
    """From 0."""

    head: int | None = None
    """From 0; None for the mean of the heads."""


def take_looking(given: MutableMapping[str, Any], *, texts: bool) -> Looking | None:
    """Takes whose bias is asked for out of the options of a request.

    Args:
        given: The options.
        texts: Whether the values are the texts of a form.

    Raises:
        Refusal: A value is not right.
    """
    try:
        values: dict[str, Any] = {
            name: read_value(name, given.pop(name), option, texts)
            for name, option in OPTIONS.items()
            if name in given
        }
    except ValueError as error:
        raise Refusal(422, str(error)) from None
    if values and "region" not in values:
        raise Refusal(422, f"{next(iter(values))} has a use with region only")
    return Looking(**values) if values else None


def surfaces_of(explainer: "Explainer", square: Square, looking: Looking) -> dict[str, Any]:
    """The bias of a cell as a function of geometry, as `/v1/bias` tells that of a thing.

    Raises:
        ValueError: There is no such cell, layer or head, or the model has no bias.
    """
    import torch

    from ngsan.explain.biases import region_inputs
    from ngsan.studio.bias import Bias, bias_surfaces

    captioner, config = explainer.captioner, explainer.config
    at = f"layers.{looking.layer}.attention.score_bias."
    state = {name: tensor.numpy() for name, tensor in captioner.state_dict().items() if at in name}
    bias = Bias.of(state, config, looking.layer)
    if bias is None:
        raise ValueError("region: this model has no geometric bias")
    pixels = torch.from_numpy(square.pixels).permute(2, 0, 1)[None]
    x = region_inputs(captioner, pixels)[looking.layer]  # (N, D)
    if looking.region >= len(x):
        raise ValueError(f"region: {looking.region} is not one of 0 to {len(x) - 1}")
    query, key = bias.project(x, "query"), bias.project(x, "key")
    made = bias_surfaces(
        bias,
        head=looking.head,
        query=None if query is None else query[looking.region],
        key=None if key is None else key.mean(0),
        two_sided=config.signed_geometry,
    )
    return dataclasses.asdict(made)
