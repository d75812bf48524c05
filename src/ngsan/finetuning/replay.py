"""Ordinary pictures to replay, so that a model does not forget them.

The package has the backbone's cells of some pictures of COCO's training split, four bits a number,
and no captions: the model that is fine-tuned writes them itself before it is trained. The pictures
themselves cannot be made from the cells.

Shapes: `P` pictures, `U` of the user's, `N` cells, `C` channels.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from ngsan.atomic_io import replace_file
from ngsan.predict.captioner import PHOTO_MODEL

REPLAY = PHOTO_MODEL.parent / "replay" / "cells.safetensors"
"""The pictures that come with the package."""

_LEVELS = 15
_TAIL = 0.0005
"""Share of a channel's numbers beyond either end of its levels."""

_NEAR = 5
"""A picture is as much like some others as it is, on average, like this many of the nearest,"""

_SAMPLE = 1000
"""of at most this many."""

_SAME = 0.98
"""Correlation from which two backbones are the same, but for rounding."""


def test_card(side: int) -> NDArray[np.uint8]:
    """(side, side, 3) a pattern by whose cells backbones are compared."""
    y, x = np.mgrid[:side, :side]
    planes = (x * 255 // side, y * 255 // side, 255 * ((x // 16 + y // 16) % 2))
    return np.stack(planes, -1).astype(np.uint8)


def write_replay(
    path: Path, cells: NDArray[np.float32], card: NDArray[np.float32], source: str
) -> None:
    """Writes cells in four bits.

    Args:
        path: The file.
        cells: (P, N, C), of even C.
        card: (N, C) those of `test_card`.
        source: Which pictures they are.
    """
    low, high = np.quantile(cells, (_TAIL, 1 - _TAIL), axis=(0, 1)).astype(np.float32)
    step = np.maximum(high - low, 1e-6) / _LEVELS
    levels = np.clip(np.rint((cells - low) / step), 0, _LEVELS).astype(np.uint8)
    packed = levels[..., ::2] << 4 | levels[..., 1::2]
    tensors = {"levels": packed, "low": low, "step": step, "card": card.astype(np.float16)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as partial:
        save_file(tensors, partial, {"about": json.dumps({"source": source, "format": 1})})


def read_replay(card: NDArray[np.float32], count: int, path: Path = REPLAY) -> NDArray[np.float32]:
    """Cells (P, N, C) of at most `count` pictures; of none for another backbone, or without a file.

    Args:
        card: (N, C) the cells of `test_card` by the model's backbone.
        count: How many.
        path: The file.
    """
    nothing = np.zeros((0, *card.shape), np.float32)
    if not path.is_file() or not count:
        return nothing
    tensors = load_file(path)
    mine = tensors["card"].astype(np.float32)
    if mine.shape != card.shape or _correlation(mine, card) < _SAME:
        return nothing
    packed = tensors["levels"][:count]
    levels = np.stack((packed >> 4, packed & 15), -1).reshape(*packed.shape[:-1], -1)
    cells: NDArray[np.float32] = levels * tensors["step"] + tensors["low"]
    return cells.astype(np.float32)


def unlike(mine: NDArray[np.float32], ordinary: NDArray[np.float32]) -> NDArray[np.int64]:
    """Which ordinary pictures may be replayed: those that are not of the user's own kind.

    The model is to caption pictures of that kind as the user does and no longer as it did. What
    counts are cosines from the mean of the ordinary pictures, to the nearest of the user's: half of
    the user's own are nearer to others of them than any picture that is replayed. Half of the
    ordinary pictures always may be.

    Args:
        mine: (U, C) the mean cells of the user's pictures.
        ordinary: (P, C) those of the ordinary ones.
    """
    centre = ordinary.mean(0)
    mine, ordinary = _unit(mine - centre), _unit(ordinary - centre)
    own = mine[:_SAMPLE] @ mine.T
    np.fill_diagonal(own, -1)
    near = _near(ordinary @ mine.T)
    chosen: NDArray[np.int64] = np.flatnonzero(near <= max(np.median(near), np.median(_near(own))))
    return chosen


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return unit


def _near(cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean of the highest cosines of each row."""
    near: NDArray[np.float32] = np.sort(cosines, axis=1)[:, -_NEAR:].mean(1)
    return near


def available(path: Path = REPLAY) -> int:
    """How many pictures the file has."""
    return len(load_file(path)["levels"]) if path.is_file() else 0


def _correlation(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])
