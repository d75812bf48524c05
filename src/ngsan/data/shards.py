"""The files of a feature store: shards, their checksums and the manifest, written and mapped.

Shapes: `n` images of a shard, `R` regions of a shard, `d` feature width. A store is a folder with

    shard-00000.safetensors  features (R, d) float16; boxes (R, 4) float32, unless the elements have
                             no place; sizes (n, 2) int32, zeros where unknown; offsets (n + 1)
                             int64, where an image's regions begin; ids, their UTF-8 bytes one after
                             the other; id_offsets (n + 1) int64, where an id begins
    index.safetensors        hashes, uint64, sorted; rows, int64, the image's place in the store for
                             each hash; counts, int32, regions of each image in the store's order
    manifest.json            what the store is made of, with a checksum of every file and of itself
"""

import hashlib
import json
import math
import mmap
import os
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ngsan.durable import flush_folder

FORMAT = 1
STORE = "features"
PARTIAL = "features.partial"
MANIFEST = "manifest.json"
INDEX = "index.safetensors"
UNKNOWN_SIZE = (0, 0)

_DTYPES = {"F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8", "U64": "<u8", "U8": "u1"}
_CHUNK = 1 << 20
_TEMPORARY = ".tmp"


def shard_name(number: int) -> str:
    """The name of a shard's file."""
    return f"shard-{number:05d}.safetensors"


def id_hash(key: bytes) -> int:
    """The 64-bit number under which the index keeps an id given as UTF-8."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def checksum(path: Path) -> str:
    """SHA-256 of a file in hexadecimal; `sha256sum` prints the same."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass(frozen=True)
class FileEntry:
    """What the manifest says of a file."""

    name: str
    bytes: int
    checksum: str
    images: int
    regions: int

    def check_size(self, folder: Path) -> None:
        """Looks whether the file is there and has its size, which costs no reading.

        Raises:
            FileNotFoundError: It is not there.
            ValueError: It is too short or too long.
        """
        path = folder / self.name
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path} is missing: copy it again from where the store came from, or import the "
                "features again"
            ) from None
        if size != self.bytes:
            raise ValueError(
                f"{path} has {size} bytes in place of {self.bytes}: it was cut off or changed; "
                "copy it again from where the store came from, or import the features again"
            )


@dataclass(frozen=True)
class Manifest:
    """What a store is made of; also the state of an import under way, which has no index yet."""

    source: str
    """What was imported."""

    feature_dim: int = 0
    """d, or 0 before the first shard."""

    has_boxes: bool = True
    """Whether the elements have a place, as regions of an image do and frames of a video do not."""

    position: Any = None
    """Where in the source the last image of the last shard stands, as its reader says it."""

    shards: tuple[FileEntry, ...] = ()
    index: FileEntry | None = None
    format: int = FORMAT

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
        """BLAKE2b over the checksums of the files: the same for the same features."""
        fields = self._fields()
        told = {name: fields[name] for name in ("shards", "index", "has_boxes", "format")}
        return hashlib.blake2b(_dump(told), digest_size=16).hexdigest()

    def _fields(self) -> dict[str, Any]:
        return {**asdict(self), "images": self.images, "regions": self.regions}

    def to_bytes(self) -> bytes:
        """The text of `manifest.json`."""
        fields = {**self._fields(), "signature": self.signature}
        own = hashlib.blake2b(_dump(fields), digest_size=16).hexdigest()
        return _dump({**fields, "checksum": own})

    def with_shard(self, shard: FileEntry, position: Any) -> "Manifest":
        """The state after one more shard."""
        return replace(self, shards=(*self.shards, shard), position=position)

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Reads a manifest and checks it against the checksum in it.

        Raises:
            FileNotFoundError: It is not there.
            ValueError: It is damaged or of another format.
        """
        content = path.read_bytes()
        damaged = f"{path} is damaged: copy it again, or import the features again"
        try:
            fields = json.loads(content)
        except ValueError as error:
            raise ValueError(f"{damaged} ({error})") from None
        if not isinstance(fields, dict):
            raise ValueError(damaged)
        if fields.get("format") != FORMAT:
            raise ValueError(
                f"{path} is of format {fields.get('format')!r}; this version of ngsan reads format "
                f"{FORMAT}: import the features again, or use the version that wrote it"
            )
        try:
            for name in ("signature", "checksum", "images", "regions"):
                fields.pop(name)
            shards = tuple(FileEntry(**shard) for shard in fields.pop("shards"))
            index = fields.pop("index")
            manifest = cls(**fields, shards=shards, index=index and FileEntry(**index))
            whole = manifest.to_bytes() == content
        except (KeyError, TypeError) as error:
            raise ValueError(f"{damaged} ({error})") from None
        # Byte for byte, so that not even a changed blank goes unseen.
        if not whole:
            raise ValueError(f"{damaged} (its text does not match its checksum)")
        return manifest


def _dump(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()


def map_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Maps a safetensors file into memory.

    The header is read here rather than by the safetensors package, which gives NumPy copies of
    whole tensors: a shard of 256 MiB would be read for one image of 150 kB.

    Args:
        path: The file.

    Returns:
        Read-only views by name; nothing is read before they are.

    Raises:
        ValueError: The file is cut off or no safetensors file.
    """
    with path.open("rb") as file:
        try:
            # The map does without its file, where Python lets it: a big store has many shards.
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
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is cut off or not a safetensors file: {error}") from None


def _view(
    data: mmap.mmap, start: int, dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    kind = np.dtype(_DTYPES[dtype])
    begin, end = data_offsets
    count = math.prod(shape)
    if not 0 <= begin <= end or end - begin != count * kind.itemsize or start + end > len(data):
        raise ValueError(f"a tensor of shape {shape} cannot be at bytes {begin} to {end}")
    return np.frombuffer(data, kind, count, start + begin).reshape(shape)


class Shard:
    """A mapped shard."""

    def __init__(self, path: Path) -> None:
        """Maps the file.

        Args:
            path: The file.

        Raises:
            ValueError: It is cut off or holds other tensors than a shard does.
        """
        tensors = map_tensors(path)
        try:
            self.features: NDArray[np.float16] = tensors["features"]
            self.boxes: NDArray[np.float32] | None = tensors.get("boxes")
            # Single numbers come several times faster from a memoryview than from an array.
            self.sizes = tensors["sizes"].reshape(-1).data
            self.offsets = tensors["offsets"].data
            self.ids = tensors["ids"].data
            self.id_offsets = tensors["id_offsets"].data
        except KeyError as error:
            raise ValueError(f"{path} is no shard of a feature store: it has no {error}") from None

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
) -> tuple[Shard, int] | None:
    """Finds an image by its id.

    Args:
        key: The id as UTF-8.
        hashes: The hashes of all ids, sorted.
        rows: The image's place in the store for each hash.
        starts: Where each shard begins in the store, and where the last one ends.
        shard_of: Gives a shard by its number.

    Returns:
        The shard that holds the image and the image's place in it, or None.
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
        place += 1  # another id of the same hash
    return None


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a small file so that it is there wholly or not at all, whatever happens."""
    temporary = path.with_name(path.name + _TEMPORARY)
    with temporary.open("wb") as file:
        file.write(content)
        _flush(file)
    temporary.rename(path)
    flush_folder(path.parent)


def write_tensors(
    path: Path, tensors: dict[str, NDArray[Any]], *, images: int, regions: int
) -> FileEntry:
    """Writes a safetensors file so that it is there wholly or not at all.

    Returns:
        What the manifest is to say of it.

    Raises:
        OSError: It cannot be written, as on a full disk.
    """
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        save_file(tensors, temporary)
        with temporary.open("rb+") as file:
            _flush(file)
    except (SafetensorError, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise OSError(
            f"cannot write {path}: {error}; once it can be written, run the same import again, and "
            "it goes on where it stopped"
        ) from error
    entry = FileEntry(path.name, temporary.stat().st_size, checksum(temporary), images, regions)
    temporary.rename(path)
    flush_folder(path.parent)
    return entry


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
