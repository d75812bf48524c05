"""Sinusoidal embedding of numbers: of word positions, and of geometry in the paper's baselines."""

import math

import torch
from torch import Tensor


def sinusoidal(values: Tensor, width: int, *, longest: float = 10_000.0) -> Tensor:
    """Embeds each number as sines and cosines of geometrically spaced wavelengths.

    Component 2k is sin(v / longest^(2k/width)), component 2k+1 the cosine of the same angle
    (Vaswani et al. 2017, Section 3.5).

    Args:
        values: (...) any floating point tensor.
        width: Even number of components.
        longest: Ratio of the longest wavelength to the shortest.

    Returns:
        (..., width)
    """
    if width <= 0 or width % 2:
        raise ValueError(f"a sinusoidal embedding has an even width, not {width}")
    exponents = torch.arange(0, width, 2, device=values.device, dtype=values.dtype) / width
    angles = values.unsqueeze(-1) * torch.exp(-math.log(longest) * exponents)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
