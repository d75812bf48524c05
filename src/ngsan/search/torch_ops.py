"""The array operations of a search, in torch; `ngsan.search.numpy_ops` describes them.

None of them waits for the device, and no shape depends on a value. So the step of a search can be
captured as a CUDA graph.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ngsan.cuda_graph import Captured

_PART = 64
"""Neighbours of which only the largest is looked at to find out where the best are."""

_TYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.long, float: torch.float32}


class TorchOps:
    """torch's, on one device."""

    steps_between_looks = 5

    where: Callable[..., Tensor] = staticmethod(torch.where)  # type: ignore[assignment]
    exp: Callable[..., Tensor] = staticmethod(torch.exp)
    logaddexp: Callable[..., Tensor] = staticmethod(torch.logaddexp)
    cat: Callable[..., Tensor] = staticmethod(torch.cat)
    stack: Callable[..., Tensor] = staticmethod(torch.stack)
    session: Callable[[], AbstractContextManager[Any]] = staticmethod(torch.inference_mode)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def arange(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self.device)

    def capture(self, work: Callable[[], None], warm_up: Callable[[], None]) -> Captured | None:
        return Captured(work, self.device, warm_up) if self.device.type == "cuda" else None

    def maybe(self, condition: Tensor) -> bool:
        return True  # to look would wait for the device

    def full(self, shape: Sequence[int], value: bool | int | float) -> Tensor:
        return torch.full(tuple(shape), value, dtype=_TYPES[type(value)], device=self.device)

    def array(self, values: Any, kind: type = int) -> Tensor:
        values = list(values) if isinstance(values, range) else values
        return torch.as_tensor(values, dtype=_TYPES[kind], device=self.device)

    def copy(self, array: Tensor) -> Tensor:
        with torch.inference_mode(mode=False):  # so that a loss can use it
            return array.clone()

    def floats(self, integers: Tensor) -> Tensor:
        return integers.to(torch.float32)

    def log_softmax(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1, dtype=torch.float32)

    def cumsum(self, values: Tensor) -> Tensor:
        return values.cumsum(-1)

    def just_below(self, bound: Tensor) -> Tensor:
        return torch.nextafter(bound, torch.zeros_like(bound))

    def largest(self, values: Tensor) -> Tensor:
        return values.amax(-1)

    def kth(self, values: Tensor, count: int) -> Tensor:
        return values.topk(count).values[..., -1:]

    def sort(self, values: Tensor) -> Tensor:
        return values.sort(dim=-1, descending=True).values

    def top(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """See `NumpyOps.top`. `torch.topk` promises nothing about equals.

        The best of few are sorted. Of many, the best lie in those `count` parts of neighbours whose
        largest numbers are the largest, of equal parts in the first ones.
        """
        size = values.shape[-1]
        if size < 4 * _PART * count:
            found, places = values.sort(dim=-1, descending=True, stable=True)
            return found[..., :count], places[..., :count]
        whole = size // _PART * _PART
        cut = values[..., :whole].reshape(*values.shape[:-1], whole // _PART, _PART)
        largest = cut.amax(-1)
        if whole < size:
            largest = torch.cat((largest, values[..., whole:].amax(-1, keepdim=True)), -1)
        _, parts = largest.sort(dim=-1, descending=True, stable=True)
        parts = parts[..., :count].sort(dim=-1).values  # so that places increase
        inside = torch.arange(_PART, device=values.device)
        places = (parts.unsqueeze(-1) * _PART + inside).flatten(-2)
        found = values.gather(-1, places.clamp(max=size - 1))
        if whole < size:
            found = found.masked_fill(places >= size, -math.inf)
        found, order = found.sort(dim=-1, descending=True, stable=True)
        places = places.gather(-1, order[..., :count]).clamp(max=size - 1)
        return found[..., :count], places

    def falses_first(self, flags: Tensor, count: int) -> Tensor:
        return flags.byte().sort(dim=-1, stable=True).indices[..., :count]

    def take(self, array: Tensor, places: Tensor) -> Tensor:
        return array.gather(-1, places)

    def rows(self, array: Tensor, rows: Tensor) -> Tensor:
        return array.gather(1, rows.unsqueeze(2).expand(-1, -1, array.shape[2]))

    def at(self, array: Tensor, position: Tensor) -> Tensor:
        return array.index_select(-1, position.reshape(1)).squeeze(-1)

    def put(self, array: Tensor, position: Tensor, values: Tensor) -> None:
        array.index_copy_(-1, position.reshape(1), values.unsqueeze(-1))

    def fill(self, array: Tensor, places: Tensor, value: float) -> None:
        array.index_fill_(-1, places, value)

    def fill_at(self, array: Tensor, places: Tensor, value: float) -> None:
        array.scatter_(-1, places, value)

    def add_at(self, array: Tensor, places: Tensor, values: Tensor) -> None:
        array.scatter_add_(-1, places, values.to(array.dtype))

    def blocks(self, values: Tensor, size: int) -> Tensor:
        padded = F.pad(values, (0, -values.shape[-1] % size))
        return padded.reshape(*values.shape[:-1], padded.shape[-1] // size, size)
