"""What a decoder remembers between words, so that no word is computed twice.

Several captions of an image are written side by side: the beams of a search, or samples. Their
words' keys and values lie in one buffer for the image, and a caption sees those slots that hold
words of its own. When a search drops one caption and goes on with another twice, only this view
changes hands; keys and values never move. The price: attention weighs the words of all W captions
for each of them, which is little beside the layers' other work as long as W stays some dozens.

Shapes: `B` images, `N` regions, `W` captions an image, `T` most words, `H` heads, `K` head width;
`S` slots, T W or N rounded up to a multiple of 8, which GPUs multiply faster.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_ALIGNED = 8


class Remembered(NamedTuple):
    """What a layer attends to again and again: the regions' keys and values."""

    key: Tensor
    """(B, H, S, K), divided by sqrt(K)."""

    value: Tensor
    """(B, H, S, K), zero where there is no region: an image without any gives zeros."""

    view: Tensor | None
    """(B, 1, 1, S), 0 for a region and minus infinity for padding; None when all are regions. It
    is 0 throughout for an image without regions, so that weights stay finite."""


def remember(key: Tensor, value: Tensor, mask: Tensor | None) -> Remembered:
    """Lays out keys and values to be attended to.

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


class WordCache:
    """Keys and values of the words written so far, in every layer.

    Attributes:
        position: () the position that the next word is written at; on the device, so that a step
            is the same work at every position.
        layers: For each layer (2, B, H, S, K): the keys, divided by sqrt(K), and the values.
        view: (B, 1, W, S), 0 where a caption sees a slot and minus infinity where not.
        positions: (T, D) the vectors of all positions.
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
    ) -> None:
        """Allocates the buffers, where the positions are; the numbers are those of the shapes."""
        self.width, self.positions = width, positions
        longest, device = len(positions), positions.device
        slots = longest * width
        slots += -slots % _ALIGNED
        shape = (2, images, heads, slots, head_dim)
        # Zeros, because a weight of zero does not silence a slot that holds no number.
        self.layers = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.view = torch.full((images, 1, width, slots), -math.inf, device=device, dtype=dtype)
        self.position = torch.zeros((), device=device, dtype=torch.long)
        own = torch.full((width, width), -math.inf, device=device, dtype=dtype).fill_diagonal_(0.0)
        self._own = own.expand(images, width, width)  # a new word stands in its caption's own slot
        self._first_slots = torch.arange(width, device=device)
        self._slots = self._first_slots.clone()  # of the word at `position`

    def clear(self) -> None:
        """Forgets all words, also such as were no numbers."""
        for buffer in self.layers:
            buffer.zero_()
        self.view.fill_(-math.inf)
        self.position.zero_()
        self._slots.copy_(self._first_slots)

    def begin_word(self) -> None:
        """Lets every caption see the slot of the word at `position`, which is about to come."""
        self.view.squeeze(1).index_copy_(2, self._slots, self._own)

    def write(self, layer: int, key_value: Tensor) -> None:
        """Takes the keys and values, (B, W, 2 H K), of the captions' word at `position`."""
        buffer = self.layers[layer]
        heads, head_dim = buffer.shape[2], buffer.shape[4]
        split = key_value.to(buffer.dtype).reshape(*key_value.shape[:2], 2, heads, head_dim)
        buffer.index_copy_(3, self._slots, split.permute(2, 0, 3, 1, 4))

    def words(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer, (B, H, S, K) each."""
        key, value = self.layers[layer].unbind(0)
        return key, value

    def end_word(self) -> None:
        """Moves on to the next position."""
        self.position.add_(1)
        self._slots.add_(self.width)

    def reorder(self, parents: Tensor) -> None:
        """Lets caption w of each image go on from what caption `parents[w]` has written.

        Args:
            parents: (B, W), from 0 to W - 1.
        """
        index = parents[:, None, :, None].expand_as(self.view)
        self.view.copy_(self.view.gather(2, index))
