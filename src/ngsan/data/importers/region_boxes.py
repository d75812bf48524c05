"""Other people's regions made ours: boxes relative to the image, features in 16 bits, all checked.

Shapes: `N` regions, `D` width of a feature vector. Our boxes are `cxcywh` relative to the image.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ngsan.data.store import Regions, all_finite

Array: TypeAlias = NDArray[Any]
Size: TypeAlias = tuple[int, int]
BoxFormat: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
BoxUnit: TypeAlias = Literal["auto", "pixels", "relative"]
GridAxes: TypeAlias = Literal["hwd", "dhw"]

FEATURE_NAMES = ("features", "feat", "x", "feature", "image_features", "arr_0")
"""What others call the feature vectors, in the order in which we look for them."""

BOX_NAMES = ("bbox", "boxes", "box", "bboxes")
"""What others call the boxes."""

COUNT_NAMES = ("num_boxes", "num_bbox")
"""What others call the number of regions."""

SIDE_NAMES = (("image_w", "image_h"), ("width", "height"), ("img_w", "img_h"))
"""What others call the width and height of the image."""

SIZE_NAMES = ("size", "image_size")
"""What others call the two together, width first."""

_SMALLEST_PIXELS = 2.0

MARGIN = 1e-3
"""How far relative boxes may stick out of an image of unknown size."""


class BadRegionsError(ValueError):
    """The regions of one image cannot be used; the reader adds the place and goes on or stops."""

    def __init__(self, kind: str, message: str) -> None:
        """Takes the words of `Problems.report`.

        Args:
            kind: A few words that similar problems share.
            message: What is wrong and what to do.
        """
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class BoxRules:
    """How the boxes of a source are to be read.

    Note: `auto` takes boxes for relative when no coordinate of the image is above 1.001, for
        pixels when one is above 2, and refuses to guess between. An image of pixel boxes that
        passes for relative would have all its regions within its first pixel.
    """

    format: BoxFormat = "xyxy"
    """Two corners, a corner with width and height, or a centre with width and height."""

    unit: BoxUnit = "auto"
    """Pixels, relative to the image (0 to 1), or told from the numbers."""

    sizes: Mapping[str, Size] = field(default_factory=dict)
    """Width and height by image id, for sources that do not tell; what a source tells comes
    first, because its boxes are measured in it."""

    def __post_init__(self) -> None:
        """Checks the choices; raises a `ValueError` that names them."""
        if self.format not in get_args(BoxFormat):
            raise ValueError(f"box_format: {self.format!r} is not one of xyxy, xywh, cxcywh")
        if self.unit not in get_args(BoxUnit):
            raise ValueError(f"box_unit: {self.unit!r} is not one of auto, pixels, relative")


@dataclass(frozen=True)
class FoundRegions:
    """The regions of an image as they stand in a source, unchecked."""

    features: Array
    """(N, D), or a grid."""

    boxes: Array | None = None
    """(N, 4) in the source's own format and unit."""

    size: Size | None = None
    """Width and height of the image in pixels."""

    count: int | None = None
    """The number of regions that the source claims."""


def find_regions(names: Collection[str], get: Callable[[str], Any]) -> FoundRegions:
    """Picks the parts of an image's regions by the names that others give them.

    Args:
        names: The names there are.
        get: Gives the array or number of a name; called for what is needed only.

    Raises:
        BadRegionsError: There are no features, or a number is not one.
    """
    feature_name = next((name for name in FEATURE_NAMES if name in names), None)
    if feature_name is None:
        raise BadRegionsError(
            "no features",
            f"found {', '.join(sorted(names)) or 'nothing'}, but none of "
            f"{', '.join(FEATURE_NAMES)}",
        )
    box_name = next((name for name in BOX_NAMES if name in names), None)
    count_name = next((name for name in COUNT_NAMES if name in names), None)
    return FoundRegions(
        features=np.asarray(get(feature_name)),
        boxes=None if box_name is None else np.asarray(get(box_name)),
        size=_find_size(names, get),
        count=None if count_name is None else whole_number(count_name, get(count_name)),
    )


def _find_size(names: Collection[str], get: Callable[[str], Any]) -> Size | None:
    for wide, high in SIDE_NAMES:
        if wide in names and high in names:
            return image_size(get(wide), get(high))
    for name in SIZE_NAMES:
        if name in names:
            both = np.asarray(get(name)).reshape(-1)
            if len(both) != 2:
                raise BadRegionsError(
                    "bad image size", f"{name} has {len(both)} numbers, not (width, height)"
                )
            return image_size(both[0], both[1])
    return None


def whole_number(name: str, value: Any) -> int:
    """An integer from a number, an array of one number, or text.

    Raises:
        BadRegionsError: It is none of these, or has a fraction.
    """
    try:
        number = float(value.item() if isinstance(value, np.ndarray) else value)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError, TypeError):
        pass
    raise BadRegionsError("bad number", f"{name} is {value!r}, not a whole number")


def image_size(width: Any, height: Any) -> Size:
    """Width and height in pixels, checked.

    Raises:
        BadRegionsError: One is not a whole number above 0.
    """
    size = (whole_number("the image's width", width), whole_number("the image's height", height))
    if min(size) < 1:
        raise BadRegionsError(
            "bad image size", f"width and height are {size}: both must be above 0"
        )
    return size


def make_regions(
    image_id: str, found: FoundRegions, rules: BoxRules, *, grid: GridAxes = "hwd"
) -> Regions:
    """Checks an image's regions and puts them into our form.

    Args:
        image_id: Canonical id, to look the image's size up.
        found: The regions. Features of three axes are a grid, whose boxes are its cells.
        rules: How the boxes are to be read.
        grid: The order of a grid's axes: height, width and D, or D first.

    Returns:
        Features (N, D) float16, boxes (N, 4) float32 relative `cxcywh`.

    Raises:
        BadRegionsError: Something is missing, out of range or does not fit. Nothing is made up.
    """
    size = found.size
    if size is None and image_id in rules.sizes:
        size = image_size(*rules.sizes[image_id])
    features, boxes = found.features, found.boxes
    if features.ndim == 3 and features.shape[0] == 1 and boxes is not None:
        features = features[0]
    if features.ndim == 3:
        if boxes is not None:
            raise BadRegionsError(
                "wrong shape",
                f"features {features.shape} are a grid, which has no boxes of its own",
            )
        features, cells = flatten_grid(features, grid)
        return Regions(features=half_features(features), boxes=cells, size=size)
    if boxes is None:
        raise BadRegionsError(
            "no boxes",
            f"features {features.shape} come without boxes, and boxes cannot be made up; "
            "give the folder that holds them, or a grid (height, width, numbers)",
        )
    if features.ndim == 2 and len(features) != len(boxes) == features.shape[1]:
        features = features.T  # (D, N), as some of the public VQA features are
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise BadRegionsError("wrong shape", f"boxes are {boxes.shape}, not (regions, 4)")
    claimed = len(boxes) if found.count is None else found.count
    if features.ndim == 2 and not len(features) == len(boxes) == claimed:
        claim = "" if found.count is None else f"; the source claims {found.count}"
        raise BadRegionsError(
            "boxes and features differ in number",
            f"{len(features)} features, {len(boxes)} boxes{claim}",
        )
    half = half_features(features)
    return Regions(features=half, boxes=relative_boxes(boxes, size, rules), size=size)


def half_features(features: Array) -> NDArray[np.float16]:
    """Feature vectors in 16 bits.

    Args:
        features: (N, D) of floating point numbers, with N and D above 0.

    Raises:
        BadRegionsError: Their shape or type is another, or a number is NaN, infinite or too large.
    """
    if features.ndim != 2 or 0 in features.shape:
        raise BadRegionsError(
            "wrong shape", f"features are {features.shape}, not (regions, numbers) of at least one"
        )
    if not np.issubdtype(features.dtype, np.floating):
        raise BadRegionsError("wrong type", f"features are {features.dtype}, not floating point")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        half = features.astype(np.float16, copy=False)
    if not all_finite(half):
        row, column = np.argwhere(~np.isfinite(half))[0]
        value = features[row, column]
        if np.isfinite(value):
            raise BadRegionsError(
                "features too large",
                f"number {column} of region {row} is {value:g}; 16 bits hold up to 65504",
            )
        raise BadRegionsError("features not finite", f"number {column} of region {row} is {value}")
    return half


def flatten_grid(features: Array, axes: GridAxes) -> tuple[Array, NDArray[np.float32]]:
    """A grid of features as regions, row by row, with its cells as boxes.

    Args:
        features: (height, width, D), or (D, height, width).
        axes: Which of the two.

    Returns:
        (N, D) features and (N, 4) relative `cxcywh`, N = height * width.

    Raises:
        BadRegionsError: The shape looks like one of the other order, or like regions without boxes.
    """
    if axes not in get_args(GridAxes):
        raise ValueError(f"grid: {axes!r} is not one of hwd, dhw")
    if 0 in features.shape:
        raise BadRegionsError("wrong shape", f"a grid of {features.shape} is empty")
    if axes == "dhw":
        features = np.moveaxis(features, 0, -1)
    height, width, dim = features.shape
    if dim < max(height, width):
        raise BadRegionsError(
            "wrong shape",
            f"a grid of {height} x {width} cells with {dim} numbers each looks turned round; "
            f"its axes are read as {axes!r}, the other order is "
            f"{'dhw' if axes == 'hwd' else 'hwd'!r}",
        )
    if height == 1 < width:
        raise BadRegionsError(
            "no boxes",
            f"a grid of 1 x {width} cells looks like {width} regions, and there are no boxes",
        )
    row, column = np.divmod(np.arange(height * width), width)
    cells = np.empty((height * width, 4), dtype=np.float32)
    cells[:, 0] = (column + 0.5) / width
    cells[:, 1] = (row + 0.5) / height
    cells[:, 2] = 1 / width
    cells[:, 3] = 1 / height
    return features.reshape(-1, dim), cells


def relative_boxes(boxes: Array, size: Size | None, rules: BoxRules) -> NDArray[np.float32]:
    """Boxes relative to the image, as centre, width and height.

    Note: detectors round, so a box may stick out by a pixel (by `MARGIN` if the image's size is
        unknown); it is cut off at the edge. A box that sticks out farther is an error.

    Args:
        boxes: (N, 4) in the format of `rules`.
        size: Width and height of the image in pixels, or None.
        rules: How the boxes are to be read.

    Returns:
        (N, 4) float32 `cxcywh`.

    Raises:
        BadRegionsError: A box is not finite, has no area or sticks out; or the size is missing.
    """
    if boxes.dtype.kind not in "fiu":
        raise BadRegionsError("wrong type", f"boxes are {boxes.dtype}, not numbers")
    boxes = boxes.astype(np.float64)
    _refuse(~np.isfinite(boxes), boxes, "box not finite", "it holds NaN or infinity")
    unit = rules.unit
    if unit == "auto":
        relative = boxes.min() >= -MARGIN and boxes.max() <= 1 + MARGIN
        if not relative and boxes.max() <= _SMALLEST_PIXELS:
            raise BadRegionsError(
                "unit of boxes unclear",
                f"numbers up to {boxes.max():g} may be relative boxes that stick out or tiny pixel "
                "boxes: give box_unit (--box-unit) 'relative' or 'pixels'",
            )
        unit = "relative" if relative else "pixels"
    low, high = _corners(boxes, rules.format)
    hint = "; if these are x, y, width, height, give box_format 'xywh'"
    _refuse(
        high <= low,
        boxes,
        "box of no size",
        f"its width or height is not above 0{hint if rules.format == 'xyxy' else ''}",
    )
    if unit == "pixels":
        if size is None:
            raise BadRegionsError(
                "image size unknown",
                f"boxes up to {boxes.max():g} are in pixels and need the image's size: import "
                "captions with sizes first, or give box_unit 'relative' if they are not pixels",
            )
        low, high = low / size, high / size
    margin = MARGIN if size is None else 1 / np.asarray(size)
    slack = 1e-6  # for pixel coordinates that a detector rounded to 32 bits
    outside = (low < -margin - slack) | (high > 1 + margin + slack)
    image = "of unknown size" if size is None else f"of {size[0]} x {size[1]}"
    _refuse(
        outside, boxes, "box outside the image", f"read as {rules.format}, {unit}, image {image}"
    )
    low, high = low.clip(0, 1), high.clip(0, 1)
    _refuse(high <= low, boxes, "box outside the image", "it lies beyond the edge")
    return np.concatenate(((low + high) / 2, high - low), axis=1).astype(np.float32)


def _corners(boxes: Array, box_format: BoxFormat) -> tuple[Array, Array]:
    """The corners nearest to and farthest from the image's origin, (N, 2) each."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if box_format == "xyxy":
        return first, second
    if box_format == "xywh":
        return first, first + second
    return first - second / 2, first + second / 2


def _refuse(bad: Array, boxes: Array, kind: str, message: str) -> None:
    """Raises an error that names the first box of which any number is bad."""
    if bad.any():
        index = int(bad.any(axis=1).argmax())
        numbers = ", ".join(f"{number:g}" for number in boxes[index])
        raise BadRegionsError(kind, f"box {index} is ({numbers}): {message}")
