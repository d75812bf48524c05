"""Folders of tensors, one file an image: `.safetensors`, or `.pt` without Python objects."""

import pickle
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ngsan.data.importers.features_import import Item, Position, list_files, read_folder
from ngsan.data.importers.region_boxes import (
    Array,
    BadRegionsError,
    BoxRules,
    FoundRegions,
    GridAxes,
    find_regions,
    make_regions,
)
from ngsan.data.problems import Problems
from ngsan.data.store import Regions

SUFFIXES = (".pt", ".safetensors")

# All that PyTorch was seen to raise for files cut off or changed at any byte.
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
)


def tensors_total(folder: str | Path) -> int:
    """The number of files; `done` of a position counts towards it."""
    return len(list_files(folder, SUFFIXES))


def read_tensors(
    folder: str | Path,
    *,
    problems: Problems,
    start: Position | None = None,
    grid: GridAxes = "hwd",
    box_rules: BoxRules | None = None,
) -> Iterator[Item]:
    """Reads a folder of `.safetensors` or `.pt` files and the folders within it, sorted by name.

    Args:
        folder: The files; a file's name without its ending is the image's id. A `.pt` file holds
            a tensor or a dictionary of tensors.
        problems: Where bad files are reported.
        start: The position of the last image that is read already.
        grid: The axes of features that are a grid.
        box_rules: How the boxes are to be read.

    Yields:
        Position (`file`, `done`), image id and regions.
    """
    folder, rules = Path(folder), BoxRules() if box_rules is None else box_rules

    def load(name: str, image_id: str) -> Regions:
        path = folder / name
        found = _load_pt(path) if path.suffix == ".pt" else _load_safetensors(path)
        return make_regions(image_id, found, rules, grid=grid)

    names = list_files(folder, SUFFIXES)
    yield from read_folder(names, load, start=start, problems=problems)


def _load_safetensors(path: Path) -> FoundRegions:
    # Through PyTorch, because NumPy has no bfloat16.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return find_regions(file.keys(), lambda name: _array(name, file.get_tensor(name)))
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _load_pt(path: Path) -> FoundRegions:
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadRegionsError(
            "pickled data",
            f"{path} is damaged, or holds Python objects, which are never loaded because they may "
            "run any program; save a dictionary of tensors in their place",
        ) from error
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
    value = value.detach()
    array: Array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return array


def _damaged(path: Path, error: Exception) -> BadRegionsError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return BadRegionsError("unreadable file", f"{path} is cut off or damaged: {reason}")
