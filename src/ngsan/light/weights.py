"""The weights of a packed model, and what the graphs take in their place.

`model.safetensors` is read here without torch: eight bytes that tell the length of a header, the
header in JSON, and the numbers. A graph of a packed model has no weights of its own; `Made` says of
each which tensor of the file it is, and what is done to it.

Shapes: `R` rows of a matrix, `K` numbers in a row, `P` blocks in a row.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

WEIGHTS = "model.safetensors"

SCALE = ".scale"
"""How the name of a rounded matrix's scales ends, after the matrix's own."""

_KINDS = {"F32": np.float32, "F16": np.float16, "I8": np.int8, "I64": np.int64}

Way = Literal["same", "floats", "blocks", "scales"]


@dataclass(frozen=True)
class Made:
    """How a weight of a graph is made from the file."""

    tensor: str
    """Name of the tensor in the file."""

    way: Way = "same"
    """As it is: "same"; in single precision, whole numbers times their scales: "floats"; as
    `MatMulNBits` takes them, (R, P, block) whole numbers with 128 added: "blocks"; and (R P) of
    these blocks: "scales"."""

    transposed: bool = False
    """Whether rows become columns, of "same" and "floats"."""

    block: int = 0
    """Of "blocks" and "scales": numbers in a block. The last one of a row is filled with zeros."""

    def __post_init__(self) -> None:
        """Checks what can be checked here."""
        if self.way not in get_args(Way):
            raise ValueError(f"way: {self.way!r} is not one of {', '.join(get_args(Way))}")
        if self.way in ("blocks", "scales") and self.block < 1:
            raise ValueError(f"block: {self.block} must be at least 1")

    def of(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Makes it.

        Raises:
            ValueError: A tensor is not there.
        """
        found = _get(tensors, self.tensor)
        if self.way == "blocks":
            return in_blocks(found, self.block)
        if self.way == "scales":
            blocks = -(-found.shape[1] // self.block)
            return np.repeat(_get(tensors, self.tensor + SCALE), blocks)
        if self.way == "floats":
            floats = found.astype(np.float32)
            if found.dtype == np.int8:
                scale = _get(tensors, self.tensor + SCALE)
                floats *= scale.reshape(-1, *[1] * (found.ndim - 1))
            found = floats
        return np.ascontiguousarray(found.T if self.transposed else found)


def _get(tensors: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in tensors:
        raise ValueError(f"{WEIGHTS} has no {name}")
    return tensors[name]


def in_blocks(matrix: NDArray[np.int8], block: int) -> NDArray[np.uint8]:
    """(R, K) of -127 to 127 as (R, P, block) of 1 to 255, of which 128 stands for zero."""
    raised = matrix.view(np.uint8) ^ np.uint8(128)  # the same as adding 128
    more = -raised.shape[1] % block
    if more:
        raised = np.pad(raised, ((0, 0), (0, more)), constant_values=128)
    return raised.reshape(len(raised), -1, block)


def read_weights(content: bytes) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file by name; they look into `content` and cannot be written.

    Raises:
        ValueError: It is no such file, or has numbers of a kind that packed models have not.
    """
    try:
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        return {
            name: _tensor(content, start, **about)
            for name, about in header.items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"{WEIGHTS}: damaged or no packed weights: {error}") from error


def _tensor(
    content: bytes, start: int, *, dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    first, last = data_offsets
    kind, count = np.dtype(_KINDS[dtype]), math.prod(shape)
    if first < 0 or last - first != count * kind.itemsize:
        raise ValueError(f"bytes {first} to {last} for a tensor of {shape} {dtype}")
    return np.frombuffer(content, kind, count, start + first).reshape(shape)
