"""The data of a fine-tuning run: pictures encoded once, and their captions, as a dataset folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.data.captions import VOCABULARY, ImageCaptions, write_captions
from ngsan.data.store import FeatureStore
from ngsan.data.store_writer import StoreWriter
from ngsan.finetuning.encoded import PhotoReader, Start
from ngsan.finetuning.job import Job
from ngsan.finetuning.plan import names_a_side
from ngsan.finetuning.replay import available, read_replay, test_card, unlike
from ngsan.finetuning.task import REPLAYED
from ngsan.predict.captioner import PHOTO_DECODING, Captioner, load
from ngsan.text.articles import with_articles
from ngsan.text.vocabulary import UNKNOWN, Vocabulary
from ngsan.vision.images import ImageError

_CAPTIONS = 3
"""Captions of a replayed picture each time."""

_SHARD_BYTES = 32 << 20
_BATCH = 8
_MIRROR = "-mirror"

Listen = Callable[[Mapping[str, Any]], None]


def write_data(work: Path, job: Job, start: Start, threads: int | None, listen: Listen) -> Job:
    """Writes the dataset into a folder; what an earlier run computed of a picture is used again.

    Args:
        work: The folder.
        job: The pictures and captions.
        start: The model that reads the pictures.
        threads: CPU threads.
        listen: Receives the progress, and which pictures cannot be read.

    Returns:
        The job without the pictures that cannot be read.

    Raises:
        ValueError: Too few pictures are left.
    """
    reader = PhotoReader(start, job.plan.layers, threads=threads)
    cells = _ordinary_cells(reader, start) if job.plan.replay else np.zeros((0,), np.float32)
    _encode(work, job, reader, cells, listen)
    store = FeatureStore(work)
    every = (*job.train, *job.held_out)
    bad = [photo for photo in every if photo.id not in store]
    if bad:
        job = job.without({photo.id for photo in bad})
        job.problems.append(f"skipped {len(bad)}: unreadable picture (first: {bad[0].path})")
    chosen = _to_replay(store, job, len(cells))
    captions = _self_captions(start, cells[chosen], job.plan.copies, threads)
    names = _replay_ids(chosen, job.plan.copies)
    _write_captions(work, job, dict(zip(names, captions, strict=True)))
    return job


def _ordinary_cells(reader: PhotoReader, start: Start) -> NDArray[np.float32]:
    """The cells of the ordinary pictures."""
    card = reader.cells(test_card(start.config.image_size)[None])[0]
    return read_replay(card, available())


def _to_replay(store: FeatureStore, job: Job, ordinary: int) -> list[int]:
    """The numbers of the ordinary pictures that are replayed, of a number of them."""
    if not ordinary:
        return []
    mine, others = (
        np.stack([store[name].features.mean(0, dtype=np.float32) for name in names])
        for names in ([photo.id for photo in job.train], _replay_ids(range(ordinary), 1))
    )
    chosen: list[int] = unlike(mine, others)[: job.plan.replay].tolist()
    return chosen


def _encode(
    work: Path, job: Job, reader: PhotoReader, cells: NDArray[np.float32], listen: Listen
) -> None:
    """Writes the feature store."""
    files = {photo.id: photo.path for photo in (*job.train, *job.held_out)}
    mirrored = {photo.id + _MIRROR: photo.path for photo in job.train if job.plan.mirror}
    replayed = _replay_ids(range(len(cells)), job.plan.copies)
    wanted = [*files, *mirrored, *replayed]
    old = _old_store(work, reader.source)
    if old is not None and all(name in old for name in wanted):
        return

    def on_bad(image: str, error: ImageError) -> None:
        if image in files:
            listen({"event": "note", "text": f"skipped a picture: {error}"})

    with StoreWriter(work, source=reader.source, shard_bytes=_SHARD_BYTES, overwrite=True) as store:
        for name in wanted:
            if old is not None and name in old and name not in store:
                store.add(name, old[name])
        for part, flip in ((files, False), (mirrored, True)):
            left = {name: path for name, path in part.items() if name not in store}
            for name, regions in reader.read(left, on_bad, flip=flip):
                store.add(name, regions)
                done = {"done": len(store), "total": len(wanted)}
                listen({"event": "progress", "what": "reading pictures", **done})
        for place, one in enumerate(cells):
            names = [name for name in replayed[place :: len(cells)] if name not in store]
            entries = reader.regions(one[None]) if names else []
            for name in names:
                store.add(name, entries[0])


def _old_store(work: Path, source: str) -> FeatureStore | None:
    """What an earlier run computed in the same way, unless it is damaged by now."""
    try:
        store = FeatureStore(work)
    except (FileNotFoundError, ValueError):
        return None
    return store if store.source == source and not store.verify() else None


def _write_captions(work: Path, job: Job, replayed: Mapping[str, tuple[str, ...]]) -> None:
    """Writes the captions and the vocabulary, which has the new words."""
    words = [*job.vocabulary.words, *(word for word, _ in job.words.new)]
    if UNKNOWN not in words:
        words.append(UNKNOWN)  # for those that are too rare
    records = [ImageCaptions(photo.id, "val", tuple(photo.captions)) for photo in job.held_out]
    for photo in job.train:
        records.append(ImageCaptions(photo.id, "train", tuple(photo.captions)))
        sideless = tuple(text for text in photo.captions if not names_a_side(text))
        if job.plan.mirror and sideless:
            records.append(ImageCaptions(photo.id + _MIRROR, "train", sideless))
    records += [ImageCaptions(name, "train", captions) for name, captions in replayed.items()]
    write_captions(work, records, overwrite=True)
    vocabulary = Vocabulary(words, origin=job.vocabulary.origin)
    vocabulary.save(work / VOCABULARY)


def _self_captions(
    start: Start, cells: NDArray[np.float32], copies: int, threads: int | None
) -> list[tuple[str, ...]]:
    """What the model itself writes of replayed pictures: the best captions, then samples."""
    if not len(cells):
        return []
    captioner: Captioner = load(start.folder, threads=threads)
    found: list[tuple[str, ...]] = []
    for copy in range(copies):
        options: dict[str, Any] = {**vars(PHOTO_DECODING), "num_return": _CAPTIONS}
        if copy:
            options |= {"method": "sample", "top_p": 0.95, "seed": copy}
        for first in range(0, len(cells), _BATCH):
            batch = cells[first : first + _BATCH]
            for caption in captioner.caption_regions(batch, first=first, **options):
                texts = (" ".join(with_articles(one.words)) for one in (caption, *caption.others))
                found.append(tuple(dict.fromkeys(texts)))
    return found


def _replay_ids(numbers: Sequence[int], copies: int) -> list[str]:
    """The ids of replayed pictures, each of which has a number of copies; copy by copy."""
    return [f"{REPLAYED}{copy}-{number}" for copy in range(copies) for number in numbers]
