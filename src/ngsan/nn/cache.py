"""What a decoder remembers between words, so that no word is computed twice.

Several captions of an image are written side by side: the beams of a search, or samples. Their
words' keys and values lie in one buffer for the image, and a caption sees those slots that hold
words of its own. When a search drops one caption and goes on with another twice, only this view
changes hands; keys and values never move. The price: attention weighs the words of all W captions
for each of them, which is little beside the layers' other work as long as W stays some dozens.

Shapes: `B` images, `W` captions an image, `T` most words, `H` heads, `K` head width.
"""

import math

import torch
from torch import Tensor


class WordCache:
    """Keys and values of the words written so far, in every layer.

    Attributes:
        position: () the position that the next word is written at; on the device, so that a step
            is the same work at every position.
        keys: For each layer (B, H, T W, K).
        values: The same.
        view: (B, 1, W, T W), 0 where a caption sees a slot and minus infinity where not.
    """

    def __init__(
        self,
        *,
        layers: int,
        images: int,
        width: int,
        longest: int,
        heads: int,
        head_dim: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Allocates the buffers; the arguments are the numbers of the shapes above."""
        self.width, self.longest = width, longest
        shape = (images, heads, longest * width, head_dim)
        # Zeros, because a weight of zero does not silence a slot that holds no number.
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.view = torch.full(
            (images, 1, width, longest * width), -math.inf, device=device, dtype=dtype
        )
        self.position = torch.zeros((), device=device, dtype=torch.long)
        own = torch.full((width, width), -math.inf, device=device, dtype=dtype).fill_diagonal_(0.0)
        self._own = own.expand(images, width, width)  # a new word stands in its caption's own slot
        self._slots = torch.arange(width, device=device)

    def clear(self) -> None:
        """Forgets all words; what the slots hold is out of sight."""
        self.view.fill_(-math.inf)
        self.position.zero_()

    def begin_word(self) -> None:
        """Lets every caption see the slot of the word at `position`, which is about to come."""
        self.view.squeeze(1).index_copy_(2, self.position * self.width + self._slots, self._own)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Takes the keys and values, (B, H, W, K) each, of the captions' word at `position`."""
        slots = self.position * self.width + self._slots
        self.keys[layer].index_copy_(2, slots, key.to(self.view.dtype))
        self.values[layer].index_copy_(2, slots, value.to(self.view.dtype))

    def end_word(self) -> None:
        """Moves on to the next position."""
        self.position.add_(1)

    def reorder(self, parents: Tensor) -> None:
        """Lets caption w of each image go on from what caption `parents[w]` has written.

        Args:
            parents: (B, W), from 0 to W - 1.
        """
        index = parents[:, None, :, None].expand_as(self.view)
        self.view.copy_(self.view.gather(2, index))
