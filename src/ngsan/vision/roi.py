"""Features of boxes, pooled from the map of a whole image (RoIAlign).

He et al., "Mask R-CNN" (2017), section 3: a box is divided into a lattice of points, the map is
interpolated bilinearly at each, and here all of them are averaged. As every point has an influence
on many cells of the map, and every cell on many pixels, a feature knows of pixels outside its box.

Shapes: `B` images, `N` regions of an image, `C` channels, `G` side of the map in cells.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ngsan.data.store import Regions
from ngsan.vision.backbone import GridBackbone
from ngsan.vision.images import to_square
from ngsan.vision.regions import Boxes
from ngsan.vision.sources import frozen, weights_hash

POINTS = 14
"""Points of a lattice along each side of a box."""

SIZE = 448
"""Default side of an image, so that a map has 14 cells along each side."""


def pool_boxes(maps: Tensor, boxes: Tensor, *, points: int = POINTS) -> Tensor:
    """Averages maps over boxes.

    Args:
        maps: (B, C, G, G).
        boxes: (B, N, 4) `cxcywh`, relative to the image.
        points: Points of the lattice along each side of a box.

    Returns:
        (B, N, C). Gradients flow to the maps.
    """
    rows = _weights(boxes[..., 1], boxes[..., 3], maps.shape[2], points).to(maps.dtype)
    columns = _weights(boxes[..., 0], boxes[..., 2], maps.shape[3], points).to(maps.dtype)
    # Interpolation and mean are both separable, so weights of rows and columns are enough.
    lines = torch.einsum("bny,bcyx->bncx", rows, maps)
    return torch.einsum("bncx,bnx->bnc", lines, columns)


def _weights(centres: Tensor, sides: Tensor, cells: int, points: int) -> Tensor:
    """The weight of each of G cells in the mean over an interval.

    Args:
        centres: (B, N) of the intervals, relative to the image.
        sides: (B, N) their lengths.
        cells: G.
        points: Points of an interval.

    Returns:
        (B, N, G), with a sum of 1.
    """
    steps = (torch.arange(points, device=centres.device) + 0.5) / points - 0.5
    places = (centres[..., None] + sides[..., None] * steps) * cells - 0.5  # (B, N, points)
    # Beyond the centre of a cell at the border there is nothing to interpolate with.
    places = places.clamp(0, cells - 1)
    distances = places[..., None] - torch.arange(cells, device=centres.device)
    return (1 - distances.abs()).clamp(min=0).mean(2)


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
