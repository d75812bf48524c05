"""Cells in words and as small pictures."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from ngsan.explain.maps import Floats

DIMMED, TINTED = 0.7, 0.24
"""How opaque the black is over a cell that is not looked at, and the colour over the cell that is
looked at most; `page.js` has both from the page."""

WARM = (255, 168, 38)
"""The colour of what is looked at, which also tells it in a dark photograph."""

STRONGEST = 3
"""Cells that are told in words."""


def veil(weights: Floats, grid: tuple[int, int]) -> str:
    """A picture to lay over a photograph: it darkens cells that are not looked at.

    Args:
        weights: (N,) the attention of one word.
        grid: Rows and columns of cells.

    Returns:
        A PNG of one pixel a cell, as a `data:` address.
    """
    shares = weights[:, None] / max(float(weights.max()), 1e-9)
    tint = TINTED * shares
    alpha = DIMMED * (1 - shares) + tint
    pixels = np.concatenate((np.array(WARM) * tint / alpha, 255 * alpha), 1)
    content = io.BytesIO()
    image = Image.fromarray(np.rint(pixels).astype(np.uint8).reshape(*grid, 4))
    image.save(content, "PNG", optimize=True)
    return as_data("image/png", content.getvalue())


def as_data(kind: str, content: bytes) -> str:
    """A file as a `data:` address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def strongest(weights: Floats, grid: tuple[int, int]) -> Sequence[tuple[str, float]]:
    """The cells that are looked at most, in words, and their weights."""
    order = np.argsort(-weights, kind="stable")[:STRONGEST].tolist()
    return [(place(cell, grid), float(weights[cell])) for cell in order]


def place(cell: int, grid: tuple[int, int]) -> str:
    """Where a cell is, such as "row 3, column 5", counted from one."""
    return f"row {cell // grid[1] + 1}, column {cell % grid[1] + 1}"


def percent(share: float) -> str:
    """A share as people read it, such as "4.2 %"."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %" if value >= 0.05 else "< 0.1 %"
