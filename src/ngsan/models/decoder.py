"""Decoders: whole captions at once for training, or one word at a time for a search.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words, `D` model width, `V` vocabulary;
`W` captions an image that are written side by side.
"""

import math
from abc import abstractmethod
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ngsan.nn.attend import AttentionMaps
from ngsan.nn.cache import Remembered, WordCache
from ngsan.nn.geometry import sinusoidal
from ngsan.nn.layers import DecoderLayer
from ngsan.nn.masks import Packing
from ngsan.nn.recurrent import WordReader


class Ready(Protocol):
    """Tensors that every step needs again."""

    def take(self, other: Any) -> None:
        """Copies the values of another of the same shapes, in place."""


class Cache(Protocol):
    """State of the words so far, in buffers that keep their addresses."""

    def clear(self) -> None:
        """Forgets all words."""

    def reorder(self, parents: Tensor) -> None:
        """Caption w of an image continues caption `parents[w]`, (B, W)."""


class Decoder(nn.Module):
    """Base of the decoders; each has its own `Ready` and `Cache`."""

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
        """Scores the next words; see `EncoderDecoder.decode`."""

    @abstractmethod
    def make_ready(self, memory: Tensor, mask: Tensor | None = None) -> Ready:
        """Computes what `step` needs from the regions and from the weights, which must not change.

        Args:
            memory: (B, N, D) the encoded regions.
            mask: (B, N) boolean, True = a real region, or None.
        """

    @abstractmethod
    def make_cache(self, ready: Any, width: int, max_length: int) -> Cache:
        """Buffers for `width` captions of at most `max_length` words for every image.

        Args:
            ready: Of `make_ready`.
            width: W.
            max_length: T.
        """

    @abstractmethod
    def step(self, words: Tensor, cache: Any, ready: Any) -> Tensor:
        """Scores the word after one more word of each caption.

        Args:
            words: (B, W) the next word of W captions an image.
            cache: Of `make_cache`; the word is added to it.
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
        """The logits; on a GPU in float32 even if the model is in half precision, to avoid ties."""
        if not x.is_cuda or x.dtype not in (torch.float16, torch.bfloat16):
            return self.logits(x)
        weight = self.embed.weight if self.output is None else self.output.weight
        product = torch.mm(x.flatten(0, -2), weight.t(), out_dtype=torch.float32)
        if self.output is not None:
            product.add_(self.output.bias)
        return product.view(*x.shape[:-1], -1)


class StepsReady(NamedTuple):
    """What every step of the decoder needs again; see `WordDecoder.make_ready`."""

    memory: list[Remembered]
    """The regions' keys and values in every layer."""

    joined: list[tuple[Tensor, Tensor]]
    """The self-attention's projections in every layer."""

    def take(self, other: "StepsReady") -> None:
        """Copies the values of another of the same shapes, in place."""
        for mine, its in zip(self.memory, other.memory, strict=True):
            mine.key.copy_(its.key)
            mine.value.copy_(its.value)
            if mine.view is not None and its.view is not None:
                mine.view.copy_(its.view)
        for mine_joined, its_joined in zip(self.joined, other.joined, strict=True):
            for buffer, values in zip(mine_joined, its_joined, strict=True):
                buffer.copy_(values)


class WordDecoder(Decoder):
    """Embedded words in order, decoder layers, and scores over the vocabulary.

    The order is that of sinusoidal positions, or of an LSTM that reads the words.
    """

    def __init__(
        self,
        layers: list[DecoderLayer],
        *,
        vocab_size: int = 9488,
        dim: int = 512,
        dropout: float = 0.1,
        final_norm: bool = False,
        shared_output: bool = False,
        reader: WordReader | None = None,
    ) -> None:
        """Builds embedding and output around the layers.

        Args:
            layers: The L layers.
            vocab_size: V.
            dim: D.
            dropout: Dropout of the embedded words.
            final_norm: Whether a layer norm follows the last layer, as pre-norm layers need.
            shared_output: Whether the output shares the matrix of word vectors.
            reader: Reads the embedded words in place of positions; None for positions.
        """
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.dropout = nn.Dropout(dropout)
        self.reader = reader
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.output = None if shared_output else nn.Linear(dim, vocab_size)

    def forward(
        self,
        words: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        *,
        packing: Packing | None = None,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Scores the next words; see `EncoderDecoder.decode`."""
        captions = by_caption(words, memory.shape[0])
        early = packing if packing is not None and packing.saves_much else None
        x = self._embed_real(captions, early)
        for layer in self.layers:
            x = layer(x, memory, mask=mask, record=record, packing=early)
        if packing is not None and early is None:
            x = packing.pack(x)
        logits = self.logits(self.norm(x))
        return logits if words.ndim == 3 or packing is not None else logits.squeeze(1)

    def step(self, words: Tensor, cache: WordCache, ready: StepsReady) -> Tensor:
        """See `Decoder.step`."""
        if self.reader is None:
            x = self._embed(words, cache.positions.index_select(0, cache.position.unsqueeze(0)))
        else:
            x, state = self.reader.step(self._embed(words), cache.reader.state)
            cache.reader.write(state)
        cache.begin_word()
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            x = layer.step(x, cache, index, ready.joined[index], ready.memory[index])
        cache.end_word()
        return self.exact_logits(self.norm(x))

    def make_ready(self, memory: Tensor, mask: Tensor | None = None) -> StepsReady:
        """See `Decoder.make_ready`."""
        layers = [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
        return StepsReady(
            memory=[layer.cross_attention.remember(memory, mask) for layer in layers],
            joined=[layer.self_attention.join_projections() for layer in layers],
        )

    def make_cache(self, ready: StepsReady, width: int, max_length: int) -> WordCache:
        """See `Decoder.make_cache`."""
        keys = ready.memory[0].key
        return WordCache(
            layers=len(ready.memory),
            images=keys.shape[0],
            width=width,
            heads=keys.shape[1],
            head_dim=keys.shape[3],
            positions=self.positions(max_length),
            dtype=keys.dtype,
            reader=() if self.reader is None else self._reader_state(keys.shape[0], width),
        )

    def _reader_state(self, images: int, width: int) -> tuple[Tensor, Tensor]:
        weight = self.embed.weight
        shape = (images, width, weight.shape[1])
        return weight.new_zeros(shape), weight.new_zeros(shape)

    def positions(self, count: int) -> Tensor:
        """(count, D) the embedded positions 0 to count - 1."""
        weight = self.embed.weight
        exact = torch.promote_types(weight.dtype, torch.float32)
        numbers = torch.arange(count, device=weight.device, dtype=exact)
        return sinusoidal(numbers, weight.shape[1]).to(weight.dtype)

    def embed_words(self, words: Tensor) -> Tensor:
        """The vectors of words and their positions, with dropout: (..., T) to (..., T, D)."""
        return self._embed(words, self.positions(words.shape[-1]))

    def _embed_real(self, words: Tensor, packing: Packing | None) -> Tensor:
        """(B, C, T) to (B, C, T, D), or packed to (M, D)."""
        if self.reader is not None:
            read: Tensor = self.reader(self._embed(words))
            return read if packing is None else packing.pack(read)
        if packing is None:
            return self.embed_words(words)
        chosen = words.flatten().index_select(0, packing.places)
        max_length = words.shape[-1]
        positions = self.positions(max_length).index_select(0, packing.places % max_length)
        return self._embed(chosen, positions)

    def _embed(self, words: Tensor, positions: Tensor | None = None) -> Tensor:
        # Scaled as in Vaswani et al. 2017, Section 3.4, so that positions do not drown words.
        x: Tensor = self.embed(words) * math.sqrt(self.embed.embedding_dim)
        embedded: Tensor = self.dropout(x if positions is None else x + positions.to(x.dtype))
        return embedded


class EncoderDecoder(nn.Module):
    """A model that encodes its input and decodes it into words."""

    def __init__(self, encoder: nn.Module, decoder: Decoder) -> None:
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
        """Scores each next word of given captions or translations.

        Args:
            words: (B, T) or, for C captions an image, (B, C, T): word ids, the boundary id first.
            memory: (B, N, D) the regions, or the source's words, from `encode`.
            mask: (B, N) as given to `encode`.
            packing: Which of the words are real, if only those are wanted; the others are skipped.
            record: A list that the maps of each layer's attention to the memory, (B, H, C T, N),
                are appended to, or None.

        Returns:
            (B, T, V) or (B, C, T, V), or (M, V) of packed words: logits of the word that follows
            each.
        """
        logits: Tensor = self.decoder(words, memory, mask, packing=packing, record=record)
        return logits


def by_caption(words: Tensor, images: int) -> Tensor:
    """Brings words of one caption an image, (B, T), or of C, (B, C, T), to (B, C, T).

    Raises:
        ValueError: They are neither.
    """
    if words.ndim not in (2, 3) or words.shape[0] != images or not words.shape[-1]:
        raise ValueError(
            f"words must be (images, words) or (images, captions, words) of {images} images, at "
            f"least one word each, not {tuple(words.shape)}"
        )
    return words if words.ndim == 3 else words.unsqueeze(1)
