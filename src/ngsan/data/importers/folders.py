"""Features in folders of one file per image or clip: NumPy files, tensors, and frames.

Nothing pickled is ever loaded.
"""

import os
import pickle
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from ngsan.data.importers.features import (
    BOX_NAMES,
    MAX_BYTES,
    Array,
    BoxRules,
    FoundRegions,
    GridAxes,
    Item,
    Position,
    find_regions,
    list_files,
    make_regions,
    read_folder,
    too_large,
)
from ngsan.data.problems import Problems
from ngsan.data.store import BadRegionsError, Regions, half_features

T = TypeVar("T")

NUMPY_SUFFIXES = (".npy", ".npz")
TENSOR_SUFFIXES = (".pt", ".safetensors")
FRAME_SUFFIXES = (".npy",)

_NPY = b"\x93NUMPY"
_ZIP = b"PK"
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may take gigabytes to unpack
_PICKLE = b"\x80"
_MAX_HEADER = 1 << 20

# What NumPy and PyTorch raise for files that were cut off or changed at any byte.
_UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def _seen() -> Problems:
    """For problems that are reported elsewhere, or were when an import began."""
    return Problems(skip=True)


def npz_total(folder: str | Path, *, boxes: str | Path | None = None) -> int:
    """The number of files; the unit of `done` in positions."""
    return len(list_files(folder, NUMPY_SUFFIXES, leave_out=boxes, problems=_seen()))


def tensors_total(folder: str | Path) -> int:
    """The number of files; the unit of `done` in positions."""
    return len(list_files(folder, TENSOR_SUFFIXES, problems=_seen()))


def frames_total(folder: str | Path) -> int:
    """The number of files; the unit of `done` in positions."""
    return len(list_files(folder, FRAME_SUFFIXES, problems=_seen()))


def read_npz(
    folder: str | Path,
    *,
    problems: Problems,
    start: Position | None = None,
    boxes: str | Path | None = None,
    grid: GridAxes = "hwd",
    box_rules: BoxRules | None = None,
) -> Iterator[Item]:
    """Reads a folder of `.npz` or `.npy` files and its sub-folders, sorted by name.

    Args:
        folder: The files; a file's name without its extension is the image's id.
        problems: Where bad files are reported.
        start: The position of the last image that was read already.
        boxes: A second folder whose files of the same names hold the boxes.
        grid: The axes of features that are a grid.
        box_rules: How the boxes are read.

    Yields:
        Position (`file`, `done`), image id and regions.
    """
    folder, rules = Path(folder), BoxRules() if box_rules is None else box_rules
    box_folder = None if boxes is None else Path(boxes)
    if box_folder is not None and not box_folder.is_dir():
        raise ValueError(f"{box_folder}: no such folder")

    def load(name: str, image_id: str) -> Regions:
        found = _read_arrays(folder / name, find_regions, alone="features")
        if box_folder is not None:
            found = replace(found, boxes=_boxes_of(box_folder / name))
        return make_regions(image_id, found, rules, grid=grid)

    seen = _seen() if start else problems
    names = list_files(folder, NUMPY_SUFFIXES, leave_out=boxes, problems=seen)
    yield from read_folder(names, load, start=start, problems=problems)


def read_tensors(
    folder: str | Path,
    *,
    problems: Problems,
    start: Position | None = None,
    grid: GridAxes = "hwd",
    box_rules: BoxRules | None = None,
) -> Iterator[Item]:
    """Reads a folder of `.safetensors` or `.pt` files and its sub-folders, sorted by name.

    A `.pt` file holds a tensor or a dictionary of tensors. The arguments are those of `read_npz`.
    """
    folder, rules = Path(folder), BoxRules() if box_rules is None else box_rules

    def load(name: str, image_id: str) -> Regions:
        path = folder / name
        found = _load_pt(path) if path.suffix == ".pt" else _load_safetensors(path)
        return make_regions(image_id, found, rules, grid=grid)

    names = list_files(folder, TENSOR_SUFFIXES, problems=_seen() if start else problems)
    yield from read_folder(names, load, start=start, problems=problems)


def read_frames(
    folder: str | Path,
    *,
    max_frames: int = 0,
    problems: Problems,
    start: Position | None = None,
) -> Iterator[Item]:
    """Reads a folder of one `.npy` file per clip, as VATEX has it, and its sub-folders.

    Args:
        folder: Files of (frames, D) or (1, frames, D). A file's name without its extension is the
            clip's id, unchanged.
        max_frames: Maximum number of frames; longer clips are sampled evenly. 0 for no limit.
        problems: Where bad files are reported.
        start: The position of the last clip that was read already.

    Yields:
        Position (`file`, `done`), clip id and frames, which have neither boxes nor size.
    """
    if max_frames < 0:
        raise ValueError(f"max_frames: {max_frames} must be at least 0")
    folder = Path(folder)

    def load(name: str, clip_id: str) -> Regions:
        features = _read_arrays(folder / name, find_regions, alone="features").features
        if features.ndim == 3 and features.shape[0] == 1:
            features = features[0]
        if features.ndim == 2 and 0 < max_frames < len(features):
            places = np.linspace(0, len(features) - 1, max_frames)
            features = features[places.round().astype(np.int64)]
        return Regions(half_features(features))

    names = list_files(folder, FRAME_SUFFIXES, problems=_seen() if start else problems)
    yield from read_folder(
        names, load, start=start, problems=problems, name_id=lambda name: Path(name).stem
    )


def _boxes_of(beside: Path) -> Array:
    """The boxes in the file of this name, with either extension."""
    for suffix in NUMPY_SUFFIXES:
        path = beside.with_suffix(suffix)
        if path.is_file():
            return _read_arrays(path, _find_boxes, alone="boxes")
    raise BadRegionsError("no boxes", f"there is no {beside.with_suffix('')}.npy or .npz")


def _find_boxes(names: Collection[str], get: Callable[[str], Array]) -> Array:
    for name in (*BOX_NAMES, "arr_0"):
        if name in names:
            return get(name)
    raise BadRegionsError(
        "no boxes",
        f"the file of boxes holds {', '.join(sorted(names)[:8]) or 'nothing'}, but none of "
        f"{', '.join(BOX_NAMES)}",
    )


def _read_arrays(
    path: Path, take: Callable[[Collection[str], Callable[[str], Array]], T], *, alone: str
) -> T:
    """Reads arrays from a NumPy file.

    Args:
        path: An `.npy` or `.npz` file.
        take: Makes the result of the arrays' names and a function that reads one.
        alone: The name for the one array of an `.npy` file.
    """
    try:
        with path.open("rb") as file:
            _check_size(path, file)
            head = file.read(len(_NPY))
            if head.startswith(_PICKLE):
                raise _pickled(path, "arrays")
            if not head.startswith((_NPY, _ZIP)):
                what = f"begins with {head!r}, unlike NumPy files" if head else "is empty"
                raise BadRegionsError("unreadable file", f"{path} {what}")
            file.seek(0)
            if head.startswith(_ZIP):
                _check_packed(path, file)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return take((alone,), lambda _: loaded)
            with loaded:
                return take(loaded.files, loaded.__getitem__)
    except BadRegionsError:
        raise
    except _UNREADABLE as error:
        if "Object arrays" in str(error):
            raise _pickled(path, "arrays") from error
        raise _damaged(path, error) from error


def _check_size(path: Path, file: IO[bytes]) -> None:
    """Rejects a file that is far larger than the regions of an image or clip."""
    size = os.fstat(file.fileno()).st_size
    if size > MAX_BYTES:
        raise too_large(f"{path} has {size:,} bytes")


def _check_packed(path: Path, file: IO[bytes]) -> None:
    """Rejects an archive that unpacks to far more than the regions of an image or clip take."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    file.seek(0)
    if any(entry.compress_type not in _PACKINGS for entry in entries):
        raise BadRegionsError(
            "unreadable file", f"{path} is packed in a way that NumPy and PyTorch never use"
        )
    size = sum(entry.file_size for entry in entries)
    if size > MAX_BYTES:
        raise too_large(f"{path} unpacks to {size:,} bytes")


def _load_safetensors(path: Path) -> FoundRegions:
    # Through PyTorch, because NumPy has no bfloat16.
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as opened:
            _check_size(path, opened)
            if (head := int.from_bytes(opened.read(8), "little")) > _MAX_HEADER:
                raise _damaged(path, ValueError(f"a header of {head:,} bytes"))
        with safe_open(path, framework="pt") as file:
            return find_regions(file.keys(), lambda name: _array(name, file.get_tensor(name)))
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _load_pt(path: Path) -> FoundRegions:
    import torch

    try:
        with path.open("rb") as file:
            _check_size(path, file)
            if file.read(len(_ZIP)) == _ZIP:
                file.seek(0)
                _check_packed(path, file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damage that is reported below
            content = torch.load(path, map_location="cpu", weights_only=True)
    except BadRegionsError:
        raise
    except pickle.UnpicklingError as error:
        raise _pickled(path, "a dictionary of tensors") from error
    except _UNREADABLE as error:
        raise _damaged(path, error) from error
    named = content if isinstance(content, dict) else {"features": content}
    names: Collection[str] = [name for name in named if isinstance(name, str)]
    return find_regions(names, lambda name: _array(name, named[name]))


def _array(name: str, value: Any) -> Array | int | float:
    """A tensor as an array; numbers stay as they are."""
    import torch

    if isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
        value = torch.tensor(value)
    if not isinstance(value, torch.Tensor):
        raise BadRegionsError("wrong type", f"{name} is a {type(value).__name__}, not a tensor")
    if value.layout != torch.strided:
        raise BadRegionsError("wrong type", f"{name} is a sparse tensor: save a dense one")
    held = value.untyped_storage().nbytes()
    if value.numel() * value.element_size() > max(held, 0):
        raise BadRegionsError(
            "wrong shape",
            f"{name} is {tuple(value.shape)}, an expanded view of {held:,} bytes: save a copy",
        )
    value = value.detach()
    value = value.float() if value.dtype == torch.bfloat16 else value
    try:
        array: Array = value.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise BadRegionsError("wrong type", f"{name} is {value.dtype}: {error}") from error
    return array


def _pickled(path: Path, instead: str) -> BadRegionsError:
    return BadRegionsError(
        "pickled data",
        f"{path} is damaged, or holds Python objects, which are never loaded because they may run "
        f"any program; save {instead} instead",
    )


def _damaged(path: Path, error: Exception) -> BadRegionsError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return BadRegionsError("unreadable file", f"{path} is cut off or damaged: {reason}")
