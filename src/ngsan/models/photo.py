"""Captions from pixels: a backbone makes the regions, whose encoder is the region captioner's.

Shapes: `B` images, `S` side of an image, `N` cells, `D` model width.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from ngsan.models.captioner import Encoder, RegionEncoder
from ngsan.nn.attend import AttentionMaps


class Backbone(Protocol):
    """What makes regions of pixels: a module from images (B, 3, S, S) to cells (B, N, C).

    Images are bytes from 0 to 255 or numbers from 0 to 1.
    """

    size: int
    channels: int

    def __call__(self, images: Tensor) -> Tensor:
        """The features of the cells of a grid, row by row."""

    def cell_boxes(self) -> Tensor:
        """(N, 4) the cells as boxes, `cxcywh` relative to the image."""


class PhotoEncoder(Encoder):
    """Encodes images: the cells of a backbone's grid are the regions, and their places the boxes.

    It stands in the place of a `RegionEncoder`, with images as features, so all else about a
    captioner stays as it is: training, search, checkpoints.
    """

    takes_regions = False
    needs_boxes = False
    boxes: Tensor

    def __init__(self, backbone: nn.Module, regions: RegionEncoder) -> None:
        """Takes the parts.

        Args:
            backbone: See `Backbone`.
            regions: The encoder of the cells; its feature_dim is the backbone's channels.
        """
        super().__init__()
        made: Backbone = backbone  # type: ignore[assignment]
        if made.channels != regions.feature_dim:
            raise ValueError(
                f"the backbone has {made.channels} channels and the encoder takes "
                f"{regions.feature_dim}: set feature_dim to {made.channels}"
            )
        self.backbone, self.regions = backbone, regions
        self.size = made.size
        self.augment: Callable[[Tensor], Tensor] | None = None
        """Makes other views of the images while training."""
        self.frozen = False
        self.register_buffer("boxes", made.cell_boxes(), persistent=False)

    def freeze(self, frozen: bool = True) -> None:
        """Leaves the backbone as it is in training, its running statistics included, or not."""
        self.frozen = frozen
        self.backbone.requires_grad_(not frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> "PhotoEncoder":
        """See `nn.Module.train`; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Encodes images.

        Args:
            features: (B, 3, S, S) images, bytes from 0 to 255 or numbers from 0 to 1; or
                (B, N, C) cells that the backbone has made of images before.
            boxes: Not looked at.
            mask: Not looked at: all cells are real.
            record: A list that each layer's attention maps are appended to, or None.

        Returns:
            (B, N, D)
        """
        cells = features if features.ndim == 3 else self._describe(features)
        places = self.boxes.expand(len(cells), -1, -1)
        encoded: Tensor = self.regions(cells, places, record=record)
        return encoded

    def _describe(self, images: Tensor) -> Tensor:
        """The cells (B, N, C) of images."""
        if images.ndim != 4 or images.shape[1:] != (3, self.size, self.size):
            raise ValueError(
                f"images must be (images, 3, {self.size}, {self.size}), not {tuple(images.shape)}"
            )
        if self.training and self.augment is not None:
            images = self.augment(images)
        cells: Tensor = self.backbone(images)
        return cells
