"""Multi-head attention: projections around `Attend`, with an injected norm and bias.

NSA (Eq. 6-7) is this attention with `query_norm=InstanceNorm()`, GSA (Eq. 8-13) with
`score_bias=GeometryBias("query")`, and both together are the NG-SAN layer's.

Shapes: `B` images, `T` queries, `S` keys, `N` regions, `W` captions per image, `D` model width,
`H` heads, `K` head width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ngsan.nn.attend import Attend, AttentionMaps, Backend, recall
from ngsan.nn.cache import Remembered, WordCache, remember
from ngsan.nn.geometry import GeometryBias
from ngsan.nn.masks import Packing, check_mask, zero_padding
from ngsan.nn.normalize import Norm


def check_decoder_norms(*norms: Norm | None) -> None:
    """Raises a `ValueError` for norms whose statistics are over the words of a caption."""
    if any(norm is not None and norm.needs_all_elements for norm in norms):
        raise ValueError(
            "a norm over the elements cannot be used in an autoregressive decoder, because its "
            "statistics include future words; use it in the encoder, or use layer norm"
        )


class MultiHeadAttention(nn.Module):
    """Attention with H heads, from elements to themselves or to a memory."""

    def __init__(
        self,
        dim: int = 512,
        heads: int = 8,
        *,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        score_bias: GeometryBias | None = None,
        causal: bool = False,
        project: bool = True,
        dropout: float = 0.0,
        backend: Backend = "fused",
    ) -> None:
        """Creates the projections.

        Args:
            dim: D.
            heads: H, a divisor of D.
            query_norm: Applied to the projected queries (NSA).
            key_norm: Applied to the projected keys (an ablation, Table 3).
            score_bias: Geometric bias of the scores (GSA).
            causal: Whether element t sees elements 0 to t only, as in a decoder.
            project: Whether a dense layer joins the heads.
            dropout: Dropout of the attention weights.
            backend: See `Attend`.
        """
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"the model width {dim} is not divisible by {heads} heads")
        if score_bias is not None and (score_bias.dim, score_bias.heads) != (dim, heads):
            raise ValueError(
                f"the score bias has width {score_bias.dim} and {score_bias.heads} heads, the "
                f"attention {dim} and {heads}"
            )
        if causal:
            check_decoder_norms(query_norm, key_norm)
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim) if project else nn.Identity()
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.score_bias = score_bias
        self.attend = Attend(backend=backend, dropout=dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        geometry: Tensor | None = None,
        record: list[AttentionMaps] | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Attends from `x` to the memory, or to itself.

        Args:
            x: (B, T, D) source of the queries, or (M, D) if packed.
            memory: (B, S, D) source of keys and values; None for self-attention.
            mask: (B, S) boolean, True = a real key, or None.
            geometry: (B, N, N, F) from `relative_geometry`, for the score bias.
            record: A list to append the attention maps to, or None.
            packing: The packing of the queries, if packed.

        Returns:
            (B, T, D), or (M, D)
        """
        if packing is not None:
            return self._from_packed(x, packing, memory, mask, record)
        source = x if memory is None else memory
        check_mask(mask, source)
        # An attention weight of zero does not hide NaN.
        source = zero_padding(source, mask)
        x = source if memory is None else x
        query = self._query(x, mask if memory is None else None)
        key, value = self._key_value(source, mask)
        bias = self._bias(x, geometry)
        values = self.attend(query, key, value, bias=bias, mask=mask, causal=self.causal)
        if record is not None:
            record.append(self.attend.maps(query, key, bias=bias, mask=mask, causal=self.causal))
        return self._join(values)

    def remember(self, memory: Tensor, mask: Tensor | None = None) -> Remembered:
        """The keys and values of a memory, computed once for many calls of `recall`.

        Args:
            memory: (B, S, D).
            mask: (B, S) boolean, True = a real key, or None.
        """
        check_mask(mask, memory)
        key, value = self._key_value(zero_padding(memory, mask), mask)
        return remember(key / math.sqrt(key.shape[-1]), value, mask)

    def recall(self, x: Tensor, memory: Remembered) -> Tensor:
        """Attends from `x` (B, T, D) to a remembered memory; (B, T, D)."""
        return self._join(recall(self._query(x, None), *memory))

    def join_projections(self) -> tuple[Tensor, Tensor]:
        """The three projections as one, (3 D, D) and (3 D), for `step`; includes the key scale."""
        scale = math.sqrt(self.heads / self.key.out_features)
        parts = (self.query, self.key, self.value)
        scales = (1.0, scale, 1.0)
        weight = [part.weight * factor for part, factor in zip(parts, scales, strict=True)]
        bias = [part.bias * factor for part, factor in zip(parts, scales, strict=True)]
        return torch.cat(weight), torch.cat(bias)

    def step(
        self, x: Tensor, cache: WordCache, layer: int, joined: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Attends from one new word of each caption to itself and the previous words.

        Args:
            x: (B, W, D) the new words, at the cache's position.
            cache: The previous words; the new ones are added.
            layer: Index of this layer in the cache.
            joined: From `join_projections`.

        Returns:
            (B, W, D)
        """
        if self.key_norm is not None:
            raise ValueError("attention with a key norm cannot decode word by word")
        projected = F.linear(x, *joined)
        query, key_value = projected[..., : x.shape[-1]], projected[..., x.shape[-1] :]
        if self.query_norm is not None:
            query = self.query_norm(query, None)
        cache.write(layer, key_value)
        return self._join(recall(self._split(query), *cache.words(layer), cache.view))

    def _from_packed(
        self,
        x: Tensor,
        packing: Packing,
        memory: Tensor | None,
        mask: Tensor | None,
        record: list[AttentionMaps] | None,
    ) -> Tensor:
        """`forward` with packed queries, which are unpacked for the attention itself."""
        if self.score_bias is not None or (memory is None and not self.causal):
            raise ValueError(
                "packed words can attend to a memory, or causally to themselves, without a score "
                "bias; otherwise they would see padding"
            )
        rows = packing.captions if memory is None else memory.shape[0]
        query = self._query(x, None, packing, rows)
        if memory is None:
            key, value = self._key_value(x, None, packing, rows)
        else:
            check_mask(mask, memory)
            key, value = self._key_value(zero_padding(memory, mask), mask)
        values = self.attend(query, key, value, mask=mask, causal=self.causal)
        if record is not None:
            record.append(self.attend.maps(query, key, mask=mask, causal=self.causal))
        return self._join(values, packing)

    def _query(
        self, x: Tensor, mask: Tensor | None, packing: Packing | None = None, rows: int = 0
    ) -> Tensor:
        query = self.query(x)
        if packing is not None:
            query = packing.spread(query, rows)
        return self._split(query if self.query_norm is None else self.query_norm(query, mask))

    def _key_value(
        self, source: Tensor, mask: Tensor | None, packing: Packing | None = None, rows: int = 0
    ) -> tuple[Tensor, Tensor]:
        key, value = self.key(source), self.value(source)
        if packing is not None:
            key, value = packing.spread(key, rows), packing.spread(value, rows)
        if self.key_norm is not None:
            key = self.key_norm(key, mask)
        return self._split(key), self._split(value)

    def _join(self, values: Tensor, packing: Packing | None = None) -> Tensor:
        joined = values.transpose(1, 2).flatten(2)
        output: Tensor = self.output(joined if packing is None else packing.pack(joined))
        return output

    def _split(self, x: Tensor) -> Tensor:
        split = x.reshape(*x.shape[:2], self.heads, x.shape[2] // self.heads)
        return split.transpose(1, 2)  # (B, H, T, K)

    def _bias(self, x: Tensor, geometry: Tensor | None) -> Tensor | None:
        if self.score_bias is None:
            return None
        if geometry is None:
            raise ValueError(
                "attention with a geometric bias needs geometry=relative_geometry(boxes)"
            )
        bias: Tensor = self.score_bias(geometry, x)
        return bias
