"""The files of a feature store: shards, index and manifest, written and mapped.

Shapes: `n` images of a shard, `R` regions of a shard, `d` feature width. A store is a folder with

    shard-00000.safetensors  features (R, d) float16; boxes (R, 4) float32, unless the elements have
                             no place; sizes (n, 2) int32, zeros if unknown; offsets (n + 1) int64,
                             where an image's regions begin; ids, their UTF-8 bytes one after the
                             other; id_offsets (n + 1) int64, where an id begins
    index.safetensors        hashes, uint64, sorted; rows, int64, the image's place in the store for
                             each hash; counts, int32, regions of each image in the store's order
    manifest.json            the content of the store, with a checksum of every file; sealed
"""

import hashlib
import json
import math
import mmap
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ngsan.atomic_io import check_file, file_entry, read_sealed, replace_file, seal

FORMAT = 2
STORE = "features"
PARTIAL = "features.partial"
MANIFEST = "manifest.json"
INDEX = "index.safetensors"
UNKNOWN_SIZE = (0, 0)

_DTYPES = {"F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8", "U64": "<u8", "U8": "u1"}


_SHARD = {
    "features": (np.dtype("<f2"), 2),
    "boxes": (np.dtype("<f4"), 2),
    "sizes": (np.dtype("<i4"), 2),
    "offsets": (np.dtype("<i8"), 1),
    "ids": (np.dtype("u1"), 1),
    "id_offsets": (np.dtype("<i8"), 1),
}
"""Type and axes of a shard's tensors."""


def shard_name(number: int) -> str:
    """The file name of a shard."""
    return f"shard-{number:05d}.safetensors"


def id_hash(key: bytes) -> int:
    """The 64-bit hash of an id in the index."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class FileEntry:
    """A file in the manifest."""

    name: str
    bytes: int
    sha256: str
    images: int
    regions: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or Path(self.name).name != self.name:
            raise ValueError(f"{self.name!r} is not the name of a file in the folder")
        for value in (self.bytes, self.images, self.regions):
            if type(value) is not int or not 0 <= value < 2**63:
                raise ValueError(f"{value!r} is not a size")

    def check(self, folder: Path, *, content: bool = False) -> None:
        """Checks that the file exists and has its size; also its content, if asked."""
        try:
            check_file(folder / self.name, asdict(self), content=content)
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"{error}; copy it again, or import the features again") from None


@dataclass(frozen=True)
class Manifest:
    """The content of a store; also the state of an import under way, which has no index yet."""

    source: str
    """What was imported."""

    feature_dim: int = 0
    """d, or 0 before the first shard."""

    has_boxes: bool = True
    """Whether the elements have a place, as regions of an image do and frames of a video do not."""

    position: Any = None
    """Position in the source of the last image of the last shard, as its reader gives it."""

    shards: tuple[FileEntry, ...] = ()
    index: FileEntry | None = None
    format: int = FORMAT

    def __post_init__(self) -> None:
        for name, kind in (("source", str), ("feature_dim", int), ("has_boxes", bool)):
            if type(getattr(self, name)) is not kind:
                raise ValueError(f"{name}: {getattr(self, name)!r}")

    @property
    def images(self) -> int:
        """Images in all shards."""
        return sum(shard.images for shard in self.shards)

    @property
    def regions(self) -> int:
        """Regions in all shards."""
        return sum(shard.regions for shard in self.shards)

    @property
    def signature(self) -> str:
        """Hash over the checksums of the files: equal for equal features."""
        fields = asdict(self)
        known = {name: fields[name] for name in ("shards", "index", "has_boxes", "format")}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]

    def to_text(self) -> str:
        """The text of `manifest.json`."""
        return seal(asdict(self))

    def with_shard(self, shard: FileEntry, position: Any) -> "Manifest":
        """The state after one more shard."""
        return replace(self, shards=(*self.shards, shard), position=position)

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Reads and checks a manifest."""
        try:
            fields = read_sealed(path)
        except ValueError as error:
            raise ValueError(f"{error}; copy it again, or import the features again") from None
        if fields.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {fields.get('format')!r}; this version of ngsan reads format "
                f"{FORMAT}: import the features again, or use the version that wrote it"
            )
        try:
            shards = tuple(FileEntry(**shard) for shard in fields.pop("shards"))
            index = fields.pop("index")
            return cls(**fields, shards=shards, index=None if index is None else FileEntry(**index))
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {error}; import the features again") from None


def map_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Maps a safetensors file into memory; returns read-only views by name.

    Note: the safetensors package would read whole tensors: a shard of 256 MiB for one image.
    """
    with path.open("rb") as file:
        try:
            # Without a file descriptor where Python allows it: a big store has many shards.
            if sys.version_info >= (3, 13):
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, trackfd=False)
            else:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ValueError(f"{path} is empty: it was cut off") from None
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > len(data):
        raise ValueError(f"{path} has {len(data)} bytes, fewer than its header: it was cut off")
    try:
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        return {name: _view(data, start, **entry) for name, entry in header.items()}
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{path} is cut off or not a safetensors file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not a safetensors file: nested too deeply") from None


def _view(
    data: mmap.mmap, start: int, dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    kind = np.dtype(_DTYPES[dtype])
    begin, end = data_offsets
    count = math.prod(shape)
    if not 0 <= begin <= end or end - begin != count * kind.itemsize or start + end > len(data):
        raise ValueError(f"a tensor of shape {shape} cannot be at bytes {begin} to {end}")
    if (start + begin) % kind.itemsize:
        raise ValueError(f"a tensor of {dtype} cannot begin at byte {start + begin}")
    return np.frombuffer(data, kind, count, start + begin).reshape(shape)


class Shard:
    """A mapped shard; raises a `ValueError` if the file is not one."""

    def __init__(self, path: Path) -> None:
        tensors = map_tensors(path)
        for name, kind in _SHARD.items():
            if name in tensors and (tensors[name].dtype, tensors[name].ndim) != kind:
                raise ValueError(f"{path} is damaged: {name} is {tensors[name].dtype}")
        try:
            self.features: NDArray[np.float16] = tensors["features"]
            self.boxes: NDArray[np.float32] | None = tensors.get("boxes")
            # Single numbers come several times faster from a memoryview than from an array.
            self.sizes = tensors["sizes"].reshape(-1).data
            self.offsets = tensors["offsets"].data
            self.ids = tensors["ids"].data
            self.id_offsets = tensors["id_offsets"].data
        except KeyError as error:
            raise ValueError(
                f"{path} is not a shard of a feature store: it has no {error}"
            ) from None

    def __len__(self) -> int:
        """Images in the shard."""
        return len(self.offsets) - 1

    def key(self, image: int) -> bytes:
        """An image's id as UTF-8."""
        return bytes(self.ids[self.id_offsets[image] : self.id_offsets[image + 1]])


def find_image(
    key: bytes,
    hashes: "memoryview[int]",
    rows: "memoryview[int]",
    starts: list[int],
    shard_of: Callable[[int], Shard],
    check: Callable[[int], None] = lambda _: None,
) -> tuple[Shard, int] | None:
    """Finds an image by its id.

    Args:
        key: The id as UTF-8.
        hashes: The sorted hashes of all ids.
        rows: The image's place in the store for each hash.
        starts: Where each shard begins in the store, and where the last one ends.
        shard_of: Returns a shard by its number.
        check: Raises an error if a shard is damaged, by its number.

    Returns:
        The shard of the image and the image's place in it, or None.
    """
    number = id_hash(key)
    place = bisect_left(hashes, number)
    while place < len(hashes) and hashes[place] == number:
        row = rows[place]
        if not 0 <= row < starts[-1]:
            raise ValueError(f"the index of the features is damaged: it names image {row}")
        shard_number = bisect_right(starts, row) - 1
        shard = shard_of(shard_number)
        image = row - starts[shard_number]
        if shard.key(image) == key:
            return shard, image
        check(shard_number)  # if its id is not damaged, two ids have the same hash
        place += 1
    return None


def write_tensors(
    path: Path, tensors: dict[str, NDArray[Any]], *, images: int, regions: int
) -> FileEntry:
    """Writes a safetensors file atomically; returns its manifest entry.

    Raises:
        OSError: It cannot be written, such as on a full disk.
    """
    try:
        with replace_file(path) as partial:
            save_file(tensors, partial)
            entry = file_entry(partial)
    except (SafetensorError, OSError) as error:
        raise OSError(
            f"cannot write {path}: {error}; fix this and run the same import again to continue"
        ) from error
    return FileEntry(path.name, **entry, images=images, regions=regions)
