"""Masks of real elements, True = real. They fail early when they do not fit.

Shapes: `B` images, `N` regions, `C` channels.
"""

import torch
from torch import Tensor


def check_mask(mask: Tensor | None, elements: Tensor) -> None:
    """Raises a `ValueError` unless `mask` is boolean and fits the leading axes of `elements`.

    Only shapes and types are read, so a device is never waited for.

    Args:
        mask: (B, N) boolean, True = real, or None when all elements are real.
        elements: (B, N, ...) what the mask speaks of.
    """
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean with True = real, not {mask.dtype}")
    if mask.shape != elements.shape[:2]:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not fit elements of shape "
            f"{tuple(elements.shape)}: expected {tuple(elements.shape[:2])}"
        )


def zero_padding(elements: Tensor, mask: Tensor | None) -> Tensor:
    """Sets padded elements to zero, whatever they hold (NaN and infinity included).

    Args:
        elements: (B, N, C).
        mask: (B, N) boolean, True = real, or None.

    Returns:
        (B, N, C)
    """
    return elements if mask is None else elements.masked_fill(~mask.unsqueeze(-1), 0.0)
