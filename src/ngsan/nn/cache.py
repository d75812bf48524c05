"""Key-value cache of a decoder.

W captions of an image are generated in parallel: the beams of a search, or samples. The keys and
values of their words are in one buffer per image, and the view of a caption selects the slots of
its own words. When a search drops one caption and continues another one twice, only the view
changes; keys and values never move. The cost: each caption attends to the slots of all W captions,
which is cheap compared with the other work of the layers for up to some dozens of captions.

Shapes: `B` images, `N` regions, `W` captions per image, `T` maximum words, `H` heads, `K` head
width; `S` slots: T W or N, rounded up to a multiple of 8, which is faster on GPUs.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_ALIGNED = 8


class Remembered(NamedTuple):
    """Keys and values of the regions, computed once per image."""

    key: Tensor
    """(B, H, S, K), divided by sqrt(K)."""
    value: Tensor
    """(B, H, S, K), zero at padding, so an image without regions gives zeros."""
    view: Tensor | None
    """(B, 1, 1, S) additive mask: 0 for regions, minus infinity for padding; None without padding.
    All 0 for an image without regions, so that weights stay finite."""


def remember(key: Tensor, value: Tensor, mask: Tensor | None) -> Remembered:
    """Pads keys and values, and builds the additive mask.

    Args:
        key: (B, H, N, K), divided by sqrt(K).
        value: (B, H, N, K).
        mask: (B, N) boolean, True = real, or None.
    """
    count = key.shape[2]
    more = -count % _ALIGNED
    if mask is None and not more:
        return Remembered(key.contiguous(), value.contiguous(), None)
    if mask is None:
        mask = torch.ones(key.shape[0], count, dtype=torch.bool, device=key.device)
    real = F.pad(mask, (0, more))
    key, value = (F.pad(part, (0, 0, 0, more)) for part in (key, value))
    value = value.masked_fill(~real[:, None, :, None], 0.0)
    seen = real | ~real.any(1, keepdim=True)
    view = torch.zeros_like(seen, dtype=key.dtype).masked_fill(~seen, -math.inf)
    return Remembered(key.contiguous(), value, view[:, None, None, :])


class StateCache:
    """The state of a recurrent part for every caption.

    Attributes:
        state: Its vectors, (B, W, D) each.
    """

    def __init__(self, state: tuple[Tensor, ...]) -> None:
        self.state = state

    def clear(self) -> None:
        """Forgets all words."""
        for buffer in self.state:
            buffer.zero_()

    def write(self, state: tuple[Tensor, ...]) -> None:
        """Stores the state after one more word."""
        for buffer, value in zip(self.state, state, strict=True):
            buffer.copy_(value)

    def reorder(self, parents: Tensor) -> None:
        """Caption w of each image continues caption `parents[w]`, (B, W)."""
        index = parents.unsqueeze(2)
        for buffer in self.state:
            buffer.copy_(buffer.gather(1, index.expand_as(buffer)))


class WordCache:
    """Keys and values of the generated words in every layer.

    Attributes:
        reader: The state of an LSTM that reads the words; empty where positions are added.
        position: () position of the next word; on the device, so that a step is the same work at
            every position.
        layers: (2, B, H, S, K) for each layer: the keys, divided by sqrt(K), and the values.
        view: (B, 1, W, S) additive mask: 0 for the slots of a caption, else minus infinity.
        positions: (T, D) embeddings of all positions.
    """

    def __init__(
        self,
        *,
        layers: int,
        images: int,
        width: int,
        heads: int,
        head_dim: int,
        positions: Tensor,
        dtype: torch.dtype | None = None,
        reader: tuple[Tensor, ...] = (),
    ) -> None:
        self.width, self.positions, self.reader = width, positions, StateCache(reader)
        max_length, device = len(positions), positions.device
        slots = max_length * width
        slots += -slots % _ALIGNED
        shape = (2, images, heads, slots, head_dim)
        # Zeros, because an attention weight of zero does not hide NaN in unused memory.
        self.layers = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.view = torch.full((images, 1, width, slots), -math.inf, device=device, dtype=dtype)
        self.position = torch.zeros((), device=device, dtype=torch.long)
        own = torch.full((width, width), -math.inf, device=device, dtype=dtype).fill_diagonal_(0.0)
        self._own = own.expand(images, width, width)  # a new word goes to its caption's own slot
        self._first_slots = torch.arange(width, device=device)
        self._slots = self._first_slots.clone()  # of the word at `position`

    def clear(self) -> None:
        """Removes all words; also clears NaN."""
        for buffer in self.layers:
            buffer.zero_()
        self.view.fill_(-math.inf)
        self.position.zero_()
        self._slots.copy_(self._first_slots)
        self.reader.clear()

    def begin_word(self) -> None:
        """Makes the slot of the word at `position` visible to its caption."""
        self.view.squeeze(1).index_copy_(2, self._slots, self._own)

    def write(self, layer: int, key_value: Tensor) -> None:
        """Stores the keys and values (B, W, 2 H K) of the words at `position`."""
        buffer = self.layers[layer]
        heads, head_dim = buffer.shape[2], buffer.shape[4]
        split = key_value.to(buffer.dtype).reshape(*key_value.shape[:2], 2, heads, head_dim)
        buffer.index_copy_(3, self._slots, split.permute(2, 0, 3, 1, 4))

    def words(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer, (B, H, S, K) each."""
        key, value = self.layers[layer].unbind(0)
        return key, value

    def end_word(self) -> None:
        """Moves to the next position."""
        self.position.add_(1)
        self._slots.add_(self.width)

    def reorder(self, parents: Tensor) -> None:
        """Makes caption w of each image continue the words of caption `parents[w]`.

        Args:
            parents: (B, W), from 0 to W - 1.
        """
        index = parents[:, None, :, None].expand_as(self.view)
        self.view.copy_(self.view.gather(2, index))
        self.reader.reorder(parents)
