"""Which objects photographs show, from annotations of boxes."""

from pathlib import Path
from typing import Any

from ngsan.data.ids import canonical_id
from ngsan.data.results import read_json


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
