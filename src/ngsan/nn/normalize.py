"""Normalisation of queries and keys inside self-attention (NSA, Eq. 6-7) and its ablations.

All statistics are over the real regions only, in at least single precision. The result is zero at
padding. Every norm is called as `norm(x, mask)`.

Shapes: `B` images, `N` regions, `C` channels.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ngsan.nn.masks import check_mask, zero_padding

NormName = Literal["none", "instance", "instance-affine", "batch", "layer"]


def _statistics_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _moments(x: Tensor, mask: Tensor | None, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of the real elements along `axes`; of none, zeros if masked."""
    if mask is None:
        mean = x.mean(axes, keepdim=True)
        return mean, (x - mean).square().mean(axes, keepdim=True)
    real = mask.unsqueeze(-1)
    count = real.sum(axes, keepdim=True).clamp(min=1)
    mean = zero_padding(x, mask).sum(axes, keepdim=True) / count
    variance = zero_padding(x - mean, mask).square().sum(axes, keepdim=True) / count
    return mean, variance


class InstanceNorm(nn.Module):
    """Normalises each channel over the regions of one image (Eq. 6-7).

    In the paper the form without the affine part of Eq. 7 is best (Table 2), so it is the default.
    A single region, or equal regions, have no variance and become zero (plus the shift), up to
    rounding.

    Args:
        channels: C; required for the affine form only.
        affine: Whether to learn a scale and shift per channel.
        eps: Added to the variance.
    """

    needs_all_elements = True

    def __init__(
        self, channels: int | None = None, *, affine: bool = False, eps: float = 1e-5
    ) -> None:
        super().__init__()
        if affine and channels is None:
            raise ValueError("InstanceNorm(affine=True) needs the number of channels")
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels or 0)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels or 0)) if affine else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, C) to (B, N, C), zeros at padding.

        Args:
            x: (B, N, C).
            mask: (B, N) boolean, True = real, or None if all are.
        """
        check_mask(mask, x)
        x = zero_padding(x, mask)  # first, so that the gradient at padding is zero
        wide = x.to(_statistics_dtype(x))
        mean, variance = _moments(wide, mask, (1,))
        normalized = (wide - mean) * torch.rsqrt(variance + self.eps)
        if self.weight is not None and self.bias is not None:
            normalized = normalized * self.weight + self.bias
        return zero_padding(normalized, mask).to(x.dtype)


class BatchNorm(nn.Module):
    """Normalises each channel over all real regions of the batch, with a learned affine part.

    In evaluation mode the running statistics of training are used.

    Args:
        channels: C.
        momentum: Weight of the newest batch in the running statistics.
        eps: Added to the variance.
    """

    needs_all_elements = True
    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, channels: int, *, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Arguments and result as in `InstanceNorm.forward`."""
        check_mask(mask, x)
        x = zero_padding(x, mask)  # first, so that the gradient at padding is zero
        wide = x.to(_statistics_dtype(x))
        if self.training and x.numel():
            mean, variance = _moments(wide, mask, (0, 1))
            self._remember(mean, variance, x, mask)
        else:
            mean, variance = self.running_mean, self.running_variance
        normalized = (wide - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias
        return zero_padding(normalized, mask).to(x.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, x: Tensor, mask: Tensor | None) -> None:
        real = mask if mask is not None else torch.ones(x.shape[:2], device=x.device)
        count = real.sum()
        unbiased = variance.flatten() * count / (count - 1).clamp(min=1)
        # A batch of padding only changes nothing.
        momentum = self.momentum * (count > 0)
        self.running_mean.lerp_(mean.flatten().to(self.running_mean.dtype), momentum)
        self.running_variance.lerp_(unbiased.to(self.running_variance.dtype), momentum)


class LayerNorm(nn.Module):
    """Normalises each region over its channels, with a learned affine part."""

    needs_all_elements = False

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Arguments and result as in `InstanceNorm.forward`."""
        check_mask(mask, x)
        x = zero_padding(x, mask)
        normalized = F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return zero_padding(normalized, mask)


Norm = InstanceNorm | BatchNorm | LayerNorm


def build_norm(name: NormName, channels: int) -> Norm | None:
    """A norm by its name in the configuration; None for "none"."""
    match name:
        case "none":
            return None
        case "instance":
            return InstanceNorm()
        case "instance-affine":
            return InstanceNorm(channels, affine=True)
        case "batch":
            return BatchNorm(channels)
        case "layer":
            return LayerNorm(channels)
    raise ValueError(f"unknown norm {name!r}; choose from {', '.join(get_args(NormName))}")
