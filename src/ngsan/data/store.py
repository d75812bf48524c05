"""The feature store: region features of many images, read by id from mapped files.

Shapes: `n` regions of an image, `d` feature width. Reading returns views of the mapped files, so
nothing is loaded early and all processes of a machine share one copy.
"""

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.data.ids import canonical_id
from ngsan.data.shards import (
    INDEX,
    MANIFEST,
    PARTIAL,
    STORE,
    Manifest,
    Shard,
    find_image,
    map_tensors,
)

BOX_TOLERANCE = 1e-3
"""How far a box may reach out of the image, relative to the image's sides, and be clipped."""


class BadRegionsError(ValueError):
    """The regions of one image cannot be used; `kind` is shared by similar problems."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """The regions of an image, or the frames of a video."""

    features: NDArray[np.floating[Any]]
    """(n, d); a store returns read-only float16 views."""

    boxes: NDArray[np.floating[Any]] | None = None
    """(n, 4) `cxcywh`, relative to the image, float32; None for elements without a place."""

    size: tuple[int, int] | None = None
    """Width and height of the image in pixels, or None if unknown."""


def checked_regions(
    regions: Regions,
) -> tuple[NDArray[np.float16], NDArray[np.float32] | None, tuple[int, int] | None]:
    """Features, boxes and size as a store keeps them.

    Boxes that reach out of the image by less than `BOX_TOLERANCE` are clipped.

    Raises:
        ValueError: The image has no regions; a feature is not finite or too large for float16; a
            box is not finite, has no area or is outside the image; or the size is not positive.
    """
    features = half_features(np.asarray(regions.features))
    boxes = None
    if regions.boxes is not None:
        boxes = _checked_boxes(np.asarray(regions.boxes), len(features))
    if regions.size is None:
        return features, boxes, None
    width, height = regions.size
    if not (0 < width < 2**31 and 0 < height < 2**31 and width % 1 == height % 1 == 0):
        raise ValueError(f"its size is {width} x {height}: pass whole pixels, or None if unknown")
    return features, boxes, (int(width), int(height))


def half_features(features: NDArray[Any]) -> NDArray[np.float16]:
    """Feature vectors in 16 bits.

    Args:
        features: (n, d) floating point numbers, with n and d above 0.

    Raises:
        BadRegionsError: The shape or type is wrong, or a number is NaN, infinite or too large.
    """
    if features.ndim != 2 or 0 in features.shape:
        raise BadRegionsError(
            "wrong shape", f"features are {features.shape}, not (regions, width) of at least one"
        )
    if not np.issubdtype(features.dtype, np.floating):
        raise BadRegionsError("wrong type", f"features are {features.dtype}, not floating point")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        half = features.astype(np.float16, copy=False)
    # Comparing the bits is seventeen times as fast as `np.isfinite` on 16-bit numbers.
    if int((half.view(np.uint16) & 0x7FFF).max()) >= 0x7C00:
        row, column = np.argwhere(~np.isfinite(half))[0].tolist()
        value = features[row, column]
        name = f"feature {column} of region {row} is"
        if np.isfinite(value):
            raise BadRegionsError(
                "features too large", f"{name} {value:g}; float16 holds up to 65504"
            )
        raise BadRegionsError("features not finite", f"{name} {value}")
    return half


def _checked_boxes(boxes: NDArray[Any], regions: int) -> NDArray[np.float32]:
    """Boxes within the image, clipped where they reach out of it by no more than the tolerance."""
    if boxes.shape != (regions, 4):
        raise ValueError(f"boxes must be ({regions}, 4), one for each region, not {boxes.shape}")
    exact = boxes.astype(np.float64)
    with np.errstate(invalid="ignore"):
        low, high = exact[:, :2] - exact[:, 2:] / 2, exact[:, :2] + exact[:, 2:] / 2
    # "not within" rather than "outside": NaN is neither.
    within = (low >= -BOX_TOLERANCE) & (high <= 1 + BOX_TOLERANCE) & (exact[:, 2:] > 0)
    if not within.all():
        region = int(np.argmin(within.all(axis=1)))
        raise ValueError(
            f"box {region} is {boxes[region].tolist()}: boxes are (cx, cy, w, h) relative to the "
            "image, finite, with a width and height above 0, and within 0 and 1"
        )
    outside = (low < 0) | (high > 1)
    if outside.any():
        low, high = low.clip(0, 1), high.clip(0, 1)
        clipped = np.concatenate(((low + high) / 2, high - low), axis=1)
        exact = np.where(np.tile(outside, 2), clipped, exact)
    kept = exact.astype(np.float32)
    if not (kept[:, 2:] > 0).all():
        region = int(np.argmin((kept[:, 2:] > 0).all(axis=1)))
        raise ValueError(f"box {region} is {boxes[region].tolist()}: nothing of it is in the image")
    return kept


class FeatureStore:
    """Reads features by image id.

    Many processes and machines may use a store at a time. A forked process shares the maps; a
    pickled store maps the files again when it is first read.

    Args:
        path: The dataset's folder, or the store's own.

    Raises:
        FileNotFoundError: The store or one of its files is missing, or its import was interrupted.
        ValueError: The manifest is damaged or of another format, or a file has the wrong size.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = _find_store(Path(path))
        self._manifest = Manifest.read(self.folder / MANIFEST)
        self._stamp = self._read_stamp()
        if self._manifest.index is None:
            raise ValueError(f"{self.folder / MANIFEST} has no index: import the features again")
        self._files = (self._manifest.index, *self._manifest.shards)
        for entry in self._files:
            entry.check(self.folder)
        self._starts = [0, *accumulate(shard.images for shard in self._manifest.shards)]
        self._shards: list[Shard | None] = [None] * len(self._manifest.shards)

    def __getstate__(self) -> dict[str, Any]:
        """All but the maps."""
        state = {name: value for name, value in vars(self).items() if name != "_index"}
        return {**state, "_shards": [None] * len(self._shards)}

    @property
    def feature_dim(self) -> int:
        """d, the width of every feature."""
        return self._manifest.feature_dim

    @property
    def has_boxes(self) -> bool:
        """Whether all images have boxes; otherwise none has."""
        return self._manifest.has_boxes

    @property
    def source(self) -> str:
        """What the features were imported from."""
        return self._manifest.source

    @property
    def signature(self) -> str:
        """A short text that differs between stores that differ in any byte."""
        return self._manifest.signature

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(entry.bytes for entry in self._files)

    def __len__(self) -> int:
        """Number of images."""
        return self._starts[-1]

    def __contains__(self, image_id: str | int) -> bool:
        """Whether there are features of an image."""
        return self._find(image_id) is not None

    def __getitem__(self, image_id: str | int) -> Regions:
        """The regions of an image, as read-only views; 7, "7" and "000007" are the same image.

        Raises:
            KeyError: The store has no such image.
        """
        place = self._find(image_id)
        if place is None:
            known = ", ".join(map(repr, islice(self.ids(), 3)))
            raise KeyError(
                f"no image {canonical_id(image_id)!r} in {self.folder}, which has {len(self)} "
                f"images, such as {known}"
            )
        shard, image = place
        rows = slice(shard.offsets[image], shard.offsets[image + 1])
        width, height = shard.sizes[2 * image], shard.sizes[2 * image + 1]
        return Regions(
            shard.features[rows],
            None if shard.boxes is None else shard.boxes[rows],
            (width, height) if width else None,
        )

    def ids(self) -> Iterator[str]:
        """The ids of all images, in the order of the import."""
        for number in range(len(self._shards)):
            shard = self._shard(number)
            for image in range(len(shard)):
                yield shard.key(image).decode()

    def counts(self) -> NDArray[np.int32]:
        """Regions of each image, in the order of `ids()`; a read-only view."""
        return self._index.counts

    def verify(self) -> list[str]:
        """Reads the whole store and compares it with its checksums.

        Returns:
            A line for each damaged or missing file, which names it; empty if all is well.
        """
        return [problem for problem in self.check_files() if problem]

    def check_files(self) -> Iterator[str]:
        """See `verify`; yields a text after each file, which is empty if all is well with it."""
        problem = ""
        try:
            if Manifest.read(self.folder / MANIFEST) != self._manifest:
                problem = f"{MANIFEST}: it was replaced after the store was opened"
        except (OSError, ValueError) as error:
            problem = f"{MANIFEST}: {error}"
        yield problem
        for entry in self._files:
            try:
                entry.check(self.folder, content=True)
            except (OSError, ValueError) as error:
                yield f"{entry.name}: {error}"
            else:
                yield ""

    def stamp(self) -> tuple[object, ...]:
        """What differs after a file of the store was written, replaced or removed."""
        names = (MANIFEST, *(entry.name for entry in self._files))
        files = [self.folder / name for name in names]
        stats = [path.stat() if path.exists() else None for path in files]
        kept = (one and (one.st_ino, one.st_size, one.st_mtime_ns) for one in stats)
        return (self.folder.resolve(), *kept)

    def _find(self, image_id: str | int) -> tuple[Shard, int] | None:
        """The shard of an image and the image's place in it."""
        # Stored ids are canonical, so a string that is found needs no other form.
        name = image_id if type(image_id) is str else canonical_id(image_id)
        index = self._index
        place = find_image(
            name.encode(), index.hashes, index.rows, self._starts, self._shard, self._check_shard
        )
        if place is not None:
            return place
        canonical = canonical_id(name)
        return None if canonical == name else self._find(canonical)

    @cached_property
    def _index(self) -> "_Index":
        self._check_unchanged()
        assert self._manifest.index is not None
        # Its content, too: it is small, and a wrong byte would hide images or mix them up.
        self._manifest.index.check(self.folder, content=True)
        return _Index(self.folder / INDEX, len(self))

    def _check_shard(self, number: int) -> None:
        self._manifest.shards[number].check(self.folder, content=True)

    def _shard(self, number: int) -> Shard:
        shard = self._shards[number]
        if shard is None:
            self._check_unchanged()
            entry = self._manifest.shards[number]
            entry.check(self.folder)
            shard = self._shards[number] = Shard(self.folder / entry.name)
        return shard

    def _read_stamp(self) -> tuple[int, int]:
        status = (self.folder / MANIFEST).stat()
        return status.st_size, status.st_mtime_ns

    def _check_unchanged(self) -> None:
        """Makes sure that files of two imports are never mixed."""
        if self._read_stamp() != self._stamp:
            raise ValueError(f"{self.folder} was replaced by another import: open the store again")


class PermutedStore(FeatureStore):
    """A store whose boxes change places among the regions of each image, as a control.

    The order is random, differs from image to image, and depends on the image's id alone. The set
    of boxes of an image stays the same.
    """

    def __getitem__(self, image_id: str | int) -> Regions:
        """See `FeatureStore.__getitem__`."""
        regions = super().__getitem__(image_id)
        if regions.boxes is None:
            return regions
        seed = hashlib.sha256(canonical_id(image_id).encode()).digest()
        order = np.random.default_rng(list(seed)).permutation(len(regions.boxes))
        return dataclasses.replace(regions, boxes=regions.boxes[order])

    @property
    def source(self) -> str:
        """See `FeatureStore.source`."""
        return f"{super().source}, permuted boxes"

    @property
    def signature(self) -> str:
        """See `FeatureStore.signature`."""
        return f"{super().signature}-permuted"


class _Index:
    """The mapped index."""

    def __init__(self, path: Path, images: int) -> None:
        tensors = map_tensors(path)
        try:
            self.hashes = tensors["hashes"].data
            self.rows = tensors["rows"].data
            self.counts: NDArray[np.int32] = tensors["counts"]
        except KeyError as error:
            raise ValueError(f"{path} is not the index of a feature store: no {error}") from None
        if not len(self.hashes) == len(self.rows) == len(self.counts) == images:
            raise ValueError(f"{path} does not have {images} images: import the features again")


def _find_store(path: Path) -> Path:
    """The store's folder, from its own path or the dataset's."""
    interrupted = [path] if path.name.endswith(".partial") else []
    if not interrupted:
        for folder in (path / STORE, path):
            if (folder / MANIFEST).exists():
                return folder
        places = [path / PARTIAL, *([path.parent / PARTIAL] if path.name == STORE else [])]
        interrupted = [partial for partial in places if partial.exists()]
    if interrupted:
        raise FileNotFoundError(
            f"the import of features into {interrupted[0]} was interrupted or is under way: run "
            "the same import again to continue it"
        )
    if not path.exists():
        raise FileNotFoundError(f"folder not found: {path}")
    raise FileNotFoundError(
        f"no feature store in {path}: neither {STORE}/{MANIFEST} nor {MANIFEST} exists; "
        "import features first, or copy the whole folder"
    )
