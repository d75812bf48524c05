"""Regions of photographs whose features are pooled from the map of the whole image.

Every cell of a map depends on many pixels, so a feature knows of pixels outside its box.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ngsan.data.store import Regions
from ngsan.nn.pooling import pool_boxes
from ngsan.vision.grid import GridBackbone
from ngsan.vision.images import to_square
from ngsan.vision.regions import Boxes
from ngsan.vision.sources import frozen, weights_hash

SIZE = 448
"""Default side of an image, so that a map has 14 cells along each side."""


class RoiSource:
    """Regions whose features are pooled from the map of the whole image."""

    def __init__(
        self, boxes: Boxes, backbone: GridBackbone, device: str | torch.device = "cpu"
    ) -> None:
        """Puts the parts together.

        Args:
            boxes: Finds the boxes of an image.
            backbone: Makes the map; the source uses a copy.
            device: Where it runs.
        """
        self.feature_dim = backbone.channels
        self.min_side: int | None = 2 * backbone.size
        self.signature = (
            f"roi of {backbone.name} {weights_hash(backbone)}, {backbone.size} px x "
            f"{backbone.channels}, {boxes.signature}"
        )
        self._boxes, self._size, self._device = boxes, backbone.size, torch.device(device)
        self._backbone = frozen(backbone, self._device)

    def prepare(self, image: Image.Image) -> Image.Image:
        """The image itself: a detector has its own size."""
        return image

    @torch.inference_mode()
    def regions(self, images: Sequence[Image.Image], names: Sequence[str] = ()) -> list[Regions]:
        """The boxes of all images; see `RegionSource.regions`."""
        ids = names or [""] * len(images)
        boxes = [self._boxes(image, name) for image, name in zip(images, ids, strict=True)]
        pixels = torch.from_numpy(np.stack([to_square(image, self._size) for image in images]))
        cells = self._backbone(pixels.to(self._device).permute(0, 3, 1, 2))
        maps = cells.float().transpose(1, 2).unflatten(2, (self._backbone.grid,) * 2)
        return [
            Regions(self._pool(one, found), found, image.size)
            for one, found, image in zip(maps, boxes, images, strict=True)
        ]

    def _pool(self, one: Tensor, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        places = torch.from_numpy(boxes).to(self._device)
        pooled: NDArray[np.float32] = pool_boxes(one[None], places[None])[0].cpu().numpy()
        return pooled
