"""The query-dependent bias, Q'_i . G_ij (Eq. 12): by one kernel on a GPU, else by matrix products.

For a thousand pairs an image and 64 numbers a pair, G is the largest array of the encoder, and
products of a pair's 64 numbers with eight heads are too small for a matrix library: written with
PyTorch's functions the bias takes a tenth of a training step. The kernel makes G where it is used
and stores none of it.

Shapes: `B` images, `N` regions, `H` heads, `F` geometry features, `G` width of their embedding.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

if torch.version.cuda is not None and find_spec("triton") is not None:
    from ngsan.nn import query_bias_kernel as _kernel
else:
    _kernel = None  # type: ignore[assignment]


def embed_geometry(geometry: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """G = ReLU(FC(f)) (Eq. 9).

    Args:
        geometry: (B, N, N, F).
        weight: (G, F).
        bias: (G,).

    Returns:
        (B, N, N, G)
    """
    # Geometry keeps its precision up to here, whatever the model's.
    return torch.nn.functional.linear(geometry.to(weight.dtype), weight, bias).relu()


def query_bias(
    geometry: Tensor, weight: Tensor, bias: Tensor, query: Tensor, embedded: Tensor | None = None
) -> Tensor:
    """The bias of every head and pair.

    Args:
        geometry: (B, N, N, F) of `relative_geometry`.
        weight: (G, F) of Eq. 9.
        bias: (G,) of Eq. 9.
        query: (B, N, H, G) Q' of each head.
        embedded: (B, N, N, G) of `embed_geometry` where it is at hand, or None.

    Returns:
        (B, H, N, N)
    """
    if (
        embedded is None
        and _kernel is not None
        and query.is_cuda
        and query.dtype in _kernel.DTYPES
        and weight.dtype == torch.float32
        and not geometry.requires_grad
    ):
        found: Tensor = _kernel.query_bias(geometry.float(), weight, bias, query)
        return found
    if embedded is None:
        embedded = embed_geometry(geometry, weight, bias)
    # With the heads last, matrices of any number of regions are aligned in memory.
    return torch.einsum("bijg,bihg->bijh", embedded, query).permute(0, 3, 1, 2)
