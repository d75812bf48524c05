"""Attend: scores, bias, mask, softmax, values. `ngsan.nn.attention` has the projections.

Shapes: `B` images, `H` heads, `T` queries, `S` keys, `K` head width.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ngsan.nn.masks import check_mask

Backend = Literal["fused", "explicit"]

_FUSED_UP_TO = 16
"""Number of images up to which `recall` uses the fused kernel on a GPU."""


@dataclass(frozen=True)
class AttentionMaps:
    """Weights and scores of one attention, for plots.

    Attributes:
        weights: (B, H, T, S) after the softmax; a row sums to one, or to zero without a visible
            key.
        content: (B, H, T, S) the content scores, QK^T / sqrt(K).
        bias: (B, H, T, S) the geometric bias of Eq. 11-13, or None without one.
    """

    weights: Tensor
    content: Tensor
    bias: Tensor | None


def _visible(
    mask: Tensor | None, causal: bool, query: Tensor, key: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Joins the mask of real keys and the causal mask.

    A query without a visible key would be 0/0. It sees everything instead, and the caller sets its
    result to zero, which also keeps its gradient finite.

    Returns:
        visible: Boolean, broadcastable to (B, H, T, S), True = visible; None for all True.
        reaches: Boolean, broadcastable to (B, H, T, 1), False = sees no key; None for all True.
    """
    check_mask(mask, key.transpose(1, 2))
    keys = key.shape[2]
    order = None
    if causal:
        if query.shape[2] != keys:
            raise ValueError(
                f"causal attention needs as many queries as keys, not {query.shape[2]} and {keys}"
            )
        order = torch.ones(keys, keys, dtype=torch.bool, device=query.device).tril()
    if mask is None:
        return order, None
    visible = mask[:, None, None, :]
    if order is not None:
        visible = visible & order
    reaches = visible.any(-1, keepdim=True)
    return visible | ~reaches, reaches


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, visible: Tensor | None) -> Tensor:
    """Scores of Eq. 10 (B, H, T, S), minus infinity where not visible."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    return scores if visible is None else scores.masked_fill(~visible, -math.inf)


def recall(query: Tensor, key: Tensor, value: Tensor, view: Tensor | None) -> Tensor:
    """Attends to keys that include the scale of Eq. 10, as in `ngsan.nn.cache`.

    There are few queries and keys. For many images the explicit equation is faster than the fused
    kernel; for few images one kernel is faster than four.

    Args:
        query: (B, H, T, K).
        key: (B, H, S, K), divided by sqrt(K).
        value: (B, H, S, K).
        view: Additive mask, broadcastable to (B, H, T, S): 0 for visible keys, else minus infinity;
            at least one key is visible. None: all keys are visible.

    Returns:
        (B, H, T, K)
    """
    if query.shape[0] <= _FUSED_UP_TO and query.is_cuda:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=view, scale=1.0)
    scores = query @ key.transpose(-2, -1)
    if view is not None:
        scores = scores + view
    return scores.softmax(-1) @ value


class Attend(nn.Module):
    """Scaled dot-product attention with an additive bias, Eq. 10.

    E = QK^T / sqrt(K) + bias; values are averaged by softmax(E) over the visible keys. A query
    without a visible key gets zeros. Both backends give the same values: `explicit` computes the
    equation step by step, `fused` calls `scaled_dot_product_attention`.

    Args:
        backend: "fused" or "explicit".
        dropout: Dropout of the attention weights.
    """

    def __init__(self, *, backend: Backend = "fused", dropout: float = 0.0) -> None:
        super().__init__()
        if backend not in get_args(Backend):
            raise ValueError(
                f"unknown attention backend {backend!r}; choose from {get_args(Backend)}"
            )
        self.backend = backend
        self.dropout = dropout

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Averages the values by attention.

        Args:
            query: (B, H, T, K).
            key: (B, H, S, K).
            value: (B, H, S, K).
            bias: Added to the scores, broadcastable to (B, H, T, S).
            mask: (B, S) boolean, True = a real key, or None.
            causal: Whether query t sees keys 0 to t only.

        Returns:
            (B, H, T, K)
        """
        visible, reaches = _visible(mask, causal, query, key)
        dropout = self.dropout if self.training else 0.0
        if self.backend == "explicit":
            weights = _scores(query, key, bias, visible).softmax(-1)
            values = F.dropout(weights, dropout) @ value
        elif bias is None and mask is None:
            values = F.scaled_dot_product_attention(
                query, key, value, dropout_p=dropout, is_causal=causal
            )
        else:
            if bias is None:
                addend = visible
            else:
                addend = bias.to(query.dtype)
                if visible is not None:
                    addend = addend.masked_fill(~visible, -math.inf)
            values = F.scaled_dot_product_attention(
                query, key, value, attn_mask=addend, dropout_p=dropout
            )
        return values if reaches is None else values.masked_fill(~reaches, 0.0)

    def maps(
        self,
        query: Tensor,
        key: Tensor,
        *,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> AttentionMaps:
        """The attention maps; the arguments are those of `forward`."""
        visible, reaches = _visible(mask, causal, query, key)
        weights = _scores(query, key, bias, visible).softmax(-1)
        if reaches is not None:
            weights = weights.masked_fill(~reaches, 0.0)
        content = _scores(query, key, None, None)
        return AttentionMaps(weights, content, None if bias is None else bias.expand_as(content))
