"""Features of the frames of clips, from the backbone of the photo model.

Shapes: `T` frames, `S` side of a frame, `G` cells of its side, `N` cells of all frames (T G G),
`C` features of a cell, twice as many as those of the photo model.
"""

import numpy as np
from numpy.typing import NDArray

from ngsan.config import CaptionerConfig
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.manifest import cell_boxes

_SCALE = np.float32(0.25)
"""Makes features about as large as their differences, and as the positions that are added."""


class FrameDescriber:
    """Makes features of frames: the cells of the photo model, averaged in a coarser grid.

    A cell has two halves: its features, and their difference from the mean of the same cell over
    the clip, which is zero where nothing moves. Neither depends on the order of frames.
    """

    def __init__(self, photos: OnnxBackend, grid: int) -> None:
        """Checks the grid.

        Args:
            photos: A model of photographs, of which the backbone is used.
            grid: G, a divisor of the cells of a side.
        """
        if photos.image_size is None:
            raise ValueError("this is a model of regions: frames need a model of photographs")
        self.size: int = photos.image_size
        self.side = self.size // 32
        if grid < 1 or self.side % grid:
            raise ValueError(
                f"grid: {grid} does not divide the {self.side} x {self.side} cells of a frame"
            )
        self.grid, self.feature_dim = grid, 2 * photos.config.feature_dim
        self._photos, self._boxes = photos, cell_boxes(grid)

    @classmethod
    def for_model(cls, photos: OnnxBackend, config: CaptionerConfig) -> "FrameDescriber":
        """The describer for a captioner of clips.

        Raises:
            ValueError: The captioner's features are not made of the photo model's cells.
        """
        describer = cls(photos, config.frame_grid)
        if describer.feature_dim != config.feature_dim:
            raise ValueError(
                f"feature_dim: {config.feature_dim} of the model is not the "
                f"{describer.feature_dim} of a cell, twice those of the photo model"
            )
        return describer

    def describe(
        self, frames: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Computes the features of a clip.

        Args:
            frames: (T, S, S, 3) RGB.

        Returns:
            features: (N, C), frame by frame and in a frame row by row.
            boxes: (N, 4) the cells in their frames, `cxcywh` relative to the frame.
        """
        cells, _ = self._photos.describe(frames)
        grid, part = self.grid, self.side // self.grid
        means = cells.reshape(len(cells), grid, part, grid, part, -1).mean((2, 4))
        both = np.concatenate((_SCALE * means, means - means.mean(0)), -1)
        return both.reshape(-1, both.shape[-1]), np.tile(self._boxes, (len(frames), 1))
