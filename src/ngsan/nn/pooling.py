"""Features of boxes, pooled from the map of a whole image (RoIAlign).

He et al., "Mask R-CNN" (2017), section 3: a box is divided into a lattice of points, the map is
interpolated bilinearly at each, and here all of them are averaged.

Shapes: `B` images, `N` regions of an image, `C` channels, `G` side of the map in cells.
"""

import torch
from torch import Tensor

POINTS = 14
"""Points of a lattice along each side of a box."""


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
