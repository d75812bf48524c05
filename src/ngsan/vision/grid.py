"""An image as a grid of cells: any network that makes a map, with its pixels scaled and boxes made.

Shapes: `B` images, `S` side of an image in pixels, `G` cells along a side, `N` cells, row by row,
`C` channels.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

MEAN, DEVIATION = 127.0, 128.0
"""The network's input is (x - 127) / 128, for pixels from 0 to 255.

Note: the text of the published conversion gives ImageNet's mean and deviation instead; with them
    the classifier is less accurate. docs/extraction.md has the numbers.
"""


class Network(Protocol):
    """A module from images (B, 3, S, S), normalised, to a map (B, channels, G, G)."""

    name: str
    channels: int
    stride: int
    """Side of a cell in pixels: G = S / stride."""

    def __call__(self, images: Tensor) -> Tensor:
        """The map."""


class GridBackbone(nn.Module):
    """Computes the features of an image's cells."""

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        network: nn.Module,
        *,
        size: int,
        mean: Sequence[float] = (MEAN,),
        deviation: Sequence[float] = (DEVIATION,),
        description: str = "",
    ) -> None:
        """Checks that the parts fit.

        Args:
            network: See `Network`.
            size: The side of the images, a multiple of the network's stride.
            mean: Subtracted from the pixels, from 0 to 255, of each channel or of all.
            deviation: What the differences are divided by.
            description: What the network is built from, if that is more than its name.
        """
        super().__init__()
        made: Network = network  # type: ignore[assignment]
        if size < made.stride or size % made.stride:
            raise ValueError(f"size: {size} is not a positive multiple of {made.stride}")
        self.network, self.name, self.description = network, made.name, description
        self.size, self.channels, self.grid = size, made.channels, size // made.stride
        for name, values in {"mean": mean, "deviation": deviation}.items():
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    @property
    def cells(self) -> int:
        """N, the number of cells per image."""
        return self.grid**2

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, S, S), uint8 from 0 to 255 or floats from 0 to 1, to cells (B, N, C)."""
        if images.shape[1:] != (3, self.size, self.size):
            raise ValueError(
                f"images must have shape (images, 3, {self.size}, {self.size}), not "
                f"{tuple(images.shape)}"
            )
        if images.dtype == torch.uint8:
            images = (images.to(self.mean.dtype) - self.mean) / self.deviation
        else:
            images = images * (255 / self.deviation) - self.mean / self.deviation
        grid: Tensor = self.network(images)  # (B, C, G, G)
        return grid.flatten(2).transpose(1, 2)

    def cell_boxes(self) -> Tensor:
        """Boxes (N, 4) `cxcywh` of the cells, relative to the image, float32."""
        side = self.grid
        centres = (torch.arange(side, dtype=torch.float32) + 0.5) / side
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        sides = torch.full((self.cells,), 1 / side)
        return torch.stack((x.flatten(), y.flatten(), sides, sides), 1)
