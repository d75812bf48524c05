"""One split of a dataset folder: captions, vocabulary and features joined.

Shapes: `B` images, `N` regions, `C` captions per image, `T` words.
"""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ngsan.data.batch import CaptionBatch, CaptionRows, TokenTable, pad_regions
from ngsan.data.captions import VOCABULARY, read_captions
from ngsan.data.sampler import Draw
from ngsan.data.store import FeatureStore, PermutedStore, Regions
from ngsan.text.vocabulary import Vocabulary

_NAMED = 5


class RegionStore(Protocol):
    """What a dataset needs of its features; `FeatureStore` has it."""

    folder: Path

    @property
    def feature_dim(self) -> int:
        """Width of a feature vector."""

    @property
    def has_boxes(self) -> bool:
        """Whether regions have boxes."""

    @property
    def source(self) -> str:
        """What made the features."""

    @property
    def signature(self) -> str:
        """Changes with every feature."""

    def __contains__(self, image: str) -> bool:
        """Whether there are features of an image."""

    def __getitem__(self, image: str) -> Regions:
        """The regions of an image."""

    def ids(self) -> Iterable[str]:
        """The images."""

    def counts(self) -> NDArray[Any]:
        """The regions of each image, in the order of `ids`."""


def features_origin(store: RegionStore, counts: NDArray[np.int64]) -> str:
    """A hash that is equal for features made twice in the same way.

    It leaves out the features' bytes: a network on a GPU need not give the same last bit twice.

    Args:
        store: The features.
        counts: Regions of each image that matters.
    """
    parts = {
        "source": store.source,
        "feature_dim": store.feature_dim,
        "has_boxes": store.has_boxes,
        "regions": hashlib.sha256(counts.astype("<i8").tobytes()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class CaptionDataset(Dataset[CaptionBatch]):
    """The captioned images of one split.

    Words are encoded once and held as arrays, captions as one string of bytes: the 113,000 images
    of COCO's training split take some 75 MB, shared by the workers of a loader. Features stay in
    the store until a batch needs them.

    Args:
        folder: The dataset folder, with captions.jsonl, vocabulary.json and features/.
        split: Such as "train".
        max_length: Captions are cut off after this many words.
        captions_per_image: Captions of an image in a batch, which take turns from epoch to epoch;
            None for all.
        seed: Seed of their turns.
        dtype: Of the features, float32 or float16.
        skip_missing: Whether to skip images without features instead of raising an error.
        boxes: "given", or "permuted" for a `PermutedStore`.

    Attributes:
        ids: The image ids, in the order of the captions' file.
        vocabulary: The folder's vocabulary.
        store: The folder's features.
        missing: Number of images skipped because they have no features.
        region_counts: (images,) regions of each image.
        rows: Which captions belong to which image.
        tokens: The captions' word ids.
        signature: Changes with any caption, its words, the split, the vocabulary or a feature.
        origin: Like the signature, but with `features_origin` in place of the features' bytes.
    """

    def __init__(
        self,
        folder: str | Path,
        split: str,
        *,
        max_length: int = 20,
        captions_per_image: int | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        skip_missing: bool = False,
        boxes: Literal["given", "permuted"] = "given",
    ) -> None:
        if max_length < 1:
            raise ValueError(f"max_length: {max_length} must be at least 1")
        if captions_per_image is not None and captions_per_image < 1:
            raise ValueError(
                f"captions_per_image: {captions_per_image} must be at least 1, or None"
            )
        if dtype not in (torch.float32, torch.float16):
            raise ValueError(f"dtype: {dtype} must be torch.float32 or torch.float16")
        self.folder, self.split, self.max_length = Path(folder), split, max_length
        self.captions_per_image, self.dtype = captions_per_image, dtype
        self.vocabulary = Vocabulary.load(self.folder / VOCABULARY)
        self.store = self._open() if boxes == "given" else PermutedStore(self.folder)
        self._read(skip_missing=skip_missing, seed=seed)
        held = dict(zip(self.store.ids(), self.store.counts().tolist(), strict=True))
        self.region_counts: NDArray[np.int64] = np.array(
            [held[image] for image in self.ids], dtype=np.int64
        )
        self.signature = self._sign(self.store.signature)
        self.origin = self._sign(features_origin(self.store, self.region_counts))

    def _open(self) -> RegionStore:
        return FeatureStore(self.folder)

    @property
    def held_bytes(self) -> int:
        """Bytes of the features and boxes in memory."""
        return int(self.region_counts.sum()) * (2 * self.store.feature_dim + 4 * 4)

    def _read(self, *, skip_missing: bool, seed: int) -> None:
        """Reads ids, captions and word ids from the captions' file."""
        self.ids: list[str] = []
        missing: list[str] = []
        splits: Counter[str] = Counter()
        text, ends = bytearray(), array("q", [0])
        counts, lengths, tokens = array("q"), array("q"), array("i")
        for record in read_captions(self.folder):
            splits[record.split] += 1
            if record.split != self.split:
                continue
            if record.id not in self.store:
                missing.append(record.id)
                continue
            self.ids.append(record.id)
            counts.append(len(record.captions))
            for caption in record.captions:
                words = self.vocabulary.tokenize(caption)[: self.max_length]
                tokens.extend(self.vocabulary.encode(words))
                lengths.append(len(words))
                text += caption.encode()
                ends.append(len(text))
        self._check(splits, [] if skip_missing else missing)
        self.missing = len(missing)
        self.rows = CaptionRows.of_counts(np.array(counts), seed=seed)
        self.tokens = TokenTable.of_lengths(np.array(tokens), np.array(lengths))
        self._text, self._text_offsets = bytes(text), np.array(ends)

    def _check(self, splits: Counter[str], missing: list[str]) -> None:
        if self.split not in splits:
            known = ", ".join(f"{name} ({count} images)" for name, count in sorted(splits.items()))
            raise ValueError(f"{self.folder} has no split {self.split!r}, only {known or 'none'}")
        if missing:
            raise ValueError(
                f"{len(missing)} of {splits[self.split]} images of split {self.split!r} in "
                f"{self.folder} have no features, such as {', '.join(missing[:_NAMED])}: import "
                "them, or skip these images with skip_missing"
            )
        if not self.ids:
            raise ValueError(f"no image of split {self.split!r} in {self.folder} has features")

    def _sign(self, features: str) -> str:
        captions = hashlib.sha256(self._text)
        captions.update(self._text_offsets.tobytes())
        captions.update(self.rows.offsets.tobytes())
        captions.update(self.tokens.tokens.numpy().tobytes())
        captions.update(json.dumps(self.ids).encode())
        parts = {
            "captions": captions.hexdigest(),
            "features": features,
            "split": self.split,
            "vocabulary": self.vocabulary.signature,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def __len__(self) -> int:
        """The number of images."""
        return len(self.ids)

    def captions(self, index: int) -> list[str]:
        """The original captions of the image at a position, from 0."""
        index = range(len(self))[index]
        places = self._text_offsets[self.rows.offsets[index] : self.rows.offsets[index + 1] + 1]
        return [self._text[start:end].decode() for start, end in pairwise(places.tolist())]

    def references(self) -> dict[str, list[str]]:
        """The original captions of all images, by id."""
        return {image: self.captions(place) for place, image in enumerate(self.ids)}

    def __getitem__(self, draw: Draw) -> CaptionBatch:
        """The batch that a `BatchSampler` drew; a loader with `batch_size=None` calls this."""
        return self.batch(draw.indices, epoch=draw.epoch)

    def batch(self, indices: Sequence[int] | NDArray[Any], *, epoch: int = 0) -> CaptionBatch:
        """Some images as a batch, padded to the longest of them.

        Args:
            indices: Positions, at least one.
            epoch: The pass over the data, which decides whose turn among the captions it is.
        """
        places, rows = self.choose(indices, epoch=epoch)
        ids = [self.ids[place] for place in places]
        regions = [self.store[image] for image in ids]
        captions = self.tokens.gather(torch.from_numpy(rows), self.tokens.width(rows))
        return CaptionBatch(*pad_regions(regions, dtype=self.dtype), *captions, ids=ids)

    def choose(
        self, indices: Sequence[int] | NDArray[Any], *, epoch: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The images (B,) and captions (B, C) of a batch, padded with `NO_CAPTION`."""
        places = np.asarray(indices, dtype=np.int64)
        if places.ndim != 1 or not len(places):
            raise ValueError(f"a batch needs a list of images, at least one, not {indices!r}")
        if places.min() < 0 or places.max() >= len(self):
            raise IndexError(
                f"images {places.min()} to {places.max()} are out of range: "
                f"split {self.split!r} has 0 to {len(self) - 1}"
            )
        return places, self.rows.choose(places, count=self.captions_per_image, epoch=epoch)

    def require_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Raises a `ValueError` if a model's vocabulary is not this dataset's."""
        try:
            self.vocabulary.require_same(vocabulary, "the model")
        except ValueError as error:
            raise ValueError(f"{self.folder / VOCABULARY}: {error}") from None
