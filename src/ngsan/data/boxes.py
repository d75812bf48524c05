"""Which objects photographs show and where, from annotations of boxes.

Shapes: `N` boxes of an image.
"""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.data.ids import canonical_id
from ngsan.data.results import read_json
from ngsan.data.text_files import open_bytes

_MOST = 2.0
"""Above it, a relative number is a pixel; boxes may reach beyond the image."""


def read_object_names(path: str | Path) -> dict[str, list[str]]:
    """Reads the names of the objects of images.

    Args:
        path: COCO's annotations of objects (instances_val2014.json), or a JSON object of image ids
            and lists of class names.

    Returns:
        The names by image id, one for each object.

    Raises:
        ValueError: The file is something else; names the place.
    """
    document = read_json(Path(path))
    if not isinstance(document, dict):
        raise ValueError(
            f"{path}: expected COCO's annotations of objects, or a JSON object of image ids and "
            "lists of class names"
        )
    if "annotations" not in document:
        for image, names in document.items():
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError(f"{path}: image {image!r} has no list of class names")
        return {canonical_id(image): names for image, names in document.items()}
    try:
        names = {entry["id"]: str(entry["name"]) for entry in document["categories"]}
    except (KeyError, TypeError):
        raise ValueError(f"{path}: its 'categories' are missing or have no id or name") from None
    if not isinstance(document["annotations"], list):
        raise ValueError(f"{path}: its 'annotations' are not a list")
    found: dict[str, list[str]] = {}
    for number, entry in enumerate(document["annotations"], start=1):
        image, name = _object(entry, names, f"{path}: annotations entry {number}")
        found.setdefault(image, []).append(name)
    return found


def _object(entry: Any, names: dict[Any, str], where: str) -> tuple[str, str]:
    """The image id and the class name of an annotation."""
    try:
        return canonical_id(entry["image_id"]), names[entry["category_id"]]
    except (KeyError, TypeError):
        raise ValueError(
            f"{where}: no image_id, or no category_id of the 'categories': not an object"
        ) from None


def read_boxes(path: str | Path) -> dict[str, NDArray[np.float32]]:
    """Reads the boxes of images.

    Args:
        path: COCO's annotations of objects (instances_val2014.json), without crowds; or an npz
            file of the arrays "image_id", "offset" (the boxes of image k are rows offset[k] to
            offset[k + 1]) and "box", `cxcywh` relative to the image, as floats or as uint16
            times 65535.

    Returns:
        (N, 4) `cxcywh`, relative to the image and clipped to it, by image id. Boxes without an
        area in the image are dropped.

    Raises:
        ValueError: The file is something else; names the place.
    """
    path = Path(path)
    with open_bytes(path) as file:
        packed = file.read(2) == b"PK"  # every npz file is a zip
    found = _packed_boxes(path) if packed else _annotated_boxes(path)
    boxes = {}
    for image, box in found:
        if image in boxes:
            raise ValueError(f"{path}: image {image} occurs twice")
        low, high = box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2
        if not np.isfinite(box).all():
            raise ValueError(f"{path}: a box of image {image} is not finite")
        low, high = low.clip(0, 1), high.clip(0, 1)
        boxes[image] = np.concatenate(((low + high) / 2, high - low), 1).astype(np.float32)[
            (high > low).all(1)
        ]
    if not boxes:
        raise ValueError(f"{path}: no boxes")
    return boxes


def _packed_boxes(path: Path) -> Iterable[tuple[str, NDArray[np.float64]]]:
    """The boxes of each image in an npz file."""
    try:
        with np.load(path, allow_pickle=False) as held:
            images, offset, box = (held[name] for name in ("image_id", "offset", "box"))
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not an npz file of image_id, offset and box: {error}") from None
    if box.shape != (box.size // 4, 4) or (box.dtype.kind != "f" and box.dtype != np.uint16):
        raise ValueError(f"{path}: box must be floats or uint16 of shape (boxes, 4), {_is(box)}")
    if images.ndim != 1 or images.dtype.kind not in "iuU":
        raise ValueError(f"{path}: image_id must be one integer or text per image, {_is(images)}")
    if offset.shape != (len(images) + 1,) or offset.dtype.kind not in "iu":
        raise ValueError(f"{path}: offset must be {len(images) + 1} integers, {_is(offset)}")
    steps = np.diff(offset.astype(np.int64), prepend=0, append=len(box))
    if steps[0] or steps[-1] or (steps < 0).any():
        raise ValueError(f"{path}: offset must rise from 0 to {len(box)}, the number of boxes")
    if box.dtype.kind == "f" and (box > _MOST).any():
        raise ValueError(
            f"{path}: box has {box[box > _MOST][0]:g}; boxes are relative to the image, from 0 to "
            "1: divide pixels by its width and height"
        )
    exact = box.astype(np.float64) / (65535 if box.dtype == np.uint16 else 1)
    names = (canonical_id(image) for image in images.tolist())
    return zip(names, np.split(exact, offset[1:-1]), strict=True)


def _is(array: NDArray[Any]) -> str:
    """The end of a message about an array."""
    return f"not {array.dtype} of shape {array.shape}"


def _annotated_boxes(path: Path) -> Iterable[tuple[str, NDArray[np.float64]]]:
    """The boxes of each image in a file of COCO's annotations."""
    document = read_json(path)
    if not isinstance(document, dict) or "annotations" not in document:
        raise ValueError(f"{path}: expected COCO's annotations of objects, or an npz file of boxes")
    try:
        sizes = {
            canonical_id(image["id"]): (float(image["width"]), float(image["height"]))
            for image in document["images"]
        }
    except (KeyError, TypeError):
        raise ValueError(
            f"{path}: its 'images' are missing or have no id, width or height"
        ) from None
    for image, size in sizes.items():
        if not all(0 < side < np.inf for side in size):
            raise ValueError(f"{path}: image {image} has no width and height above 0")
    if not isinstance(document["annotations"], list):
        raise ValueError(f"{path}: its 'annotations' are not a list")
    found: dict[str, list[list[float]]] = {}
    for number, entry in enumerate(document["annotations"], start=1):
        try:
            image = canonical_id(entry["image_id"])
            width, height = sizes[image]
            left, top, across, down = map(float, entry["bbox"])
            crowd = entry.get("iscrowd", 0)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(
                f"{path}: annotations entry {number}: no image_id of the 'images', or no bbox of "
                "four numbers"
            ) from None
        if not crowd:
            row = [
                (left + across / 2) / width,
                (top + down / 2) / height,
                across / width,
                down / height,
            ]
            found.setdefault(image, []).append(row)
    return ((image, np.array(rows)) for image, rows in found.items())
