"""The captioner: an encoder of regions and a decoder of words.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words, `D` model width, `V` vocabulary;
`W` captions an image that are written side by side.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ngsan.models.decoder import Decoder, Writer, by_caption
from ngsan.nn.aoa import RefiningLayer
from ngsan.nn.attend import AttentionMaps
from ngsan.nn.cache import Remembered, WordCache
from ngsan.nn.geometry import AbsoluteGeometry, check_regions, relative_geometry
from ngsan.nn.layers import DecoderLayer, EncoderLayer
from ngsan.nn.masks import zero_padding
from ngsan.nn.packing import Packing
from ngsan.nn.positions import FramePositions, sinusoidal


class Encoder(nn.Module):
    """What a captioner's decoder attends to is made by one of these: of regions, or of pixels."""

    takes_regions: bool
    """Whether it is given regions, which may be padded."""

    needs_boxes: bool
    """Whether the regions' boxes must be given."""


class RegionEncoder(Encoder):
    """Dense layer and ReLU on the features, then layers of self-attention over the regions."""

    takes_regions = True

    def __init__(
        self,
        layers: Sequence[EncoderLayer | RefiningLayer],
        *,
        feature_dim: int = 2048,
        dim: int = 512,
        dropout: float = 0.1,
        absolute: AbsoluteGeometry | None = None,
        positions: FramePositions | None = None,
        signed_geometry: bool = False,
        plus_one: bool = False,
        final_norm: bool = False,
    ) -> None:
        """Takes the layers.

        Args:
            layers: The L layers, or none; those with a score bias are given the relative geometry.
            feature_dim: Width of a region's feature vector.
            dim: D.
            dropout: Dropout of the embedded features.
            absolute: Embedding of boxes that is added to the input, or None.
            positions: Embedding of the regions' places in their order that is added to the input,
                for the frames of a clip, or None for a set.
            signed_geometry: Whether relative geometry is given in its signed form.
            plus_one: Whether it is given with 1 added to widths and heights.
            final_norm: Whether a layer norm follows the last layer, as pre-norm layers need.
        """
        super().__init__()
        self.feature_dim = feature_dim
        self.embed = nn.Linear(feature_dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.absolute, self.positions = absolute, positions
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.relative = any(layer.attention.score_bias is not None for layer in layers)
        self.needs_boxes = self.relative or absolute is not None
        self.signed_geometry, self.plus_one = signed_geometry, plus_one

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Encodes; see `Captioner.encode`."""
        self._check(features, boxes, mask)
        x = self.embed(zero_padding(features, mask)).relu()  # (B, N, D)
        geometry = None
        if boxes is not None and self.absolute is not None:
            x = x + self.absolute(boxes, mask).to(x.dtype)
        if self.positions is not None:
            x = x + self.positions(x, mask)
        if boxes is not None and self.relative:
            geometry = relative_geometry(
                boxes, mask, signed=self.signed_geometry, plus_one=self.plus_one
            )
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, mask=mask, geometry=geometry, record=record)
        encoded: Tensor = self.norm(x)
        return encoded

    def _check(self, features: Tensor, boxes: Tensor | None, mask: Tensor | None) -> None:
        if features.ndim != 3 or features.shape[-1] != self.feature_dim:
            raise ValueError(
                f"features must be (images, regions, {self.feature_dim}), not "
                f"{tuple(features.shape)}"
            )
        check_regions(features, boxes, mask, needs_boxes=self.needs_boxes)


class StepsReady(NamedTuple):
    """What the decoder's steps need over and over; see `WordDecoder.make_ready`."""

    memory: list[Remembered]
    """The regions' keys and values in every layer."""

    joined: list[tuple[Tensor, Tensor]]
    """The self-attention's projections in every layer."""

    def take(self, other: "StepsReady") -> None:
        """Takes over the values of another of the same shapes, in place."""
        for mine, its in zip(self.memory, other.memory, strict=True):
            mine.key.copy_(its.key)
            mine.value.copy_(its.value)
            if mine.view is not None and its.view is not None:
                mine.view.copy_(its.view)
        for mine_joined, its_joined in zip(self.joined, other.joined, strict=True):
            for buffer, values in zip(mine_joined, its_joined, strict=True):
                buffer.copy_(values)


class WordDecoder(Decoder):
    """Embedded words with sinusoidal positions, decoder layers, and scores over the vocabulary."""

    def __init__(
        self,
        layers: list[DecoderLayer],
        *,
        vocab_size: int = 9488,
        dim: int = 512,
        dropout: float = 0.1,
        final_norm: bool = False,
        shared_output: bool = False,
    ) -> None:
        """Takes the layers.

        Args:
            layers: The L layers.
            vocab_size: V.
            dim: D.
            dropout: Dropout of the embedded words.
            final_norm: Whether a layer norm follows the last layer, as pre-norm layers need.
            shared_output: Whether words are scored by their product with the word vectors
                themselves, rather than by a dense layer of its own.
        """
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.dropout = nn.Dropout(dropout)
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
        """Scores the next words; see `Writer.decode`."""
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
        x = self._embed(words, cache.positions.index_select(0, cache.position.unsqueeze(0)))
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

    def make_cache(self, ready: StepsReady, width: int, longest: int) -> WordCache:
        """See `Decoder.make_cache`."""
        keys = ready.memory[0].key
        return WordCache(
            layers=len(ready.memory),
            images=keys.shape[0],
            width=width,
            heads=keys.shape[1],
            head_dim=keys.shape[3],
            positions=self.positions(longest),
            dtype=keys.dtype,
        )

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
        if packing is None:
            return self.embed_words(words)
        chosen = words.flatten().index_select(0, packing.places)
        longest = words.shape[-1]
        positions = self.positions(longest).index_select(0, packing.places % longest)
        return self._embed(chosen, positions)

    def _embed(self, words: Tensor, positions: Tensor) -> Tensor:
        # Scaled as in Vaswani et al. 2017, Section 3.4, so that positions do not drown words.
        x: Tensor = self.embed(words) * math.sqrt(self.embed.embedding_dim)
        embedded: Tensor = self.dropout(x + positions.to(x.dtype))
        return embedded


class Captioner(Writer):
    """SAN and its normalised and geometry-aware forms (Section 3.4)."""

    encoder: Encoder

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        """Takes the two halves; `build_captioner` makes them."""
        super().__init__(encoder, decoder)

    def encode(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Encodes the regions of images.

        Args:
            features: (B, N, feature_dim).
            boxes: (B, N, 4) `cxcywh`; may be None for a model without geometry. Absolute
                geometry needs them relative to the image, relative geometry takes any unit.
            mask: (B, N) boolean, True = a real region, or None when all are. Padding may hold
                anything and changes nothing.
            record: A list that each layer's attention maps are appended to, or None.

        Returns:
            (B, N, D)
        """
        memory: Tensor = self.encoder(features, boxes, mask, record=record)
        return memory

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None,
        mask: Tensor | None,
        words: Tensor,
        *,
        packing: Packing | None = None,
    ) -> Tensor:
        """Encodes regions and scores each next word; arguments as in `encode` and `decode`.

        Returns:
            (B, T, V), or (B, C, T, V) for words (B, C, T), or (M, V) for M packed words.
        """
        return self.decode(words, self.encode(features, boxes, mask), mask, packing=packing)
