"""Triton kernels of the query-dependent bias, forward and backward.

Shapes: `B` images, `N` regions, `H` heads, `F` geometry features, `G` width of their embedding. A
row is a query region of an image; there are B N rows. The pairs of a row are processed in blocks.
The embedding of a block is computed from its features when it is needed, also in the backward pass.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Supported types of the queries."""

_BLOCK, _WARPS = 16, 1
"""Pairs per block, and warps per program."""

_PROGRAMS = 2112
"""Maximum number of programs; each loops over rows and reads the embedding's weights once."""


@triton.jit
def _features(geometry, row, j, k, N, F: tl.constexpr):  # type: ignore[no-untyped-def]
    """Features of a block of pairs, (pairs, FB), with a 1 in column F for the bias."""
    pair = (row * N + j[:, None]) * F + k[None, :]
    found = tl.load(geometry + pair, mask=(j[:, None] < N) & (k[None, :] < F), other=0.0)
    return tl.where(k[None, :] == F, 1.0, found)


@triton.jit
def _weights(weight, bias, k, g, G, F: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weights of the embedding, (FB, G), with the bias in row F."""
    inside = g[None, :] < G
    found = tl.load(weight + g[None, :] * F + k[:, None], mask=inside & (k[:, None] < F), other=0.0)
    last = tl.load(bias + g[None, :] + 0 * k[:, None], mask=inside & (k[:, None] == F), other=0.0)
    return found + last


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    geometry, weight, bias, query, found,
    ROWS, N, H, G, STRIDE_B, STRIDE_H, STRIDE_I, STRIDE_J,
    F: tl.constexpr, J: tl.constexpr, HB: tl.constexpr, GB: tl.constexpr, FB: tl.constexpr,
    PRECISION: tl.constexpr, EMBEDDING: tl.constexpr,
):  # fmt: skip
    """The bias of the pairs of some rows."""
    g, h, k = tl.arange(0, GB), tl.arange(0, HB), tl.arange(0, FB)
    asked = (g[:, None] < G) & (h[None, :] < H)
    weights = _weights(weight, bias, k, g, G, F)
    for row in range(tl.program_id(0), ROWS, tl.num_programs(0)):
        image, i = row // N, row % N
        place = (image * N + i).to(tl.int64)
        theirs = tl.load(query + place * H * G + h[None, :] * G + g[:, None], mask=asked, other=0.0)
        out = found + image.to(tl.int64) * STRIDE_B + i * STRIDE_I
        for start in range(0, N, J):
            j = start + tl.arange(0, J)
            features = _features(geometry, place, j, k, N, F)
            embedded = tl.dot(features, weights, input_precision=EMBEDDING)
            embedded = tl.maximum(embedded, 0.0).to(query.dtype.element_ty)
            pairs = tl.dot(embedded, theirs, input_precision=PRECISION)
            at = out + h[None, :] * STRIDE_H + j[:, None] * STRIDE_J
            tl.store(at, pairs, mask=(j[:, None] < N) & (h[None, :] < H))


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    geometry, weight, bias, query, slope, query_slope, sums,
    ROWS, N, H, G, STRIDE_B, STRIDE_H, STRIDE_I, STRIDE_J,
    F: tl.constexpr, J: tl.constexpr, HB: tl.constexpr, GB: tl.constexpr, FB: tl.constexpr,
    PRECISION: tl.constexpr, EMBEDDING: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries of some rows, and partial sums of the weight gradients."""
    g, h, k = tl.arange(0, GB), tl.arange(0, HB), tl.arange(0, FB)
    kind = query.dtype.element_ty
    asked = (h[:, None] < H) & (g[None, :] < G)
    weights = _weights(weight, bias, k, g, G, F)
    total = tl.zeros((FB, GB), tl.float32)
    for row in range(tl.program_id(0), ROWS, tl.num_programs(0)):
        image, i = row // N, row % N
        place = (image * N + i).to(tl.int64)
        here = place * H * G + h[:, None] * G + g[None, :]
        theirs = tl.load(query + here, mask=asked, other=0.0)
        incoming_at = slope + image.to(tl.int64) * STRIDE_B + i * STRIDE_I
        to_query = tl.zeros((HB, GB), tl.float32)
        for start in range(0, N, J):
            j = start + tl.arange(0, J)
            features = _features(geometry, place, j, k, N, F)
            embedded = tl.dot(features, weights, input_precision=EMBEDDING)
            at = incoming_at + h[None, :] * STRIDE_H + j[:, None] * STRIDE_J
            seen = (j[:, None] < N) & (h[None, :] < H)
            incoming = tl.load(at, mask=seen, other=0.0)
            to_query += tl.dot(
                tl.trans(incoming), tl.maximum(embedded, 0.0).to(kind), input_precision=PRECISION
            )
            to_embedded = tl.dot(incoming, theirs, input_precision=PRECISION)
            to_embedded = tl.where(embedded > 0, to_embedded, 0.0)
            total += tl.dot(tl.trans(features), to_embedded, input_precision=PRECISION)
        tl.store(query_slope + here, to_query, mask=asked)
    sum_place = (tl.program_id(0) * FB + k[:, None]) * G + g[None, :]
    tl.store(sums + sum_place, total, mask=g[None, :] < G)


def _sizes(geometry: Tensor, query: Tensor) -> dict[str, Any]:
    """Compile-time constants of both kernels."""
    heads, width = query.shape[2:]
    single = query.dtype == torch.float32
    return {
        "F": geometry.shape[-1],
        "J": _BLOCK,
        "HB": max(16, triton.next_power_of_2(heads)),
        "GB": max(16, triton.next_power_of_2(width)),
        "FB": max(16, triton.next_power_of_2(geometry.shape[-1] + 1)),
        "PRECISION": "ieee" if single else "tf32",
        # Rounded to ten bits, a few per thousand of the embeddings change sign before the ReLU,
        # which changes the weights' gradient by a few per cent.
        "EMBEDDING": "ieee" if single else "tf32x3",
        # Full single precision does not use tensor cores and needs more registers.
        "num_warps": 4 if single else _WARPS,
    }


def forwards(
    geometry: Tensor, weight: Tensor, bias: Tensor, query: Tensor, wrap: Callable[[Any], Any]
) -> Tensor:
    """The bias (B, H, N, N); see `query_bias`. `wrap` makes the launch visible to the compiler."""
    images, regions, heads, width = query.shape
    # Fused attention needs rows that start at multiples of 16 bytes.
    found = query.new_empty(images, heads, regions, -(-regions // 8) * 8)[..., :regions]
    wrap(_forward)[(min(_PROGRAMS, images * regions),)](
        geometry,
        weight,
        bias,
        query,
        found,
        images * regions,
        regions,
        heads,
        width,
        *found.stride(),
        **_sizes(geometry, query),
    )
    return found


def backwards(
    geometry: Tensor,
    weight: Tensor,
    bias: Tensor,
    query: Tensor,
    slope: Tensor,
    wrap: Callable[[Any], Any],
) -> tuple[Tensor, Tensor]:
    """Gradients of the query, and (F + 1, G) of weight and bias, from that of the score bias."""
    images, regions, heads, width = query.shape
    sizes = _sizes(geometry, query)
    programs = min(_PROGRAMS, images * regions)
    query_slope = torch.empty_like(query)
    sums = torch.empty(programs, sizes["FB"], width, dtype=torch.float32, device=query.device)
    wrap(_backward)[(programs,)](
        geometry,
        weight,
        bias,
        query,
        slope,
        query_slope,
        sums,
        images * regions,
        regions,
        heads,
        width,
        *slope.stride(),
        **sizes,
    )
    return query_slope, sums.sum(0)[: geometry.shape[-1] + 1]


@triton_op("ngsan::query_bias", mutates_args={})
def query_bias(geometry: Tensor, weight: Tensor, bias: Tensor, query: Tensor) -> Tensor:
    """The bias of every head and pair.

    Args:
        geometry: (B, N, N, F) in single precision; gets no gradient.
        weight: (G, F) in single precision.
        bias: (G,) in single precision.
        query: (B, N, H, G) of one of `DTYPES`.

    Returns:
        (B, H, N, N) of the query's type.
    """
    return forwards(
        geometry.contiguous(), weight.contiguous(), bias, query.contiguous(), wrap_triton
    )


@triton_op("ngsan::query_bias_backward", mutates_args={})
def _query_bias_backward(
    geometry: Tensor, weight: Tensor, bias: Tensor, query: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    tensors = (geometry.contiguous(), weight.contiguous(), bias, query.contiguous())
    return backwards(*tensors, slope, wrap_triton)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
    geometry, weight, bias, query = ctx.saved_tensors
    to_query, sums = _query_bias_backward(geometry, weight, bias, query, slope.to(query.dtype))
    return None, sums[:-1].T.contiguous(), sums[-1].contiguous(), to_query


query_bias.register_autograd(_gradients, setup_context=_save)
