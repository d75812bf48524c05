"""Writes a feature store, shard by shard, so that an interrupted import can be continued.

Shapes: `n` regions of an image, `d` feature width. Shards are written into `features.partial`,
whose `state.json` lists those that are complete; the folder is renamed to `features` last.
Whatever kills an import leaves a `features.partial` that the same import continues, and never half
a store.
"""

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ngsan.atomic_io import exchange_folder, flush_folder, release_lock, take_lock, write_text
from ngsan.data.ids import canonical_id
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
    write_tensors,
)
from ngsan.data.store import Regions, checked_regions

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

    Args:
        path: The dataset's folder; the store becomes its `features`.
        source: What is imported, such as name and size of the file. An interrupted import of the
            same source is continued.
        shard_bytes: Maximum size of a shard, unless one image alone is larger. At most one shard is
            held in memory.
        overwrite: Whether to replace an existing store once the new one is complete, and to discard
            an interrupted import of another source.

    Raises:
        ValueError: There is a store already, or an interrupted import of another source, or another
            import into this folder is under way.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        source: str,
        shard_bytes: int = 256 << 20,
        overwrite: bool = False,
    ) -> None:
        if shard_bytes < 1:
            raise ValueError(f"shard_bytes: {shard_bytes} must be at least 1")
        self.folder = Path(path)
        self._partial = self.folder / PARTIAL
        self._shard_bytes = shard_bytes
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = take_lock(self.folder / _LOCK)
        try:
            if (self.folder / STORE).exists():
                # Left by a kill right after the exchange of two stores.
                shutil.rmtree(self.folder / _REPLACED, ignore_errors=True)
                if not overwrite:
                    raise ValueError(
                        f"{self.folder / STORE} exists: choose another folder, or pass overwrite "
                        "(--overwrite) to replace it"
                    )
            self._state = self._begin_or_continue(source, overwrite)
            self._known = _KnownIds(self._partial, self._state)
        except BaseException:
            self._release_lock()
            raise
        self._pending = _PendingShard(shard_bytes)
        self._last_position: Any = self._state.position

    def __enter__(self) -> Self:
        """The writer."""
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
        """The position of the last image that is safe on disk, or None.

        It has been through JSON, so a tuple comes back as a list.
        """
        return self._state.position

    def __len__(self) -> int:
        """Images so far, those of an interrupted import included."""
        return self._state.images + len(self._pending)

    def __contains__(self, image_id: str | int) -> bool:
        """Whether an image was added, now or by the interrupted import."""
        key = canonical_id(image_id).encode()
        return key in self._pending.keys or key in self._known

    def add(self, image_id: str | int, regions: Regions, *, position: Any = None) -> None:
        """Adds an image.

        Args:
            image_id: A string or an integer.
            regions: Features of any float type and boxes, see `checked_regions`.
            position: The image's position in the source, a JSON value from which its reader can
                continue.

        Raises:
            ValueError: The image was added before, is not valid, or differs from the others in
                feature width or in having boxes. It is not added, and the next one may be.
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
        """Compares an image with the first one, which sets the store's feature width."""
        if not self._state.feature_dim:
            self._state = replace(self._state, feature_dim=width, has_boxes=has_boxes)
        if width != self._state.feature_dim:
            raise ValueError(
                f"its features are {width} wide, those of the images before are "
                f"{self._state.feature_dim} wide: a store holds features of one kind"
            )
        if has_boxes != self._state.has_boxes:
            raise ValueError(
                f"it has {'' if has_boxes else 'no '}boxes, unlike the images before: pass boxes "
                "for all images or for none"
            )

    def _begin_or_continue(self, source: str, overwrite: bool) -> Manifest:
        """The state of the interrupted import in `features.partial`, or of a new one."""
        state = self._interrupted_state()
        if state is not None and not state.shards:
            state = None  # nothing is lost
        if state is not None and state.source != source:
            if not overwrite:
                raise ValueError(
                    f"{self._partial} holds an interrupted import of another source, "
                    f"{state.source!r} and not {source!r}: run that one again, or pass overwrite "
                    "(--overwrite) to discard it"
                )
            state = None
        if state is None:
            state = Manifest(source)
        self._partial.mkdir(exist_ok=True)
        # First the state: files that it does not list do not count.
        write_text(self._partial / _STATE, state.to_text())
        kept = {_STATE, *(shard.name for shard in state.shards)}
        for path in self._partial.iterdir():
            if path.name not in kept:
                path.unlink()
        return state

    def _interrupted_state(self) -> Manifest | None:
        # A finished import removes the state before it renames the folder.
        for path in (self._partial / _STATE, self._partial / MANIFEST):
            if path.exists():
                try:
                    state = replace(Manifest.read(path), index=None)
                    for shard in state.shards:
                        shard.check(self._partial)
                except (ValueError, FileNotFoundError) as error:
                    raise ValueError(
                        f"{error}. This import cannot continue: remove {self._partial} to start "
                        "again"
                    ) from None
                return state
        return None

    def _write_shard(self) -> None:
        """Writes the pending images as a shard and lists it in the state."""
        path = self._partial / shard_name(len(self._state.shards))
        tensors = self._pending.tensors()
        entry = write_tensors(
            path, tensors, images=len(self._pending), regions=len(tensors["features"])
        )
        state = self._state.with_shard(entry, self._last_position)
        write_text(self._partial / _STATE, state.to_text())
        self._state = state
        self._known.extend(self._pending.keys, self._pending.offsets)
        self._pending = _PendingShard(self._shard_bytes)

    def _finish(self) -> None:
        """Writes index and manifest and renames the folder. A rerun completes it after any kill."""
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
        write_text(self._partial / MANIFEST, replace(self._state, index=entry).to_text())
        (self._partial / _STATE).unlink()
        flush_folder(self._partial)
        exchange_folder(self._partial, self.folder / STORE)

    def _release_lock(self) -> None:
        release_lock(self._lock, self.folder / _LOCK)


class _PendingShard:
    """The images of the next shard, in arrays of its final size."""

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
        if self._features is None:
            # As many rows as can fit: memory that is not written to costs nothing.
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
        """The tensors of the shard's file."""
        assert self._features is not None  # there is an image
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
    """Bytes of an image in a shard: its regions, its id, its size and two offsets."""
    return features.nbytes + (0 if boxes is None else boxes.nbytes) + len(key) + 24


class _KnownIds:
    """The ids in complete shards, by hash: 20 bytes per image."""

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
        """Adds the ids of the next shard, and where its images begin."""
        hashes = np.fromiter(map(id_hash, keys), np.uint64, len(keys))
        rows = np.arange(self._starts[-1], self._starts[-1] + len(keys))
        hashes = np.concatenate((self._hashes, hashes))
        # Stable, so that an interrupted import gives the same index.
        order = hashes.argsort(kind="stable")
        self._hashes = hashes[order]
        self._rows = np.concatenate((self._rows, rows))[order]
        self._counts = np.concatenate((self._counts, np.diff(offsets).astype(np.int32)))
        self._starts.append(self._starts[-1] + len(keys))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The tensors of the index's file."""
        return {"hashes": self._hashes, "rows": self._rows, "counts": self._counts}

    def __contains__(self, key: bytes) -> bool:
        place = find_image(key, self._hashes.data, self._rows.data, self._starts, self._shard)
        return place is not None

    def _shard(self, number: int) -> Shard:
        if number not in self._shards:
            self._shards[number] = Shard(self._folder / shard_name(number))
        return self._shards[number]
