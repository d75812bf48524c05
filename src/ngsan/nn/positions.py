"""Sinusoidal embedding of numbers: of words, of frames, and of geometry in the paper's baselines.

Shapes: `B` clips, `N` regions of all frames, `D` model width.
"""

import math

import torch
from torch import Tensor, nn


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


class FramePositions(nn.Module):
    """Where the frames of clips stand in their order, as sinusoids; nothing is learned.

    Real regions are counted and padding is not, so padding changes nothing wherever it stands.
    """

    def __init__(self, cells: int = 1) -> None:
        """Takes the number of regions that each frame has, one after the other."""
        super().__init__()
        if cells < 1:
            raise ValueError(f"cells: {cells} must be at least 1")
        self.cells = cells

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embeds the places of frames.

        Args:
            x: (B, N, D) the regions; only their shape, type and device count.
            mask: (B, N) boolean, True = a real region, or None.

        Returns:
            (B, N, D), or (N, D) without a mask.
        """
        # In single precision: half knows no odd number above 2048.
        if mask is None:
            places = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        else:
            places = (mask.to(torch.float32).cumsum(1) - 1).clamp(min=0)
        if self.cells > 1:
            places = (places / self.cells).floor()
        return sinusoidal(places, x.shape[-1]).to(x.dtype)
