"""Shared by the readers of features: positions, folders, boxes, and the import into the store.

Shapes: `N` regions, `D` width of a feature vector. Stored boxes are `cxcywh` relative to the image.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ngsan.data.folder_walk import walk
from ngsan.data.ids import id_of_file
from ngsan.data.problems import Problems, shown
from ngsan.data.store import BadRegionsError, Regions, half_features
from ngsan.data.store_writer import StoreWriter

Array: TypeAlias = NDArray[Any]
Size: TypeAlias = tuple[int, int]
BoxFormat: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
BoxUnit: TypeAlias = Literal["auto", "pixels", "relative"]
GridAxes: TypeAlias = Literal["hwd", "dhw"]

Position: TypeAlias = dict[str, Any]
"""The place of an image in its source, as JSON holds it. `file` names the file, `line`, `row` or
`key` the place within; `done` is how much of the source is read so far, in the unit of the
reader's total. A reader that gets it as `start` continues with the next image."""

Item: TypeAlias = tuple[Position, str, Regions]
"""Position, image id and regions."""

UNREADABLE_FOLDER = "unreadable folder"
"""The kind of problem of a folder that cannot be read."""

SKIPPED = "skipped"
"""Where a position keeps the counts of problems so far."""

FEATURE_NAMES = ("features", "feat", "x", "feature", "image_features", "arr_0")
"""Common names of feature vectors, in order of preference."""

BOX_NAMES = ("bbox", "boxes", "box", "bboxes")
COUNT_NAMES = ("num_boxes", "num_bbox")
SIDE_NAMES = (("image_w", "image_h"), ("width", "height"), ("img_w", "img_h"))
SIZE_NAMES = ("size", "image_size")

MARGIN = 1e-3
"""How far relative boxes may reach out of an image of unknown size."""

MAX_BYTES = 1 << 27
"""Limit of the numbers of one image or clip, unpacked."""

_MIN_PIXELS = 2.0


def place(position: Position, image_id: str | None = None) -> str:
    """A position for messages: "trainval.tsv, line 3, image 391895"."""
    parts = [str(position["file"])]
    parts += [f"{name} {position[name]}" for name in ("line", "row", "key") if name in position]
    if image_id is not None:
        parts.append(f"image {image_id}")
    return ", ".join(parts)


def list_files(
    folder: str | Path,
    suffixes: Collection[str],
    *,
    leave_out: str | Path | None = None,
    problems: Problems | None = None,
) -> list[str]:
    """The files of a folder and its sub-folders, sorted by name; hidden files are skipped.

    Args:
        folder: The folder.
        suffixes: File extensions to include, such as ".npz".
        leave_out: A sub-folder to skip.
        problems: Where folders that cannot be read are reported; None raises an error.

    Returns:
        Names relative to `folder`, with forward slashes.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    without = None if leave_out is None else Path(leave_out).resolve()
    problems = problems or Problems()

    def report(error: OSError) -> None:
        problems.report(UNREADABLE_FOLDER, str(error.filename), str(error.strerror))

    found = (
        path
        for path in walk(folder, report)
        if path.suffix in suffixes
        and not path.name.startswith(".")
        and (without is None or without not in path.resolve().parents)
    )
    names = sorted(path.relative_to(folder).as_posix() for path in found)
    if not names:
        raise ValueError(f"{folder}: no file here ends in {' or '.join(sorted(suffixes))}")
    return names


def read_folder(
    names: Iterable[str],
    load: Callable[[str, str], Regions],
    *,
    start: Position | None,
    problems: Problems,
    name_id: Callable[[str], str] = id_of_file,
) -> Iterator[Item]:
    """Reads a folder of one file per image.

    Args:
        names: The files' names, sorted.
        load: Makes the regions of a file from its name and image id; may raise `BadRegionsError`.
        start: The position of the last image that was read already.
        problems: Where bad files are reported.
        name_id: Makes the image id of a file's name.
    """
    for done, name in enumerate(names, start=1):
        if start is not None and name <= start["file"]:
            continue
        position: Position = {"file": name, "done": done}
        image_id = None
        try:
            image_id = valid_id(name_id, name)
            yield position, image_id, load(name, image_id)
        except BadRegionsError as bad:
            problems.report(bad.kind, place(position, image_id), str(bad))


def too_large(what: str) -> BadRegionsError:
    """The error for numbers of an image that exceed `MAX_BYTES`."""
    return BadRegionsError("too large", f"{what}, more than {MAX_BYTES:,} for one image")


def valid_id(make: Callable[[Any], str], value: Any) -> str:
    """The id that `make` returns, whose `ValueError` becomes a `BadRegionsError`."""
    try:
        return make(value)
    except ValueError as error:
        raise BadRegionsError("bad image id", str(error)) from error


def import_features(
    items: Iterable[Item],
    writer: StoreWriter,
    problems: Problems,
    on_item: Callable[[Position], None] | None = None,
) -> int:
    """Writes the items of a reader into the store.

    Args:
        items: From a reader that was started at `writer.position`.
        writer: The open store.
        problems: Where images are reported that the store rejects.
        on_item: Called with the position after each image, to show progress.

    Returns:
        The number of images added.

    Raises:
        ValueError: An image is bad, and bad ones are not skipped.
    """
    added = 0
    width = None
    for position, image_id, regions in items:
        try:
            if image_id in writer:
                raise BadRegionsError("duplicate id", "an earlier image has the same id")
            # The position keeps the counts of problems for an import that continues.
            skipped = {SKIPPED: dict(problems.counts)} if problems.counts else {}
            writer.add(image_id, regions, position={**position, **skipped})
            width = regions.features.shape[1]
            added += 1
        except BadRegionsError as bad:
            problems.report(bad.kind, place(position, image_id), str(bad))
        except ValueError as error:
            changed = width is not None and regions.features.shape[1] != width
            kind = "feature width changes" if changed else "rejected by the store"
            problems.report(kind, place(position, image_id), str(error))
        if on_item is not None:
            on_item(position)
    return added


@dataclass(frozen=True)
class BoxRules:
    """How the boxes of a source are read.

    Note: with `auto`, boxes are relative if no coordinate of the image is above 1.001, and in
        pixels if one is above 2; anything between is an error. An image of pixel boxes that looks
        relative would have all its regions within its first pixel.
    """

    format: BoxFormat = "xyxy"
    """Two corners, a corner with width and height, or a centre with width and height."""

    unit: BoxUnit = "auto"
    """Pixels, relative to the image (0 to 1), or detected from the numbers."""

    sizes: Mapping[str, Size] = field(default_factory=dict)
    """Width and height by image id, for sources without sizes."""

    def __post_init__(self) -> None:
        if self.format not in get_args(BoxFormat):
            raise ValueError(f"box_format: {self.format!r} is not one of xyxy, xywh, cxcywh")
        if self.unit not in get_args(BoxUnit):
            raise ValueError(f"box_unit: {self.unit!r} is not one of auto, pixels, relative")


@dataclass(frozen=True)
class FoundRegions:
    """The unchecked regions of an image in a source."""

    features: Array
    """(N, D), or a grid."""

    boxes: Array | None = None
    """(N, 4) in the source's own format and unit."""

    size: Size | None = None
    """Width and height of the image in pixels."""

    count: int | None = None
    """The number of regions according to the source."""


def find_regions(names: Collection[str], get: Callable[[str], Any]) -> FoundRegions:
    """Finds the parts of an image's regions by their common names.

    Args:
        names: The available names.
        get: Returns the array or number of a name; called only for those needed.
    """

    def first(known: Iterable[str]) -> str | None:
        return next((name for name in known if name in names), None)

    feature_name, box_name, count_name = map(first, (FEATURE_NAMES, BOX_NAMES, COUNT_NAMES))
    if feature_name is None:
        raise BadRegionsError(
            "no features",
            f"found {', '.join(sorted(names)[:8]) or 'nothing'}, but none of "
            f"{', '.join(FEATURE_NAMES)}",
        )
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
    """An integer from a number, an array of one number, or text."""
    try:
        number = float(value.item() if isinstance(value, np.ndarray) else value)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError, TypeError):
        pass
    raise BadRegionsError("bad number", f"{name} is {shown(value)}, not a whole number")


def image_size(width: Any, height: Any) -> Size:
    """Width and height in pixels; a `BadRegionsError` if one is not a whole number above 0."""
    size = (whole_number("the image's width", width), whole_number("the image's height", height))
    if min(size) < 1:
        raise BadRegionsError(
            "bad image size", f"width and height are {size}: both must be above 0"
        )
    return size


def make_regions(
    image_id: str, found: FoundRegions, rules: BoxRules, *, grid: GridAxes = "hwd"
) -> Regions:
    """Checks an image's regions and converts them.

    Args:
        image_id: Canonical id, to look up the image's size.
        found: The regions. Features with three axes are a grid, whose boxes are its cells.
        rules: How the boxes are read.
        grid: The order of a grid's axes: height, width and D, or D first.

    Returns:
        Features (N, D) float16, boxes (N, 4) float32 relative `cxcywh`.
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
        return Regions(half_features(features), cells, size)
    if boxes is None:
        raise BadRegionsError(
            "no boxes",
            f"features {features.shape} come without boxes; pass the folder that holds them, or a "
            "grid (height, width, numbers)",
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
    return Regions(half_features(features), relative_boxes(boxes, size, rules), size)


def flatten_grid(features: Array, axes: GridAxes) -> tuple[Array, NDArray[np.float32]]:
    """A grid of features as regions, row by row, with its cells as boxes.

    Args:
        features: (height, width, D), or (D, height, width).
        axes: Which of the two.

    Returns:
        (N, D) features and (N, 4) relative `cxcywh`, N = height * width.
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
            f"a grid of {height} x {width} cells with {dim} numbers each seems to have its axes "
            f"swapped; they are read as {axes!r}, try {'dhw' if axes == 'hwd' else 'hwd'!r}",
        )
    if height == 1 < width:
        raise BadRegionsError(
            "no boxes",
            f"a grid of 1 x {width} cells looks like {width} regions without boxes",
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

    Note: detectors round, so a box may reach out of the image by a pixel (by `MARGIN` if the size
        is unknown); it is clipped. A box that reaches out farther is an error.

    Args:
        boxes: (N, 4) in the format of `rules`.
        size: Width and height of the image in pixels, or None.
        rules: How the boxes are read.

    Returns:
        (N, 4) float32 `cxcywh`.
    """
    if boxes.dtype.kind not in "fiu":
        raise BadRegionsError("wrong type", f"boxes are {boxes.dtype}, not numbers")
    boxes = boxes.astype(np.float64)
    _refuse(~np.isfinite(boxes), boxes, "box not finite", "it holds NaN or infinity")
    unit = rules.unit
    if unit == "auto":
        relative = boxes.min() >= -MARGIN and boxes.max() <= 1 + MARGIN
        if not relative and boxes.max() <= _MIN_PIXELS:
            raise BadRegionsError(
                "unit of boxes unclear",
                f"numbers up to {boxes.max():g} may be relative boxes that reach out of the image, "
                "or tiny pixel boxes: pass box_unit (--box-unit) 'relative' or 'pixels'",
            )
        unit = "relative" if relative else "pixels"
    low, high = _corners(boxes, rules.format)
    hint = "; if these are x, y, width, height, pass box_format 'xywh'"
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
                "captions with sizes first, or pass box_unit 'relative' if they are not pixels",
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
    _refuse(high <= low, boxes, "box outside the image", "it is beyond the edge")
    return np.concatenate(((low + high) / 2, high - low), axis=1).astype(np.float32)


def _corners(boxes: Array, box_format: BoxFormat) -> tuple[Array, Array]:
    """The top left and bottom right corners, (N, 2) each."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if box_format == "xyxy":
        return first, second
    if box_format == "xywh":
        return first, first + second
    return first - second / 2, first + second / 2


def _refuse(bad: Array, boxes: Array, kind: str, message: str) -> None:
    """Raises an error that names the first bad box."""
    if bad.any():
        index = int(bad.any(axis=1).argmax())
        numbers = ", ".join(f"{number:g}" for number in boxes[index])
        raise BadRegionsError(kind, f"box {index} is ({numbers}): {message}")
