"""COCO's official caption files: captions_train2014.json, captions_val2014.json and the like."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from ngsan.data.captions import (
    ImageCaptions,
    caption_text,
    entry_fields,
    file_name,
    image_id,
    is_length,
)
from ngsan.data.importers.captions_karpathy import karpathy_splits
from ngsan.data.importers.json_stream import stream_items
from ngsan.data.lines import shown
from ngsan.data.problems import Problems
from ngsan.data.splits import canonical_split, read_split_lists, split_of_file

_Image = tuple[str | None, tuple[int, int] | None]  # file and size


def coco_captions(
    paths: Sequence[str | Path],
    *,
    val_ids: str | Path | None = None,
    test_ids: str | Path | None = None,
    karpathy: str | Path | None = None,
    split: str | None = None,
    problems: Problems,
) -> Iterator[ImageCaptions]:
    """Reads annotation files of COCO, with the split of Karpathy or their own.

    Holds the captions of one file at a time.

    Args:
        paths: The files, each with "images" and "annotations". An image is in one of them only.
        val_ids: A list of the ids for validation, one a line.
        test_ids: A list of the ids for test. With a list, every image in no list is for training.
        karpathy: Karpathy's dataset_coco.json, in place of the lists.
        split: The split of all images. Without it and without lists the name of a file tells:
            train, val or test must be in it.
        problems: Takes what is wrong with the files, and ids of the lists that no file has.

    Yields:
        The images in the order of the files.

    Raises:
        ValueError: A file is not JSON, or it is not clear to which split an image belongs.
    """
    listed = read_split_lists(val=val_ids, test=test_ids)
    if karpathy is not None:
        if listed:
            raise ValueError("give Karpathy's file or lists of ids, not both")
        listed = karpathy_splits(karpathy)
    if split is not None and listed:
        raise ValueError(f"split {split!r} is for all images; give it or lists of ids, not both")
    if not paths:
        raise ValueError("there is no annotation file to read")
    seen: dict[str, str | Path] = {}
    for path in paths:
        if listed:
            own = "train"
        else:
            own = split_of_file(path) if split is None else canonical_split(split)
        for identity, captions, (file, size) in _read_file(path, problems):
            if identity in seen:
                where = f"{path}: image {identity}"
                problems.report("duplicate image", where, f"it is in {seen[identity]} already")
                continue
            seen[identity] = path
            place, _ = listed.get(identity, (own, ""))
            yield ImageCaptions(identity, place, captions, file, size)
    names = ", ".join(map(str, paths))
    for identity, (name, where) in listed.items():
        if identity not in seen:
            message = f"image {identity}, listed for {name}, has no captions in {names}"
            problems.report("listed image without captions", where, message)


def _read_file(
    path: str | Path, problems: Problems
) -> Iterator[tuple[str, tuple[str, ...], _Image]]:
    """Reads one file, whose images may stand before or after their annotations."""
    images: dict[str, _Image | None] = {}
    captions: dict[str, list[str]] = {}
    first: dict[str, int] = {}
    keys: set[str] = set()
    for key, number, entry in stream_items(path):
        keys.add(key)
        where = f"{path}: {key} entry {number}"
        if key == "images":
            _add_image(images, entry, problems, where)
        elif key == "annotations":
            identity = _add_caption(captions, entry, problems, where)
            if identity is not None:
                first.setdefault(identity, number)
    if not {"images", "annotations"} <= keys:
        raise ValueError(f"{path}: not a caption file of COCO: it has no images or no annotations")
    for identity, number in first.items():
        if identity not in images:
            where, message = f"{path}: annotations entry {number}", f"no image has id {identity}"
            problems.report("caption for an unknown image", where, message)
    for identity, image in images.items():
        if identity not in captions:
            message = "no annotation that can be used speaks of it"
            problems.report("image without captions", f"{path}: image {identity}", message)
        elif image is not None:
            yield identity, tuple(captions.pop(identity)), image


def _add_image(
    images: dict[str, _Image | None], entry: object, problems: Problems, where: str
) -> None:
    """Takes an images entry; None stands for one that is known but cannot be used."""
    fields = entry_fields(entry, ("id",), problems, where)
    identity = image_id(fields["id"], problems, where) if fields else None
    if fields is None or identity is None:
        return
    where = f"{where} (image {identity})"
    if identity in images:
        problems.report("duplicate image", where, "an earlier entry has the same id")
        return
    images[identity] = None
    file = None
    if fields.get("file_name") is not None:
        file = file_name(fields["file_name"], problems, where)
        if file is None:
            return
    size = fields.get("width"), fields.get("height")
    if size != (None, None) and not all(map(is_length, size)):
        message = f"width and height must be integers above 0, not {shown(size)}"
        problems.report("wrong size", where, message)
        return
    images[identity] = file, cast("tuple[int, int] | None", None if size == (None, None) else size)


def _add_caption(
    captions: dict[str, list[str]], entry: object, problems: Problems, where: str
) -> str | None:
    """Takes an annotations entry; returns its image."""
    fields = entry_fields(entry, ("image_id", "caption"), problems, where)
    identity = image_id(fields["image_id"], problems, where) if fields else None
    if fields is None or identity is None:
        return None
    text = caption_text(fields["caption"], problems, f"{where} (image {identity})")
    if text is not None:
        captions.setdefault(identity, []).append(text)
    return identity
