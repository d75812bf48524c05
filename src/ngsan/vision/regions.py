"""Regions of photographs: boxes of a detector or of a file, and features of what is in each box.

Every box is cut out of the photograph and encoded alone by the second eye, a network with ImageNet
weights that no caption has trained. So pixels outside a box cannot change its feature, not by one
bit.

Needs only NumPy, Pillow and ONNX Runtime.

Shapes: `N` regions of an image, `d` feature width.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ngsan.data.store import Regions
from ngsan.vision.detector import MIN_SCORE, Detector
from ngsan.vision.images import to_square
from ngsan.vision.keywords import Eye

MIN_REGIONS = 10
"""Default lower limit of a detector's boxes of an image."""

MAX_REGIONS = 100
"""Default upper limit of the boxes of an image."""

WHOLE = (0.5, 0.5, 1.0, 1.0)
"""The box of a whole image, which stands in for a box that is missing."""

MIN_SIDE = 1024
"""Width and height of a photograph that suffice; a larger one is read at a fraction of its size."""


class RegionSource(Protocol):
    """Computes the regions of images."""

    feature_dim: int
    """d, the width of the features."""
    signature: str
    """Identifies the source; differs for any source with other regions."""
    min_side: int | None
    """Width and height of an image that suffice; None for the whole image."""

    def prepare(self, image: Image.Image) -> Image.Image:
        """Preprocesses an image, in any thread; for example makes it smaller."""

    def regions(self, images: Sequence[Image.Image], names: Sequence[str] = ()) -> list[Regions]:
        """The regions of upright RGB images, prepared or not.

        Args:
            images: The images.
            names: Their ids, for a source that reads boxes by id.

        Raises:
            ValueError: An image has no region.
        """


class Boxes(Protocol):
    """Finds the boxes of an image."""

    signature: str
    """Identifies the source of the boxes."""

    def __call__(self, image: Image.Image, name: str) -> NDArray[np.float32]:
        """Boxes (N, 4) `cxcywh`, relative to the image.

        Args:
            image: Upright, RGB.
            name: Its id.

        Raises:
            ValueError: There are none.
        """


class DetectedBoxes:
    """The boxes of a detector with the highest scores, whatever their class."""

    def __init__(
        self,
        detector: Detector,
        signature: str,
        *,
        min_regions: int = MIN_REGIONS,
        max_regions: int = MAX_REGIONS,
        min_score: float = MIN_SCORE,
    ) -> None:
        """Checks the limits.

        Args:
            detector: The detector.
            signature: Identifies it.
            min_regions: Number of boxes that are kept however low their scores.
            max_regions: Largest number of boxes.
            min_score: Lowest score of the others.
        """
        if not 1 <= min_regions <= max_regions:
            raise ValueError(
                f"min_regions: {min_regions} must be from 1 to max_regions, {max_regions}"
            )
        if not 0 <= min_score <= 1:
            raise ValueError(f"min_score: {min_score:g} must be from 0 to 1")
        self._detector, self._limits, self._min_score = (
            detector,
            (min_regions, max_regions),
            min_score,
        )
        self.signature = (
            f"{min_regions} to {max_regions} boxes of detector {signature}, score {min_score:g}"
        )

    def __call__(self, image: Image.Image, name: str) -> NDArray[np.float32]:
        """See `Boxes.__call__`."""
        least, most = self._limits
        found = self._detector.detect(
            to_square(image, self._detector.size), max_boxes=most, min_score=0, by_class=False
        )
        if not len(found.boxes):
            raise ValueError("the detector found no regions")
        return found.boxes[: max(least, int((found.scores >= self._min_score).sum()))]


class GivenBoxes:
    """Boxes that are known by image id."""

    def __init__(
        self, boxes: Mapping[str, NDArray[np.float32]], *, max_regions: int = MAX_REGIONS
    ) -> None:
        """Keeps the boxes.

        Args:
            boxes: (N, 4) `cxcywh` relative to the image, by image id.
            max_regions: Number of boxes to keep, the first ones.
        """
        self._boxes, self._max_regions = boxes, max_regions
        digest = hashlib.sha256()
        for name in sorted(boxes):
            digest.update(f"{name} {len(boxes[name])}\n".encode())
            digest.update(np.ascontiguousarray(boxes[name], "<f4").tobytes())
        self.signature = f"at most {max_regions} given boxes {digest.hexdigest()[:12]}"

    def __call__(self, image: Image.Image, name: str) -> NDArray[np.float32]:
        """See `Boxes.__call__`."""
        found = self._boxes.get(name)
        if found is None or not len(found):
            raise ValueError(f"there are no boxes of image {name}")
        return found[: self._max_regions]


class CropSource:
    """Regions whose features are made of nothing but the pixels in their boxes."""

    min_side: int | None = MIN_SIDE

    def __init__(self, boxes: Boxes, eye: Eye) -> None:
        """Puts the parts together.

        Args:
            boxes: Finds the boxes of an image.
            eye: The network that encodes what is in a box.
        """
        self._boxes, self._eye = boxes, eye
        self.feature_dim = int(eye.width)
        self.signature = f"crops by eye {eye.signature[:12]}, {boxes.signature}"

    def prepare(self, image: Image.Image) -> Image.Image:
        """The image itself."""
        return image

    def regions(self, images: Sequence[Image.Image], names: Sequence[str] = ()) -> list[Regions]:
        """The boxes of every image, one after the other; see `RegionSource.regions`."""
        ids = names or [""] * len(images)
        return [self._encode(image, name) for image, name in zip(images, ids, strict=True)]

    def _encode(self, image: Image.Image, name: str) -> Regions:
        boxes = self._boxes(image, name)
        crops = [
            to_square(image.crop(edges), self._eye.size) for edges in pixel_edges(boxes, image.size)
        ]
        pooled = self._eye.features(np.stack(crops))  # (N, 8, d): the means of quarters come first
        return Regions(pooled[:, : self._eye.vectors // 2].mean(1), boxes, image.size)


def pixel_edges(
    boxes: NDArray[np.floating], size: tuple[int, int]
) -> list[tuple[int, int, int, int]]:
    """Left, top, right and bottom of the pixels whose centres are in each box; at least one pixel.

    Args:
        boxes: (N, 4) `cxcywh`, relative to the image.
        size: Width and height of the image in pixels.
    """
    sides = np.array(size, np.float64)
    exact = boxes.astype(np.float64)
    low = (
        np.rint((exact[:, :2] - exact[:, 2:] / 2) * sides)
        .astype(int)
        .clip(0, sides.astype(int) - 1)
    )
    high = np.rint((exact[:, :2] + exact[:, 2:] / 2) * sides).astype(int)
    high = high.clip(low + 1, sides.astype(int))
    return [tuple(edges) for edges in np.concatenate((low, high), 1).tolist()]


def first_boxes(boxes: Sequence[NDArray[np.floating]], count: int) -> NDArray[np.float32]:
    """The same number of boxes of each image.

    Args:
        boxes: (N, 4) of each of B images, the best first.
        count: R, the number of boxes.

    Returns:
        (B, R, 4); where an image has fewer, the whole image.
    """
    made = np.tile(np.array(WHOLE, np.float32), (len(boxes), count, 1))
    for row, found in zip(made, boxes, strict=True):
        row[: len(found)] = found[:count]
    return made
