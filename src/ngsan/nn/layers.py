"""Layers of encoders and decoders: sub-layers with residual connections and layer norm.

Shapes: `B` images, `N` regions, `C` captions per image, `T` words, `D` model width, `H` heads,
`K` head width; `W` captions per image that are generated in parallel.
"""

from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor, nn

from ngsan.nn.attend import AttentionMaps
from ngsan.nn.attention import MultiHeadAttention, check_decoder_norms
from ngsan.nn.cache import Remembered, WordCache
from ngsan.nn.masks import Packing, check_mask, zero_padding

NormPlace = Literal["post", "pre"]


class FeedForward(nn.Module):
    """Two dense layers with ReLU and dropout between them, applied to each element alone."""

    def __init__(self, dim: int = 512, hidden: int = 2048, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.widen = nn.Linear(dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.narrow = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        narrowed: Tensor = self.narrow(self.dropout(self.widen(x).relu()))
        return narrowed


class Residual(nn.Module):
    """A sub-layer's residual connection, dropout and layer norm.

    `post` is LayerNorm(x + f(x)), as in the original Transformer; `pre` is x + f(LayerNorm(x)).
    Dropout applies to f.
    """

    def __init__(self, dim: int, *, dropout: float, place: NormPlace) -> None:
        super().__init__()
        if place not in get_args(NormPlace):
            raise ValueError(f"unknown norm_place {place!r}; choose from {get_args(NormPlace)}")
        self.place = place
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(..., D) to (..., D)."""
        if self.place == "pre":
            result: Tensor = x + self.dropout(sublayer(self.norm(x)))
        else:
            result = self.norm(x + self.dropout(sublayer(x)))
        return result


class EncoderLayer(nn.Module):
    """Self-attention over the regions, then the feed-forward network."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        feedforward: FeedForward,
        dim: int = 512,
        *,
        dropout: float = 0.1,
        norm_place: NormPlace = "post",
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = Residual(dim, dropout=dropout, place=norm_place)
        self.feedforward = feedforward
        self.feedforward_residual = Residual(dim, dropout=dropout, place=norm_place)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        geometry: Tensor | None = None,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """(B, N, D) to (B, N, D); the keywords are those of `MultiHeadAttention.forward`."""
        x = self.attention_residual(
            x, lambda y: self.attention(y, mask=mask, geometry=geometry, record=record)
        )
        encoded: Tensor = self.feedforward_residual(x, self.feedforward)
        return encoded


class DecoderLayer(nn.Module):
    """Causal self-attention over the words, attention to the regions, feed-forward network."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feedforward: FeedForward,
        dim: int = 512,
        *,
        dropout: float = 0.1,
        norm_place: NormPlace = "post",
    ) -> None:
        super().__init__()
        if not self_attention.causal:
            raise ValueError("the decoder's self-attention must be causal")
        check_decoder_norms(cross_attention.query_norm)  # its queries are words, too
        self.self_attention = self_attention
        self.self_residual = Residual(dim, dropout=dropout, place=norm_place)
        self.cross_attention = cross_attention
        self.cross_residual = Residual(dim, dropout=dropout, place=norm_place)
        self.feedforward = feedforward
        self.feedforward_residual = Residual(dim, dropout=dropout, place=norm_place)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        mask: Tensor | None = None,
        record: list[AttentionMaps] | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Decodes the C captions of each image against the image's encoding.

        Args:
            x: (B, C, T, D) the words, or (M, D) if packed.
            memory: (B, N, D) the encoded regions.
            mask: (B, N) boolean, True = a real region, or None.
            record: A list to append the maps of the cross-attention to, with query axis (C T).
            packing: The packing of the words, if packed.

        Returns:
            (B, C, T, D), or (M, D)
        """
        shape = x.shape
        x = x if packing is not None else x.flatten(0, 1)  # (B C, T, D)
        x = self.self_residual(x, lambda y: self.self_attention(y, packing=packing))
        # All captions of an image are one row of queries, so the keys and values of its regions
        # are computed once.
        x = x if packing is not None else x.reshape(shape[0], shape[1] * shape[2], shape[-1])
        x = self.cross_residual(
            x,
            lambda y: self.cross_attention(y, memory, mask=mask, record=record, packing=packing),
        )
        decoded: Tensor = self.feedforward_residual(x, self.feedforward)
        return decoded.view(shape)

    def step(
        self,
        x: Tensor,
        cache: WordCache,
        layer: int,
        joined: tuple[Tensor, Tensor],
        memory: Remembered,
    ) -> Tensor:
        """Decodes one more word of each caption; equals `forward` at this word.

        Args:
            x: (B, W, D) the word at the cache's position.
            cache: The previous words.
            layer: Index of this layer in the cache.
            joined: From `self_attention.join_projections`.
            memory: The regions, from `cross_attention.remember`.

        Returns:
            (B, W, D)
        """
        x = self.self_residual(x, lambda y: self.self_attention.step(y, cache, layer, joined))
        x = self.cross_residual(x, lambda y: self.cross_attention.recall(y, memory))
        decoded: Tensor = self.feedforward_residual(x, self.feedforward)
        return decoded


class GuidedLayer(nn.Module):
    """Self-attention over the regions, attention to the question's words, feed-forward network.

    This is the SGA unit of MCAN (Yu et al. 2019). Unlike a decoder layer it is not causal.
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        guided_attention: MultiHeadAttention,
        feedforward: FeedForward,
        dim: int = 512,
        *,
        dropout: float = 0.1,
        norm_place: NormPlace = "post",
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.self_residual = Residual(dim, dropout=dropout, place=norm_place)
        self.guided_attention = guided_attention
        self.guided_residual = Residual(dim, dropout=dropout, place=norm_place)
        self.feedforward = feedforward
        self.feedforward_residual = Residual(dim, dropout=dropout, place=norm_place)

    def forward(
        self,
        x: Tensor,
        guide: Tensor,
        *,
        mask: Tensor | None = None,
        guide_mask: Tensor | None = None,
        geometry: Tensor | None = None,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """(B, N, D) to (B, N, D), guided by the question.

        Args:
            x: (B, N, D) the regions.
            guide: (B, T, D) the question's words.
            mask: (B, N) boolean, True = a real region, or None.
            guide_mask: (B, T) boolean, True = a real word, or None.
            geometry: (B, N, N, F) from `relative_geometry`, for the self-attention's score bias.
            record: A list to append the maps of the self-attention to, or None.
        """
        x = self.self_residual(
            x, lambda y: self.self_attention(y, mask=mask, geometry=geometry, record=record)
        )
        x = self.guided_residual(x, lambda y: self.guided_attention(y, guide, mask=guide_mask))
        guided: Tensor = self.feedforward_residual(x, self.feedforward)
        return guided


class AttentionReduction(nn.Module):
    """Reduces elements to one vector: their weighted mean, projected (MCAN).

    A small network scores each element; the weights are the softmax of the scores.
    """

    def __init__(
        self, dim: int = 512, *, hidden: int = 512, out: int = 1024, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )
        self.merge = nn.Linear(dim, out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The vectors (B, out) and the weights (B, N), which are zero at padding.

        Args:
            x: (B, N, D).
            mask: (B, N) boolean, True = real, or None.
        """
        check_mask(mask, x)
        x = zero_padding(x, mask)
        scores = self.score(x).squeeze(-1).float()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = scores.softmax(-1)
        mean = (weights.to(x.dtype).unsqueeze(1) @ x).squeeze(1)
        return self.merge(mean), weights
