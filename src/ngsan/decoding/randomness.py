"""Random numbers that belong to an image, not to a place in a batch.

A number is made by mixing the bits of (seed, key of the image, sample, word position). So a sampled
caption is the same whatever other images are in the batch and however the batches are cut, on every
device, and a captured step needs no state but the numbers themselves.
"""

import torch
from torch import Tensor

# Odd constants of the splitmix64 generator (Steele, Lea and Flood 2014), as signed 64-bit integers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def uniforms(*numbers: Tensor) -> Tensor:
    """Numbers in [0, 1), evenly spread, one for each combination of the integers given.

    Args:
        *numbers: Integer tensors that can be broadcast together.

    Returns:
        float32 of the broadcast shape; 24 random bits each.
    """
    mixed = torch.zeros((), dtype=torch.long, device=numbers[0].device)
    for number in numbers:
        mixed = _mix(mixed + number * _STEP + _STEP)
    return (_shift(mixed, 40)).to(torch.float32) * 2.0**-24


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift(bits, 30)) * _FIRST
    bits = (bits ^ _shift(bits, 27)) * _SECOND
    return bits ^ _shift(bits, 31)


def _shift(bits: Tensor, by: int) -> Tensor:
    """Moves the bits to the right and fills with zeros; torch itself would fill with the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
