"""A small dataset out of a large one, for the small preset: fewer images, and their vocabulary."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ngsan.data.captions import (
    CAPTIONS,
    VOCABULARY,
    ImageCaptions,
    read_captions,
    write_captions,
)
from ngsan.data.shards import STORE
from ngsan.text.vocabulary import Vocabulary

SMALL: Mapping[str, int] = {"train": 2000, "val": 200, "test": 600}
"""Images of each split in the small preset."""


def make_subset(
    source: str | Path,
    to: str | Path,
    images: Mapping[str, int] = SMALL,
    *,
    is_available: Callable[[str], bool] = lambda image: True,
) -> None:
    """Makes a dataset folder of some images of another one, or keeps the one that is there.

    The images are those whose ids have the lowest hashes, so that they depend on nothing else. The
    vocabulary is that of the training captions. The features are a link to the other folder's.

    Args:
        source: The large dataset folder.
        to: The small one.
        images: Images of each split; all of a split that has fewer.
        is_available: Whether an image can be chosen, such as whether it has features.

    Raises:
        ValueError: There is nothing to choose, or `to` has other images.
    """
    source, to = Path(source), Path(to)
    chosen = _choose(source, images, is_available)
    if (to / CAPTIONS).exists() and list(read_captions(to)) != chosen:
        raise ValueError(f"{to} has other images than {source} gives; pass another --output")
    if not (to / CAPTIONS).exists():
        write_captions(to, chosen)
    if not (to / VOCABULARY).exists():
        _vocabulary(chosen, Vocabulary.load(source / VOCABULARY)).save(to / VOCABULARY)
    if (source / STORE).exists() and not (to / STORE).exists():
        (to / STORE).unlink(missing_ok=True)  # a link to a folder that has moved
        (to / STORE).symlink_to((source / STORE).resolve(), target_is_directory=True)


def _choose(
    source: Path, images: Mapping[str, int], is_available: Callable[[str], bool]
) -> list[ImageCaptions]:
    """The records of the chosen images, in the order of their hashes."""
    records = [
        record
        for record in read_captions(source)
        if record.split in images and is_available(record.id)
    ]
    records.sort(key=lambda record: hashlib.sha256(record.id.encode()).hexdigest())
    chosen = []
    for split, count in images.items():
        found = [record for record in records if record.split == split]
        if not found:
            raise ValueError(
                f"{source}: no image of split {split!r} has features; extract them first "
                "(ngsan extract)"
            )
        chosen += found[:count]
    return chosen


def _vocabulary(chosen: list[ImageCaptions], large: Vocabulary) -> Vocabulary:
    """The frequent words of the chosen training captions, by the large vocabulary's tokenizer."""
    return Vocabulary.build(
        (
            large.tokenize(caption)
            for record in chosen
            if record.split == "train"
            for caption in record.captions
        ),
        tokenizer=large.origin.tokenizer if large.origin else "",
    )
