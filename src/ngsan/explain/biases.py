"""What the geometric biases of a captioner read: of the regions of an image, or on average.

Shapes: `B` images, `N` regions, `D` model width.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.models import Captioner
from ngsan.models.photo import PhotoEncoder


@torch.inference_mode()
def mean_inputs(
    captioner: Captioner, images: Iterable[tuple[Tensor, Tensor | None]]
) -> list[NDArray[np.float32]]:
    """The mean over all regions of some images of what each layer's bias makes Q' and K' of.

    Q' and K' are linear in it, so theirs are the mean Q' and K'.

    Args:
        captioner: A model with a geometric bias, in evaluation mode.
        images: What `Captioner.encode` takes as features and boxes, images of one number of
            regions together, without padding.

    Returns:
        (D,) of each layer.

    Raises:
        ValueError: The model has no geometric bias, or there are no images.
    """
    sums: dict[int, Tensor] = {}
    count = 0

    def add(layer: int, given: Tensor) -> None:
        total = given.double().sum((0, 1))
        sums[layer] = sums[layer] + total if layer in sums else total

    with _watched(captioner, add):
        for features, boxes in images:
            count += captioner.encode(features, boxes).shape[:2].numel()
    if not count:
        raise ValueError("there are no images to take the mean query of")
    return [(sums[layer] / count).float().numpy() for layer in sorted(sums)]


@torch.inference_mode()
def region_inputs(
    captioner: Captioner, features: Tensor, boxes: Tensor | None = None
) -> list[NDArray[np.float32]]:
    """What each layer's bias makes Q' and K' of, for every region of one image.

    Args:
        captioner: A model with a geometric bias, in evaluation mode.
        features: What `Captioner.encode` takes, of one image.
        boxes: Likewise.

    Returns:
        (N, D) of each layer.

    Raises:
        ValueError: The model has no geometric bias.
    """
    found: dict[int, Tensor] = {}
    with _watched(captioner, lambda layer, given: found.update({layer: given[0]})):
        captioner.encode(features, boxes)
    return [found[layer].float().numpy() for layer in sorted(found)]


@contextmanager
def _watched(captioner: Captioner, see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Calls `see` with the number of a layer and what its bias reads, (B, N, D)."""
    regions = captioner.encoder
    if isinstance(regions, PhotoEncoder):
        regions = regions.regions
    layers: Any = regions.layers
    biases = [layer.attention.score_bias for layer in layers]
    if None in biases:
        raise ValueError("this model has no geometric bias")

    def watcher(layer: int) -> Callable[..., None]:
        def watch(_: Any, given: tuple[Tensor, Tensor]) -> None:
            see(layer, given[1])

        return watch

    hooks = [bias.register_forward_pre_hook(watcher(i)) for i, bias in enumerate(biases)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
