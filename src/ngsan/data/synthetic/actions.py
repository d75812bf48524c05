"""Which action words are true of two things that move. They follow from their boxes over time.

Every word but "jumps" and "stands still" has an opposite, which is true of the same frames in
reverse: no single frame, and no set of frames without their order, tells the two apart. Boxes are
`cxcywh` relative to the canvas; y grows downwards, as in pictures.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from ngsan.data.synthetic.relations import Box

OPPOSITES = {
    "approaches": "leaves",
    "leaves": "approaches",
    "crosses to the right": "crosses to the left",
    "crosses to the left": "crosses to the right",
    "rises": "falls",
    "falls": "rises",
    "grows": "shrinks",
    "shrinks": "grows",
    "jumps": "jumps",
    "stands still": "stands still",
}
"""What each action is in reverse."""

ACTIONS = tuple(OPPOSITES)

_STILL = 0.02
_NEARER = 0.65
_ASIDE = 0.15
_CLIMB = 0.3
_UPRIGHT = 0.08
_JUMP = 0.15
_GROWTH = 1.4
_SLACK = 0.01


def actions(a: Sequence[Box], b: Sequence[Box]) -> set[str]:
    """The actions that are true of `a` with regard to `b`.

    Args:
        a: The boxes of the thing that acts, frame by frame.
        b: Those of another thing; nothing but "stands still" is said of `a` unless it stays.

    Returns:
        A subset of `ACTIONS`, which may be empty.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"{len(a)} boxes of one thing and {len(b)} of another: as many, and one")
    if _moves(b) or _changes(b):
        return set()
    if _moves(a):
        return set() if _changes(a) else _ways(a, b)
    if not _changes(a):
        return {"stands still"}
    sizes = [math.sqrt(box[2] * box[3]) for box in a]
    return _told(sizes, "grows", "shrinks", sizes[-1] / sizes[0], _GROWTH)


def _ways(a: Sequence[Box], b: Sequence[Box]) -> set[str]:
    """The actions of a thing that moves and keeps its size."""
    found = set()
    apart = [math.hypot(p[0] - q[0], p[1] - q[1]) for p, q in zip(a, b, strict=True)]
    found |= _told(apart, "leaves", "approaches", apart[-1] / max(apart[0], 1e-9), 1 / _NEARER)
    first, last = a[0][0] - b[0][0], a[-1][0] - b[-1][0]
    if first <= -_ASIDE and last >= _ASIDE:
        found.add("crosses to the right")
    if first >= _ASIDE and last <= -_ASIDE:
        found.add("crosses to the left")
    heights = [box[1] for box in a]
    climb = heights[0] - heights[-1]
    if max(box[0] for box in a) - min(box[0] for box in a) <= _UPRIGHT:
        if abs(climb) >= _CLIMB:
            found.add("rises" if climb > 0 else "falls")
        highest = min(heights)
        if abs(climb) <= _STILL and heights[0] - highest >= _JUMP:
            found.add("jumps")
    return found


def _told(numbers: Sequence[float], up: str, down: str, ratio: float, least: float) -> set[str]:
    """`up` or `down` if numbers go that way all the time, by at least a ratio."""
    steps = [after - before for before, after in pairwise(numbers)]
    if ratio >= least and min(steps) >= -_SLACK:
        return {up}
    if ratio <= 1 / least and max(steps) <= _SLACK:
        return {down}
    return set()


def _moves(boxes: Sequence[Box]) -> bool:
    x, y = boxes[0][:2]
    return any(math.hypot(box[0] - x, box[1] - y) > _STILL for box in boxes)


def _changes(boxes: Sequence[Box]) -> bool:
    """Whether the size changes."""
    area = boxes[0][2] * boxes[0][3]
    return any(not 0.95 < box[2] * box[3] / area < 1.05 for box in boxes)
