"""Karpathy's files: dataset_coco.json, dataset_flickr8k.json and dataset_flickr30k.json."""

from collections.abc import Iterator
from pathlib import Path

from ngsan.data.captions import ImageCaptions, caption_text, entry_fields, file_name, image_id
from ngsan.data.importers.json_stream import stream_items
from ngsan.data.lines import shown
from ngsan.data.problems import Problems
from ngsan.data.splits import canonical_split


def karpathy_captions(path: str | Path, *, problems: Problems) -> Iterator[ImageCaptions]:
    """Reads a dataset with its split. Images of "restval" are for training, as in the field.

    An image is known by its COCO id ("cocoid") or else by its file name. Captions are the "raw"
    sentences, not the tokens.

    Args:
        path: The file.
        problems: Takes what is wrong with it.

    Yields:
        The images in the order of the file; nothing but their ids is held in memory.

    Raises:
        ValueError: The file is not JSON, or has no "images".
    """
    seen: dict[str, tuple[int, str]] = {}
    found = False
    for key, number, entry in stream_items(path):
        if key != "images":
            continue
        found = True
        record = _record(entry, problems, f"{path}: images entry {number}")
        if record is None:
            continue
        before, split = seen.setdefault(record.id, (number, record.split))
        if before == number:
            yield record
            continue
        kind = "duplicate image" if split == record.split else "conflicting split"
        where = f"{path}: images entry {number} (image {record.id})"
        problems.report(kind, where, f"it is for {record.split}; entry {before} is for {split}")
    if not found:
        raise ValueError(f"{path}: there are no 'images' in it: not a file of Karpathy's format")


def _record(entry: object, problems: Problems, where: str) -> ImageCaptions | None:
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
    captions = _sentences(fields["sentences"], problems, where)
    return ImageCaptions(identity, split, captions, file) if captions else None


def _sentences(sentences: object, problems: Problems, where: str) -> tuple[str, ...]:
    if not isinstance(sentences, list):
        problems.report("wrong type", where, f"sentences must be a list, not {shown(sentences)}")
        return ()
    captions = []
    for number, sentence in enumerate(sentences, start=1):
        place = f"{where}, sentence {number}"
        fields = entry_fields(sentence, ("raw",), problems, place)
        text = caption_text(fields["raw"], problems, place) if fields else None
        if text is not None:
            captions.append(text)
    if not captions:
        problems.report("image without captions", where, "no sentence is left to use")
    return tuple(captions)


def karpathy_splits(path: str | Path) -> dict[str, tuple[str, str]]:
    """The split of every image of a file and where it stands; "restval" is for training."""
    return {
        record.id: (record.split, f"{path}: image {record.id}")
        for record in karpathy_captions(path, problems=Problems())
    }
