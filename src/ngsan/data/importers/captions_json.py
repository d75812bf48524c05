"""Caption files in JSON: COCO's annotations, Karpathy's datasets, and VATEX."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from ngsan.data.captions import ImageCaptions
from ngsan.data.problems import (
    Problems,
    caption_text,
    caption_texts,
    entry_fields,
    file_name,
    image_id,
    is_length,
    shown,
)
from ngsan.data.splits import canonical_split, read_split_lists, split_of_file
from ngsan.data.text_files import read_items

LANGUAGES = {"en": "enCap", "zh": "chCap"}
"""VATEX's key of a language's captions."""

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
    """Reads COCO annotation files such as captions_train2014.json.

    The captions of one file are held in memory at a time.

    Args:
        paths: The files, each with "images" and "annotations". An image is in one of them only.
        val_ids: List of the validation ids, one per line.
        test_ids: List of the test ids. With a list, every image in no list is for training.
        karpathy: Karpathy's dataset_coco.json, instead of lists.
        split: The split of all images. Without it and without lists, the name of each file must
            contain train, val or test.
        problems: Where bad entries are reported, and listed ids that no file has.

    Yields:
        The images in the order of the files.
    """
    listed = read_split_lists(val=val_ids, test=test_ids)
    if karpathy is not None:
        if listed:
            raise ValueError("pass Karpathy's file or lists of ids, not both")
        listed = {
            record.id: (record.split, f"{karpathy}: image {record.id}")
            for record in karpathy_captions(karpathy, problems=Problems())
        }
    if split is not None and listed:
        raise ValueError(f"split {split!r} is for all images; pass it or lists of ids, not both")
    if not paths:
        raise ValueError("no annotation file; pass at least one")
    seen: dict[str, str | Path] = {}
    for path in paths:
        own = "train" if listed else _split(path, split)
        for identity, captions, (file, size) in _read_coco(path, problems):
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


def _split(path: str | Path, split: str | None) -> str:
    return split_of_file(path) if split is None else canonical_split(split)


def _read_coco(
    path: str | Path, problems: Problems
) -> Iterator[tuple[str, tuple[str, ...], _Image]]:
    images: dict[str, _Image | None] = {}
    for _, number, entry in read_items(path, "images"):
        _add_image(images, entry, problems, f"{path}: images entry {number}")
    captions: dict[str, list[str]] = {}
    first: dict[str, int] = {}
    number = 0
    for _, number, entry in read_items(path, "annotations"):
        where = f"{path}: annotations entry {number}"
        fields = entry_fields(entry, ("image_id", "caption"), problems, where)
        identity = image_id(fields["image_id"], problems, where) if fields else None
        if fields is None or identity is None:
            continue
        first.setdefault(identity, number)
        text = caption_text(fields["caption"], problems, f"{where} (image {identity})")
        if text is not None:
            captions.setdefault(identity, []).append(text)
    if not images or not number:
        raise ValueError(f"{path}: not a caption file of COCO: it has no images or no annotations")
    for identity, number in first.items():
        if identity not in images:
            where, message = f"{path}: annotations entry {number}", f"no image has id {identity}"
            problems.report("caption for an unknown image", where, message)
    for identity, image in images.items():
        if identity not in captions:
            where = f"{path}: image {identity}"
            problems.report("image without captions", where, "it has no usable annotation")
        elif image is not None:
            yield identity, tuple(captions.pop(identity)), image


def _add_image(
    images: dict[str, _Image | None], entry: object, problems: Problems, where: str
) -> None:
    """Adds an images entry; None marks an image that cannot be used."""
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


def karpathy_captions(path: str | Path, *, problems: Problems) -> Iterator[ImageCaptions]:
    """Reads Karpathy's dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json.

    The split is in the file; "restval" is for training, as usual. The id is the COCO id
    ("cocoid"), or else the file name. Captions are the "raw" sentences.

    Yields:
        The images in the order of the file; only their ids are held in memory.
    """
    seen: dict[str, tuple[int, str]] = {}
    number = 0
    for _, number, entry in read_items(path, "images"):
        record = _karpathy_record(entry, problems, f"{path}: images entry {number}")
        if record is None:
            continue
        before, split = seen.setdefault(record.id, (number, record.split))
        if before == number:
            yield record
            continue
        kind = "duplicate image" if split == record.split else "conflicting split"
        where = f"{path}: images entry {number} (image {record.id})"
        problems.report(kind, where, f"it is for {record.split}; entry {before} is for {split}")
    if not number:
        raise ValueError(f"{path}: there are no 'images' in it: not a file of Karpathy's format")


def _karpathy_record(entry: object, problems: Problems, where: str) -> ImageCaptions | None:
    fields = entry_fields(entry, ("filename", "split", "sentences"), problems, where)
    file = file_name(fields["filename"], problems, where) if fields else None
    if fields is None or file is None:
        return None
    identity = image_id(fields.get("cocoid", Path(file).stem), problems, where)
    if identity is None:
        return None
    where = f"{where} (image {identity})"
    try:
        split = canonical_split(fields["split"])
    except ValueError as error:
        problems.report("unknown split", where, str(error))
        return None
    sentences = fields["sentences"]
    if not isinstance(sentences, list):
        problems.report("wrong type", where, f"sentences must be a list, not {shown(sentences)}")
        return None
    captions = []
    for number, sentence in enumerate(sentences, start=1):
        place = f"{where}, sentence {number}"
        raw = entry_fields(sentence, ("raw",), problems, place)
        text = caption_text(raw["raw"], problems, place) if raw else None
        if text is not None:
            captions.append(text)
    if not captions:
        problems.report("image without captions", where, "no usable sentence is left")
        return None
    return ImageCaptions(identity, split, tuple(captions), file)


def vatex_captions(
    paths: Sequence[str | Path],
    *,
    split: str | None = None,
    language: str = "en",
    problems: Problems,
) -> Iterator[ImageCaptions]:
    """Reads VATEX files such as vatex_training_v1.0.json.

    Args:
        paths: The files, each a list of `{"videoID": ..., "enCap": [...], "chCap": [...]}`.
        split: The split of all videos; None to use the name of each file.
        language: "en" or "zh".
        problems: Where bad entries are reported.

    Yields:
        The videos in the order of the files; only their ids are held in memory.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language: {language!r} is not one of {', '.join(LANGUAGES)}")
    if not paths:
        raise ValueError("no caption file; pass at least one")
    key = LANGUAGES[language]
    seen: dict[str, str] = {}
    for path in paths:
        own, number = _split(path, split), 0
        for _, number, entry in read_items(path):
            where = f"{path}: entry {number}"
            fields = entry_fields(entry, ("videoID", key), problems, where)
            identity = image_id(fields["videoID"], problems, where) if fields else None
            if fields is None or identity is None:
                continue
            where = f"{where} (video {identity})"
            if identity in seen:
                problems.report("duplicate image", where, f"the video is in {seen[identity]}")
                continue
            seen[identity] = f"{path}, entry {number}"
            captions = caption_texts(fields[key], problems, where)
            if captions:
                yield ImageCaptions(identity, own, captions)
        if not number:
            raise ValueError(f"{path}: not a VATEX file, which is a list of videos")
