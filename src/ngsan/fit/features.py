"""Features of a dataset's photographs from the second eye, in blocks that a stopped run keeps.

The photographs of validation come first, then those for training, folder by folder and within a
folder in random order. So a fit may start at any time with what is there.
"""

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.data.ids import id_of_file
from ngsan.data.store import FeatureStore, Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.vision.decoding import shared_service
from ngsan.vision.images import find_images
from ngsan.vision.keywords import Eye

BLOCK = 1000
"""Photographs of a block."""

_AHEAD = 8


def ordered_files(
    folders: Sequence[str | Path], splits: Mapping[str, str], *, seed: int = 0
) -> dict[str, Path]:
    """Files of photographs by image id, in the order of extraction.

    Args:
        folders: Where they are; of two files of an image, the first counts.
        splits: The split of every image of the dataset by id; those of other splits than "train"
            and "val" are ignored.
        seed: Seed of the order.

    Raises:
        ValueError: No file belongs to an image of the dataset.
    """
    files: dict[str, Path] = {}
    rank: dict[str, tuple[bool, int, float]] = {}
    for place, folder in enumerate(folders):
        chance = random.Random(seed)
        for path in find_images([folder]):
            image = id_of_file(path)
            if splits.get(image) in ("train", "val") and image not in files:
                training = splits[image] == "train"
                files[image] = path
                rank[image] = training, place * training, chance.random()
    if not files:
        raise ValueError(f"{', '.join(map(str, folders))}: no file is named like an image's id")
    return {image: files[image] for image in sorted(files, key=rank.__getitem__)}


def extract_features(files: Mapping[str, Path], eye: Eye, folder: Path) -> Iterator[int]:
    """Writes the features of photographs, and resumes an earlier run.

    Args:
        files: The photographs by id, in the order of `ordered_files`.
        eye: The network.
        folder: Where the blocks are.

    Yields:
        The number of finished photographs, after each.

    Raises:
        ImageError: A photograph cannot be read.
    """
    images = list(files)
    for start in range(0, len(images), BLOCK):
        block = folder / f"block-{start // BLOCK:04}"
        mine = images[start : start + BLOCK]
        if (block / "features").is_dir():
            yield start + len(mine)
            continue
        with StoreWriter(block, source=f"eye {eye.signature}", shard_bytes=4 << 20) as writer:
            left = [image for image in mine if image not in writer]
            pixels = _read_ahead([files[image] for image in left], eye.size)
            for image, square in zip(left, pixels, strict=True):
                writer.add(image, Regions(eye.features(square[None])[0]))
                yield start + len(writer)


def read_features(folder: Path) -> tuple[list[str], NDArray[np.float16]]:
    """The ids and the features (images, P, C) of all complete blocks."""
    ids: list[str] = []
    found = []
    for block in sorted(folder.glob("block-*/features")):
        store = FeatureStore(block.parent)
        mine = list(store.ids())
        found.append(np.stack([store[image].features for image in mine]))
        ids += mine
    if not found:
        raise ValueError(f"{folder} has no complete block of features")
    return ids, np.concatenate(found)


def _read_ahead(paths: Sequence[Path], size: int) -> Iterator[NDArray[np.uint8]]:
    """Reads photographs as squares in a thread, a few ahead."""

    def read(path: Path) -> NDArray[np.uint8]:
        return shared_service().squares(path, (size,)).squares[0]

    with ThreadPoolExecutor(1) as pool:
        rest = iter(paths)
        waiting: deque[Future[NDArray[np.uint8]]] = deque()
        try:
            waiting.extend(pool.submit(read, path) for path in islice(rest, _AHEAD))
            while waiting:
                done = waiting.popleft().result()
                waiting.extend(pool.submit(read, path) for path in islice(rest, 1))
                yield done
        finally:
            pool.shutdown(cancel_futures=True)
