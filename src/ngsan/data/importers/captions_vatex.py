"""VATEX's caption files: vatex_training_v1.0.json, vatex_validation_v1.0.json and the like."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ngsan.data.captions import ImageCaptions, caption_texts, entry_fields, image_id
from ngsan.data.importers.json_stream import stream_items
from ngsan.data.problems import Problems
from ngsan.data.splits import canonical_split, split_of_file

LANGUAGES = {"en": "enCap", "zh": "chCap"}
"""The key of a language's captions; each video has ten in English and ten in Chinese."""


def vatex_captions(
    paths: Sequence[str | Path],
    *,
    split: str | None = None,
    language: str = "en",
    problems: Problems,
) -> Iterator[ImageCaptions]:
    """Reads videos and their captions.

    Args:
        paths: The files, each a list of `{"videoID": ..., "enCap": [...], "chCap": [...]}`.
        split: The split of all videos; without it the name of each file tells.
        language: "en" or "zh".
        problems: Takes what is wrong with the files.

    Yields:
        The videos in the order of the files; nothing but their ids is held in memory.

    Raises:
        ValueError: A file is not JSON, its split is not clear, or there is no such language.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language: {language!r} is not one of {', '.join(LANGUAGES)}")
    if not paths:
        raise ValueError("there is no caption file to read")
    key = LANGUAGES[language]
    seen: dict[str, str] = {}
    for path in paths:
        own = split_of_file(path) if split is None else canonical_split(split)
        for array, number, entry in stream_items(path):
            where = f"{path}: entry {number}"
            if array:
                raise ValueError(f"{where} of {array!r}: a VATEX file is one list of videos")
            fields = entry_fields(entry, ("videoID", key), problems, where)
            identity = image_id(fields["videoID"], problems, where) if fields else None
            if fields is None or identity is None:
                continue
            where = f"{where} (video {identity})"
            if identity in seen:
                problems.report("duplicate image", where, f"the video stands in {seen[identity]}")
                continue
            seen[identity] = f"{path}, entry {number}"
            captions = caption_texts(fields[key], problems, where)
            if captions:
                yield ImageCaptions(identity, own, captions)
