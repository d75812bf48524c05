"""Weights in 8 bits: a quarter of the bytes, for models that are carried along.

A large matrix becomes whole numbers from -127 to 127 and a scale for each of its rows: a row makes
one output of a layer, one channel of a convolution, or is the vector of one word. In the file, `x`
of 8 bits stands beside `x.scale`. Small matrices, depthwise convolutions and what
`delicate_weights` names are in half precision, and vectors in single: they are few bytes and cost
most when rounded.

The batch norms of a backbone are best put into its convolutions before, see `settle_norms`, so that
what is rounded is what is used.
"""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ngsan.vision.efficientnet import Block, ConvNorm

ROUNDING = "int8"
"""What the metadata of a file in 8 bits call it."""

SCALE = ".scale"
"""How the name of a matrix's scales ends, after the matrix's own."""

FEWEST = 1 << 14
"""A matrix of more numbers than this is rounded to 8 bits."""

SHORTEST = 32
"""If its rows have at least so many."""

_LARGEST = 127


def round_weights(
    tensors: Mapping[str, Tensor], delicate: Collection[str] = ()
) -> dict[str, Tensor]:
    """Rounds the matrices of a model.

    Args:
        tensors: A state dict.
        delicate: Names of matrices to keep in half precision, whatever their size.

    Returns:
        The tensors of the file, which `restore_weights` undoes up to rounding.

    Raises:
        ValueError: A tensor holds what is no finite number.
    """
    found = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            found[name] = tensor
            continue
        tensor = tensor.float()
        if not tensor.isfinite().all():
            raise ValueError(f"{name} holds what is no finite number and cannot be rounded")
        if tensor.ndim < 2:
            found[name] = tensor
        elif name in delicate or tensor.numel() <= FEWEST or tensor[0].numel() < SHORTEST:
            half = tensor.half()
            found[name] = half if half.isfinite().all() else tensor
        else:
            found[name], found[name + SCALE] = round_rows(tensor)
    return found


def restore_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of rounded tensors, in single precision.

    Raises:
        ValueError: A matrix and its scales do not fit each other.
    """
    rounded = {name for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    scales = {name + SCALE for name in rounded}
    found = {}
    for name, tensor in tensors.items():
        if name in rounded:
            scale = tensors.get(name + SCALE)
            if scale is None or scale.dtype != torch.float32 or scale.shape != tensor.shape[:1]:
                raise ValueError(f"{name} {list(tensor.shape)} has no scale of each row beside it")
            found[name] = restore_rows(tensor, scale)
        elif name not in scales:
            found[name] = tensor.float() if tensor.is_floating_point() else tensor
    return found


def delicate_weights(model: nn.Module) -> set[str]:
    """Names of the weights that all later features hang on: of blocks that nothing leads around.

    Where a block adds to what came in, an error in its last convolution is a small part of the sum.
    In the others it goes to all that follows.
    """
    return {
        f"{name}.project.conv.weight"
        for name, part in model.named_modules()
        if isinstance(part, Block) and not part.residual
    }


def round_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds each row to 255 levels that lie evenly about zero.

    Args:
        matrix: (rows, ...) float32.

    Returns:
        numbers: (rows, ...) int8 from -127 to 127.
        scale: (rows,) float32, with which they are multiplied; of a row of zeros, one.
    """
    largest = matrix.flatten(1).abs().amax(1)
    scale = largest / _LARGEST
    # The largest of a row of tiny numbers, divided, may be no number above zero any more.
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (matrix / _beside(scale, matrix)).round().to(torch.int8), scale


def restore_rows(numbers: Tensor, scale: Tensor) -> Tensor:
    """What `round_rows` rounded, in single precision."""
    return numbers.float() * _beside(scale, numbers)


@torch.no_grad()
def settle_norms(model: nn.Module) -> None:
    """Puts the batch norms of a backbone into its convolutions, in place; for use, not training.

    What is left of a norm adds its shift and multiplies by exactly one, so the model keeps its
    parts, the names of its weights, and what it says.
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
