"""From clips to captions: frames through the photo model's backbone, then a captioner of frames.

Shapes: `T` frames, `S` side of a frame, `G` cells of its side, `N` cells of all frames (T G G),
`C` features of a cell, which are twice as many as those of the photo model.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.light.caption import Caption
from ngsan.light.captioner import LightCaptioner
from ngsan.light.manifest import cell_boxes
from ngsan.light.model import LightModel
from ngsan.light.photos import PHOTO_DECODING, PhotoCaption, PhotoResult
from ngsan.text.vocabulary import Vocabulary
from ngsan.vision.clips import FRAMES, ClipSource, open_clip
from ngsan.vision.images import ImageError

_SCALE = np.float32(0.25)
"""Makes features about as large as their differences, and as the positions that are added."""


class FrameWriter(Protocol):
    """What writes captions of frame features: `LightCaptioner`, or PyTorch's `Predictor`."""

    vocabulary: Vocabulary
    """Its words."""

    def caption(
        self,
        features: NDArray[Any],
        boxes: NDArray[Any] | None = None,
        /,
        *,
        decoding: DecodingConfig,
        attention: bool,
        first: int,
    ) -> list[list[Caption]]:
        """The captions of each clip of (clips, N, C) and (clips, N, 4)."""


class FrameDescriber:
    """Makes features of frames: the cells of the photo model, averaged in a coarser grid.

    A cell is described twice: by what is there, and by how that differs from the mean of the same
    cell over the clip, which is nothing where nothing moves. The order of frames is in neither.
    """

    def __init__(self, photos: LightModel, grid: int) -> None:
        """Takes the parts.

        Args:
            photos: A model of photographs, of which the backbone counts.
            grid: G, a divisor of the cells of a side.

        Raises:
            ValueError: The model has no backbone, or the grid does not fit its cells.
        """
        if photos.image_size is None:
            raise ValueError("this is a model of regions: frames need one of photographs")
        self.size: int = photos.image_size
        self.side = self.size // 32
        if grid < 1 or self.side % grid:
            raise ValueError(
                f"grid: {grid} does not divide the {self.side} x {self.side} cells of a frame"
            )
        self.grid, self.feature_dim = grid, 2 * photos.config.feature_dim
        self._photos, self._boxes = photos, cell_boxes(32 * grid)

    def describe(
        self, frames: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Looks at frames.

        Args:
            frames: (T, S, S, 3) RGB.

        Returns:
            features: (N, C), frame by frame and in a frame row by row.
            boxes: (N, 4) the cells in their frames, `cxcywh` relative to the frame.
        """
        cells, _ = self._photos.describe(frames)
        grid, part = self.grid, self.side // self.grid
        blocks = cells.reshape(len(cells), grid, part, grid, part, -1)
        return describe_change(blocks.mean((2, 4))), np.tile(self._boxes, (len(frames), 1))


def describe_change(cells: NDArray[np.float32]) -> NDArray[np.float32]:
    """(T, ..., K) cells of a clip to (N, 2 K): each, and its difference from the clip's mean."""
    both = np.concatenate((_SCALE * cells, cells - cells.mean(0)), -1)
    return both.reshape(-1, both.shape[-1])


class ClipCaptioner:
    """Writes captions of clips."""

    def __init__(self, photos: LightModel, writer: FrameWriter, config: CaptionerConfig) -> None:
        """Takes the parts.

        Args:
            photos: The photo model, whose backbone looks at the frames.
            writer: The captioner of frames.
            config: What the writer was built from.

        Raises:
            ValueError: The writer's features are not made of the photo model's cells.
        """
        if not config.frame_grid:
            raise ValueError(
                f"this model takes features of {config.feature_dim} numbers a frame that were made "
                "elsewhere (its frame_grid is 0): ngsan evaluate captions datasets with it; learn "
                "from what ngsan extract --frames makes to caption video files"
            )
        self.describer = FrameDescriber(photos, config.frame_grid)
        if self.describer.feature_dim != config.feature_dim:
            raise ValueError(
                f"feature_dim: {config.feature_dim} of the model is not the "
                f"{self.describer.feature_dim} of a cell, twice those of the photo model"
            )
        self.writer, self.vocabulary = writer, writer.vocabulary

    @classmethod
    def open(
        cls, folder: str | Path, photos: str | Path, *, threads: int | None = None
    ) -> "ClipCaptioner":
        """Opens an exported or packed model; `ngsan.load_clips` opens models of every kind.

        Args:
            folder: The captioner of frames.
            photos: The photo model, packed or exported.
            threads: Threads of ONNX Runtime; None for one a core.

        Raises:
            ValueError: Something is missing or damaged, or the two do not belong together.
        """
        model = LightModel(folder, threads=threads)
        seeing = LightModel(photos, threads=threads)
        return cls(seeing, LightCaptioner(model), model.config)

    @overload
    def caption(
        self,
        clips: str | Path,
        *,
        frames: int = ...,
        decoding: DecodingConfig = ...,
        attention: bool = ...,
    ) -> PhotoCaption: ...

    @overload
    def caption(
        self,
        clips: Any,
        *,
        frames: int = ...,
        decoding: DecodingConfig = ...,
        attention: bool = ...,
    ) -> Any: ...

    def caption(
        self,
        clips: Any,
        *,
        frames: int = FRAMES,
        decoding: DecodingConfig = PHOTO_DECODING,
        attention: bool = False,
    ) -> PhotoCaption | list[PhotoCaption]:
        """Writes the caption of a clip, or of each of a list.

        Args:
            clips: One clip or a list of them: each the path of a video, of a moving GIF, PNG or
                WebP or of a folder of frames, or an array of (frames, height, width, 3). A list of
                pictures would be a list of clips: to make one clip of them, put it into a list.
            frames: Frames that are taken of each clip.
            decoding: How.
            attention: Whether captions carry the attention of their words, (words, N).

        Returns:
            A caption, or those of a list in its order.

        Raises:
            ImageError: A clip cannot be read; names it, and of a list the place.
            ValueError: `decoding` asks for what the model cannot do, or `frames` is out of range.
        """
        several = isinstance(clips, list | tuple)
        found: list[PhotoCaption] = []
        for result in self.stream(
            clips if several else [clips], frames=frames, decoding=decoding, attention=attention
        ):
            if result.caption is None:
                place = f"clips[{result.number}]: " if several else ""
                raise ImageError(f"{place}{result.problem}")
            found.append(result.caption)
        return found if several else found[0]

    def stream(
        self,
        clips: Iterable[ClipSource],
        *,
        frames: int = FRAMES,
        decoding: DecodingConfig = PHOTO_DECODING,
        attention: bool = False,
    ) -> Iterator[PhotoResult]:
        """Writes captions clip by clip; one that cannot be read is reported in its place.

        Args:
            clips: Any number of them.
            frames: See `caption`, as for the others.
            decoding: How.
            attention: Whether captions carry the attention of their words.

        Yields:
            What came of each clip, in their order.
        """
        for number, clip in enumerate(clips):
            try:
                squares = open_clip(clip, frames=frames, size=self.describer.size)
            except ImageError as error:
                yield PhotoResult(number, None, error)
                continue
            features, boxes = self.describer.describe(squares)
            [captions] = self.writer.caption(
                features[None], boxes[None], decoding=decoding, attention=attention, first=number
            )
            yield PhotoResult(number, PhotoCaption.of(captions))
