"""Weights in 8 bits: a quarter of the bytes, for models that ship with the package.

A large matrix becomes whole numbers from -127 to 127 and a scale for each of its rows: a row makes
one output of a layer, one channel of a convolution, or is the vector of one word. In the file, the
scales of `x` are `x.scale`. Small matrices, depthwise convolutions and the names that
`sensitive_weights` returns are in half precision, and vectors in single: they are few bytes and
lose most by quantization.

The batch norms of a backbone are best put into its convolutions before (`absorb_norms`), so that
the numbers that are quantized are those in use.
"""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ngsan.vision.backbone import Block, ConvNorm

SCHEME = "int8"
"""The name of this quantization in the metadata of a file."""

SCALE = ".scale"
"""Suffix of the name of a matrix's scales."""

MIN_SIZE = 1 << 14
"""A matrix is quantized if it has more numbers than this,"""

MIN_ROW = 32
"""and at least this many in a row."""

_LARGEST = 127


def quantize_weights(
    tensors: Mapping[str, Tensor], sensitive: Collection[str] = ()
) -> dict[str, Tensor]:
    """Quantizes the matrices of a model.

    Args:
        tensors: A state dict.
        sensitive: Names of matrices to keep in half precision, whatever their size.

    Returns:
        The tensors of the file, which `dequantize_weights` undoes up to rounding.

    Raises:
        ValueError: A tensor holds NaN or infinity.
    """
    found = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            found[name] = tensor
            continue
        tensor = tensor.float()
        if not tensor.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity and cannot be quantized")
        if tensor.ndim < 2:
            found[name] = tensor
        elif name in sensitive or tensor.numel() <= MIN_SIZE or tensor[0].numel() < MIN_ROW:
            half = tensor.half()
            found[name] = half if half.isfinite().all() else tensor
        else:
            found[name], found[name + SCALE] = quantize_rows(tensor)
    return found


def dequantize_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of quantized tensors, in single precision.

    Raises:
        ValueError: A matrix and its scales do not fit each other.
    """
    quantized = {name for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    scales = {name + SCALE for name in quantized}
    found = {}
    for name, tensor in tensors.items():
        if name in quantized:
            scale = tensors.get(name + SCALE)
            if scale is None or scale.dtype != torch.float32 or scale.shape != tensor.shape[:1]:
                raise ValueError(f"{name} {list(tensor.shape)} has no scale of each row beside it")
            found[name] = dequantize_rows(tensor, scale)
        elif name not in scales:
            found[name] = tensor.float() if tensor.is_floating_point() else tensor
    return found


def sensitive_weights(model: nn.Module) -> set[str]:
    """Names of the last convolutions of blocks without a residual connection.

    Where a block adds to its input, an error in its last convolution is a small part of the sum.
    In the others it reaches everything that follows.
    """
    return {
        f"{name}.project.conv.weight"
        for name, part in model.named_modules()
        if isinstance(part, Block) and not part.residual
    }


def quantize_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes each row to 255 levels that lie evenly around zero.

    Args:
        matrix: (rows, ...) float32.

    Returns:
        numbers: (rows, ...) int8 from -127 to 127.
        scale: (rows,) float32, to multiply them by; 1 for a row of zeros.
    """
    largest = matrix.flatten(1).abs().amax(1)
    scale = largest / _LARGEST
    # In a row of tiny numbers, the division may underflow to zero.
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (matrix / _beside(scale, matrix)).round().to(torch.int8), scale


def dequantize_rows(numbers: Tensor, scale: Tensor) -> Tensor:
    """Undoes `quantize_rows` up to rounding, in single precision."""
    return numbers.float() * _beside(scale, numbers)


@torch.no_grad()
def absorb_norms(model: nn.Module) -> None:
    """Moves the scales of batch norms into the convolutions before them, in place; for inference.

    Each norm then adds its shift and multiplies by exactly one, so the model keeps its modules, the
    names of its weights, and its outputs.
    """
    for part in model.modules():
        if isinstance(part, ConvNorm) and isinstance(part.norm, nn.BatchNorm2d):
            norm = part.norm.eval()
            assert norm.running_mean is not None
            assert norm.running_var is not None
            folded = fuse_conv_bn_eval(part.conv.eval(), norm)
            assert folded.bias is not None
            part.conv.weight.copy_(folded.weight)
            norm.bias.copy_(folded.bias)
            norm.weight.fill_(1)
            norm.running_mean.fill_(0)
            norm.running_var.fill_(1 - norm.eps)


def _beside(scale: Tensor, matrix: Tensor) -> Tensor:
    """(rows, 1, ...) with as many axes as the matrix."""
    return scale.view(-1, *[1] * (matrix.ndim - 1))
