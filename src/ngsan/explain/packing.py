"""Maps in few bytes: each row as whole numbers of 8 bits and one scale.

Shapes: `N` the length of a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.explain.maps import Floats

LEVELS = 255
"""The greatest number of a row of weights; its value is the row's scale."""

SIGNED = 127
"""The greatest number of a row with signs, which is stored from 1 to 255 around 128."""


@dataclass
class Blob:
    """Maps one after the other in one piece of memory, and a table of what lies where."""

    parts: list[bytes] = field(default_factory=list)
    """What has been put in."""

    size: int = 0
    """Bytes so far, a multiple of four."""

    def put(self, rows: Floats, *, signed: bool = False) -> Mapping[str, Any]:
        """Stores a map: the scales of all rows as little-endian float32, then their numbers.

        Args:
            rows: (..., N).
            signed: Whether values may be below zero.

        Returns:
            Where it lies and what it is, as JSON values.
        """
        scales, numbers = quantise(rows, signed=signed)
        content = scales.astype("<f4").tobytes() + numbers.tobytes()
        content += bytes(-len(content) % 4)
        entry = {"at": self.size, "shape": list(rows.shape), "signed": signed}
        self.parts.append(content)
        self.size += len(content)
        return entry

    def content(self) -> bytes:
        """All of it."""
        return b"".join(self.parts)


def quantise(rows: Floats, *, signed: bool = False) -> tuple[Floats, NDArray[np.uint8]]:
    """Rounds rows to numbers of 8 bits.

    Args:
        rows: (..., N), at least zero unless `signed`.
        signed: Whether values may be below zero.

    Returns:
        scales: (...) the greatest magnitude of each row.
        numbers: (..., N) where 255 stands for the scale and 0 for zero, or with signs 255 for the
            scale, 128 for zero and 1 for minus the scale.
    """
    scales = np.abs(rows).max(-1).astype(np.float32)
    shares = rows / np.where(scales > 0, scales, 1)[..., None]
    if signed:
        return scales, (np.rint(shares * SIGNED) + SIGNED + 1).astype(np.uint8)
    return scales, np.rint(shares * LEVELS).astype(np.uint8)
