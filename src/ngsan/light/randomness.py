"""The random numbers of `ngsan.decoding.randomness`, bit for bit, without torch."""

import numpy as np
from numpy.typing import NDArray

# Odd constants of the splitmix64 generator (Steele, Lea and Flood 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def uniforms(*numbers: int | NDArray[np.int64]) -> NDArray[np.float32]:
    """Numbers in [0, 1), evenly spread, one for each combination of the integers given.

    Args:
        *numbers: Integers of 64 bits, or arrays of them that can be broadcast together.

    Returns:
        Of the broadcast shape, which has at least one axis; 24 random bits each.
    """
    # Never a bare number: numpy warns when one overflows, and here it is meant to.
    mixed = np.zeros(1, np.uint64)
    for number in numbers:
        bits = np.atleast_1d(np.asarray(number, np.int64)).astype(np.uint64)
        mixed = _mix(mixed + bits * _STEP + _STEP)
    return (mixed >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
