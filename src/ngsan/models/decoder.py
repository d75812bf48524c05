"""What a captioner's decoder is to the rest: whole captions at once, or one word after the other.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words, `D` model width, `V` vocabulary;
`W` captions an image that are written side by side.
"""

from abc import abstractmethod
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ngsan.nn.attend import AttentionMaps
from ngsan.nn.packing import Packing


class Ready(Protocol):
    """What steps need of the regions over and over."""

    def take(self, other: Any) -> None:
        """Takes over the values of another of the same shapes, in place."""


class Cache(Protocol):
    """What is remembered of the words so far, in buffers that stay where they are."""

    def clear(self) -> None:
        """Forgets all words."""

    def reorder(self, parents: Tensor) -> None:
        """Caption w of an image goes on from what caption `parents[w]` was, (B, W)."""


class Decoder(nn.Module):
    """What writes the words; each kind has a `Ready` and a `Cache` of its own."""

    embed: nn.Embedding
    """The vectors of the words."""

    output: nn.Linear | None
    """Scores the words; None where the word vectors do."""

    @abstractmethod
    def forward(
        self,
        words: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        *,
        packing: Packing | None = None,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Scores the next words; see `Writer.decode`."""

    @abstractmethod
    def make_ready(self, memory: Tensor, mask: Tensor | None = None) -> Ready:
        """What `step` needs of the regions and of the weights, which must not change meanwhile.

        Args:
            memory: (B, N, D) the encoded regions.
            mask: (B, N) boolean, True = a real region, or None.
        """

    @abstractmethod
    def make_cache(self, ready: Any, width: int, longest: int) -> Cache:
        """Buffers for `width` captions of at most `longest` words for every image.

        Args:
            ready: Of `make_ready`.
            width: W.
            longest: T.
        """

    @abstractmethod
    def step(self, words: Tensor, cache: Any, ready: Any) -> Tensor:
        """Scores the word after one more word of each caption.

        Args:
            words: (B, W) the next word of W captions an image.
            cache: Of `make_cache`; it takes in the word.
            ready: Of `make_ready`.

        Returns:
            (B, W, V)
        """

    def logits(self, x: Tensor) -> Tensor:
        """The scores of all words, (..., D) to (..., V)."""
        if self.output is None:
            return F.linear(x, self.embed.weight)
        logits: Tensor = self.output(x)
        return logits

    def exact_logits(self, x: Tensor) -> Tensor:
        """The logits, on a GPU not rounded to half precision, where many would be equal."""
        if not x.is_cuda or x.dtype not in (torch.float16, torch.bfloat16):
            return self.logits(x)
        weight = self.embed.weight if self.output is None else self.output.weight
        product = torch.mm(x.flatten(0, -2), weight.t(), out_dtype=torch.float32)
        if self.output is not None:
            product.add_(self.output.bias)
        return product.view(*x.shape[:-1], -1)


class Writer(nn.Module):
    """A model that writes: what it writes about is encoded, then decoded into words."""

    def __init__(self, encoder: nn.Module, decoder: Decoder) -> None:
        """Takes the two halves."""
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def decode(
        self,
        words: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        *,
        packing: Packing | None = None,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Scores each next word of captions, or of translations, whose words are given.

        Args:
            words: (B, T) or, for C captions an image, (B, C, T): word ids, the boundary id first.
            memory: (B, N, D) the regions, or the source's words, from `encode`.
            mask: (B, N) as given to `encode`.
            packing: Which of the words are real, where no others are wanted: work on the rest is
                saved.
            record: A list that the maps of each layer's attention to the memory, (B, H, C T, N),
                are appended to, or None.

        Returns:
            (B, T, V) or (B, C, T, V), or (M, V) of packed words: logits of the word that follows
            each.
        """
        logits: Tensor = self.decoder(words, memory, mask, packing=packing, record=record)
        return logits


def by_caption(words: Tensor, images: int) -> Tensor:
    """Words of one caption an image, (B, T), or of C, (B, C, T), as (B, C, T).

    Raises:
        ValueError: They are neither.
    """
    if words.ndim not in (2, 3) or words.shape[0] != images or not words.shape[-1]:
        raise ValueError(
            f"words must be (images, words) or (images, captions, words) of {images} images, at "
            f"least one word each, not {tuple(words.shape)}"
        )
    return words if words.ndim == 3 else words.unsqueeze(1)
