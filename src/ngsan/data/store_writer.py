"""Writes a feature store, shard by shard, so that an interrupted import goes on where it stopped.

Shapes: `n` regions of an image, `d` feature width. Each file is written beside its name, flushed to
disk and renamed. The shards gather in `features.partial`, whose `state.json` says which of them
count; the folder is renamed to `features` as the very last step. Whatever kills an import therefore
leaves a `features.partial` that the same import takes up again, and never half a store.
"""

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ngsan.data.ids import canonical_id
from ngsan.data.lock import release_lock, take_lock
from ngsan.data.shards import (
    INDEX,
    MANIFEST,
    PARTIAL,
    STORE,
    UNKNOWN_SIZE,
    Manifest,
    Shard,
    find_image,
    id_hash,
    shard_name,
    write_bytes,
    write_tensors,
)
from ngsan.data.store import Regions, checked_regions
from ngsan.durable import flush_folder

_STATE = "state.json"
_LOCK = "features.lock"
_REPLACED = "features.old"


class StoreWriter:
    """Writes the features of a dataset.

    Example:
        with StoreWriter(folder, source="tsv trainval.tsv 12345678 bytes") as writer:
            for position, image_id, regions in read_tsv(path, start=writer.position):
                writer.add(image_id, regions, position=position)

    Leaving the block finishes the store. An exception, or a kill, leaves `features.partial`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        source: str,
        shard_bytes: int = 256 << 20,
        overwrite: bool = False,
    ) -> None:
        """Begins an import, or takes up an interrupted one of the same source.

        Args:
            path: The dataset's folder; the store becomes its `features`.
            source: What is imported, told apart from anything else: name and size of the file.
            shard_bytes: Size that a shard does not exceed, unless one image alone does. At most
                one shard is held in memory.
            overwrite: Whether a store that is already there is replaced, once the new one is
                complete, and an interrupted import of another source is thrown away.

        Raises:
            ValueError: There is a store already, or an interrupted import of another source, or
                another import into this folder is under way.
        """
        if shard_bytes < 1:
            raise ValueError(f"shard_bytes: {shard_bytes} must be at least 1")
        self.folder = Path(path)
        self._partial = self.folder / PARTIAL
        self._shard_bytes = shard_bytes
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = take_lock(self.folder / _LOCK)
        try:
            if (self.folder / STORE).exists():
                # What a kill right after the exchange of two stores left over.
                shutil.rmtree(self.folder / _REPLACED, ignore_errors=True)
            if (self.folder / STORE).exists() and not overwrite:
                raise ValueError(
                    f"{self.folder / STORE} exists: choose another folder, or pass overwrite to "
                    "replace it"
                )
            self._state = self._take_up(source, overwrite)
            self._known = _KnownIds(self._partial, self._state)
        except BaseException:
            self._release_lock()
            raise
        self._pending = _PendingShard(shard_bytes)
        self._last_position: Any = self._state.position

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finishes the store, unless an exception ended the block."""
        try:
            if kind is None:
                self._finish()
        finally:
            self._release_lock()

    @property
    def position(self) -> Any:
        """Where to go on: what was given with the last image that is safe on disk, or None.

        It has been through JSON, so a tuple comes back as a list.
        """
        return self._state.position

    def __len__(self) -> int:
        """Images added so far, those of an interrupted import included."""
        return self._state.images + len(self._pending)

    def __contains__(self, image_id: str | int) -> bool:
        """Whether an image was added, now or by the interrupted import."""
        key = canonical_id(image_id).encode()
        return key in self._pending.keys or key in self._known

    def add(self, image_id: str | int, regions: Regions, *, position: Any = None) -> None:
        """Adds an image.

        Args:
            image_id: A string or an integer.
            regions: Features of any float type, kept as float16; boxes relative to the image. A box
                that reaches out of it by less than `BOX_TOLERANCE` is clipped.
            position: Where in the source this image stands, as a JSON value with which the source's
                reader can go on after it.

        Raises:
            ValueError: The image was added before, has no regions, another feature width than the
                others, features that are not finite or too large for float16, a box that is not
                finite, without area or outside the image, or boxes where the others have none.
                The image is not added, and the next one may be.
        """
        name = canonical_id(image_id)
        if name in self:
            raise ValueError(f"image {name!r} was added before: ids must be unique")
        try:
            features, boxes, size = checked_regions(regions)
            self._check_alike(features.shape[1], boxes is not None)
        except ValueError as error:
            raise ValueError(f"image {name!r}: {error}") from None
        key = name.encode()
        if len(self._pending) and _image_bytes(key, features, boxes) > self._pending.room:
            self._write_shard()
        self._pending.add(key, features, boxes, size or UNKNOWN_SIZE)
        self._last_position = position

    def _check_alike(self, width: int, has_boxes: bool) -> None:
        """Sets the store's feature width by its first image and holds all others to it."""
        if not self._state.feature_dim:
            self._state = replace(self._state, feature_dim=width, has_boxes=has_boxes)
        if width != self._state.feature_dim:
            raise ValueError(
                f"its features are {width} wide, those of the images before are "
                f"{self._state.feature_dim} wide: a store holds features of one kind"
            )
        if has_boxes != self._state.has_boxes:
            raise ValueError(
                f"it has {'' if has_boxes else 'no '}boxes, unlike the images before: give boxes "
                "for all images or for none"
            )

    def _take_up(self, source: str, overwrite: bool) -> Manifest:
        """The state of the interrupted import in `features.partial`, or of a new one."""
        state = self._interrupted_state()
        if state is not None and not state.shards:
            state = None  # nothing is lost by beginning anew
        if state is not None and state.source != source:
            if not overwrite:
                raise ValueError(
                    f"{self._partial} holds an interrupted import of another source, "
                    f"{state.source!r} and not {source!r}: run that one again, or pass overwrite "
                    "(--overwrite) to throw it away"
                )
            state = None
        if state is None:
            state = Manifest(source)
        self._partial.mkdir(exist_ok=True)
        # First the state: what it does not name does not count, even if a kill leaves it there.
        write_bytes(self._partial / _STATE, state.to_bytes())
        kept = {_STATE, *(shard.name for shard in state.shards)}
        for path in self._partial.iterdir():
            if path.name not in kept:
                path.unlink()
        return state

    def _interrupted_state(self) -> Manifest | None:
        # The manifest stands in for a state that the last step but one of an import has removed.
        for path in (self._partial / _STATE, self._partial / MANIFEST):
            if path.exists():
                try:
                    state = replace(Manifest.read(path), index=None)
                    for shard in state.shards:
                        shard.check_size(self._partial)
                except (ValueError, FileNotFoundError) as error:
                    raise ValueError(
                        f"{error}. This import cannot go on: remove {self._partial} to begin anew"
                    ) from None
                return state
        return None

    def _write_shard(self) -> None:
        """Writes the pending images as a shard and makes it count."""
        path = self._partial / shard_name(len(self._state.shards))
        tensors = self._pending.tensors()
        entry = write_tensors(
            path, tensors, images=len(self._pending), regions=len(tensors["features"])
        )
        state = self._state.with_shard(entry, self._last_position)
        write_bytes(self._partial / _STATE, state.to_bytes())
        self._state = state
        self._known.extend(self._pending.keys, self._pending.offsets)
        self._pending = _PendingShard(self._shard_bytes)

    def _finish(self) -> None:
        """Index, manifest, and the folder's name. A kill after any line is made good by a rerun."""
        if len(self._pending):
            self._write_shard()
        if not self._state.images:
            shutil.rmtree(self._partial)
            raise ValueError(
                f"no image was added to {self.folder}: is there anything in {self._state.source!r}?"
            )
        entry = write_tensors(
            self._partial / INDEX,
            self._known.tensors(),
            images=self._state.images,
            regions=self._state.regions,
        )
        write_bytes(self._partial / MANIFEST, replace(self._state, index=entry).to_bytes())
        (self._partial / _STATE).unlink()
        flush_folder(self._partial)
        store, replaced = self.folder / STORE, self.folder / _REPLACED
        if store.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            store.rename(replaced)
        self._partial.rename(store)
        flush_folder(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def _release_lock(self) -> None:
        release_lock(self._lock, self.folder / _LOCK)


class _PendingShard:
    """The images of the shard that is being filled, in arrays of its final size."""

    def __init__(self, shard_bytes: int) -> None:
        self.keys: dict[bytes, None] = {}
        self.room = shard_bytes
        self._features: NDArray[np.float16] | None = None
        self._boxes: NDArray[np.float32] | None = None
        self._sizes: list[tuple[int, int]] = []
        self.offsets = [0]

    def __len__(self) -> int:
        return len(self._sizes)

    def add(
        self,
        key: bytes,
        features: NDArray[np.float16],
        boxes: NDArray[np.float32] | None,
        size: tuple[int, int],
    ) -> None:
        """Copies an image in."""
        if self._features is None:
            # As many rows as may ever fit: memory that is not written to costs nothing.
            width = features.shape[1]
            rows = max(self.room // features[0].nbytes, len(features))
            self._features = np.empty((rows, width), np.float16)
            self._boxes = None if boxes is None else np.empty((rows, 4), np.float32)
        begin = self.offsets[-1]
        end = begin + len(features)
        self._features[begin:end] = features
        if boxes is not None and self._boxes is not None:
            self._boxes[begin:end] = boxes
        self.room -= _image_bytes(key, features, boxes)
        self.offsets.append(end)
        self._sizes.append(size)
        self.keys[key] = None

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What the shard's file holds."""
        assert self._features is not None  # asked only once there is an image
        rows = self.offsets[-1]
        lengths = [len(key) for key in self.keys]
        tensors: dict[str, NDArray[Any]] = {
            "features": self._features[:rows],
            "sizes": np.array(self._sizes, np.int32),
            "offsets": np.array(self.offsets, np.int64),
            "ids": np.frombuffer(b"".join(self.keys), np.uint8),
            "id_offsets": np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        }
        if self._boxes is not None:
            tensors["boxes"] = self._boxes[:rows]
        return tensors


def _image_bytes(
    key: bytes, features: NDArray[np.float16], boxes: NDArray[np.float32] | None
) -> int:
    """What an image adds to a shard: its regions, its id, its size and two offsets."""
    return features.nbytes + (0 if boxes is None else boxes.nbytes) + len(key) + 24


class _KnownIds:
    """The ids in finished shards, by hash: 20 bytes an image, however long the ids."""

    def __init__(self, folder: Path, state: Manifest) -> None:
        self._folder = folder
        self._starts = [0]
        self._shards: dict[int, Shard] = {}
        self._hashes = np.empty(0, np.uint64)
        self._rows = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int32)
        for entry in state.shards:
            shard = Shard(folder / entry.name)
            self.extend([shard.key(image) for image in range(len(shard))], shard.offsets)

    def extend(self, keys: Collection[bytes], offsets: "Sequence[int] | memoryview[int]") -> None:
        """Takes in the ids of the next shard, and where its images begin."""
        hashes = np.fromiter(map(id_hash, keys), np.uint64, len(keys))
        rows = np.arange(self._starts[-1], self._starts[-1] + len(keys))
        hashes = np.concatenate((self._hashes, hashes))
        # Stable, so that the same images give the same index in one go or in several.
        order = hashes.argsort(kind="stable")
        self._hashes = hashes[order]
        self._rows = np.concatenate((self._rows, rows))[order]
        self._counts = np.concatenate((self._counts, np.diff(offsets).astype(np.int32)))
        self._starts.append(self._starts[-1] + len(keys))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What the index's file holds."""
        return {"hashes": self._hashes, "rows": self._rows, "counts": self._counts}

    def __contains__(self, key: bytes) -> bool:
        place = find_image(key, self._hashes.data, self._rows.data, self._starts, self._shard)
        return place is not None

    def _shard(self, number: int) -> Shard:
        if number not in self._shards:
            self._shards[number] = Shard(self._folder / shard_name(number))
        return self._shards[number]
