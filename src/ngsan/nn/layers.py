"""The encoder's and the decoder's layers: sub-layers with residuals and layer norm.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words, `D` model width, `H` heads,
`K` head width; `W` captions an image that are written side by side.
"""

from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor, nn

from ngsan.nn.attend import AttentionMaps
from ngsan.nn.attention import MultiHeadAttention, refuse_in_decoder
from ngsan.nn.cache import Remembered, WordCache
from ngsan.nn.feedforward import FeedForward
from ngsan.nn.packing import Packing

NormPlace = Literal["post", "pre"]


class Residual(nn.Module):
    """A sub-layer's residual connection, dropout and layer norm.

    `post` is LayerNorm(x + f(x)), the original Transformer's; `pre` is x + f(LayerNorm(x)).
    """

    def __init__(self, dim: int, *, dropout: float, place: NormPlace) -> None:
        """Makes the connection.

        Args:
            dim: D.
            dropout: Dropout of the sub-layer's result.
            place: "post" or "pre".
        """
        super().__init__()
        if place not in get_args(NormPlace):
            raise ValueError(f"unknown place of layer norm {place!r}: one of {get_args(NormPlace)}")
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
        """Takes the parts; see `Residual` for the rest."""
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
        """Takes the parts; see `Residual` for the rest."""
        super().__init__()
        if not self_attention.causal:
            raise ValueError("the decoder's self-attention must be causal")
        refuse_in_decoder(cross_attention.query_norm)  # its queries are words, too
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
        """Decodes the C captions of each image against its one encoding.

        Args:
            x: (B, C, T, D) the captions' words, or (M, D) if they are packed.
            memory: (B, N, D) the encoded regions.
            mask: (B, N) boolean, True = a real region, or None.
            record: A list that the maps of the attention to the regions are appended to; their
                query axis is (C T).
            packing: Which words are real, if they are packed.

        Returns:
            (B, C, T, D), or (M, D)
        """
        shape = x.shape
        x = x if packing is not None else x.flatten(0, 1)  # (B C, T, D)
        x = self.self_residual(x, lambda y: self.self_attention(y, packing=packing))
        # The captions of an image stand side by side as queries, so the keys and values of its
        # regions are computed once.
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
        """Decodes one more word of each caption; the result is that of `forward` at this word.

        Args:
            x: (B, W, D) the word at the cache's position.
            cache: The words before.
            layer: Which of the cache's layers this is.
            joined: Of `self_attention.join_projections`.
            memory: The regions, of `cross_attention.remember`.

        Returns:
            (B, W, D)
        """
        x = self.self_residual(x, lambda y: self.self_attention.step(y, cache, layer, joined))
        x = self.cross_residual(x, lambda y: self.cross_attention.recall(y, memory))
        decoded: Tensor = self.feedforward_residual(x, self.feedforward)
        return decoded
