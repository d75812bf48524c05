"""Which relation words are true of two boxes. They follow from geometry alone.

Words come in families; of a family at most one is true of an ordered pair, and none where the
pair is not clearly one or the other. Boxes are `cxcywh` relative to the canvas; y grows downwards,
as in pictures. Inside means that one box lies in the other: a small thing in the corner of a ball's
box counts, as it would for a detector.
"""

import math

Box = tuple[float, float, float, float]

FAMILIES: dict[str, tuple[str, ...]] = {
    "distance": ("near", "far from"),
    "size": ("bigger than", "smaller than"),
    "arrangement": ("beside", "over", "under", "inside"),
    "direction": ("left of", "right of", "above", "below"),
}
"""The relation words. All but direction, and but over against under, can be told from Eq. 8."""

_NEAR, _FAR = 1.6, 2.6
_BIGGER = 1.4
_ALIGNED = 0.25
_TOUCHING = 2.0
_DIRECTED = 1.5


def relation(a: Box, b: Box, family: str) -> str | None:
    """The word of a family that is true of `a` with regard to `b`, or None.

    Args:
        a: `cxcywh` relative to the canvas.
        b: Likewise.
        family: A key of `FAMILIES`.
    """
    match family:
        case "distance":
            return _distance(a, b)
        case "size":
            return _size(a, b)
        case "arrangement":
            return _arrangement(a, b)
        case "direction":
            return _direction(a, b)
    raise ValueError(f"unknown family {family!r}: one of {', '.join(FAMILIES)}")


def family_of(word: str) -> str:
    """The family of a relation word."""
    for family, words in FAMILIES.items():
        if word in words:
            return family
    raise ValueError(f"unknown relation word {word!r}")


def contains(outer: Box, inner: Box) -> bool:
    """Whether one box lies wholly inside another."""
    return all(
        abs(outer[axis] - inner[axis]) <= (outer[axis + 2] - inner[axis + 2]) / 2 for axis in (0, 1)
    )


def _nested(a: Box, b: Box) -> bool:
    return contains(a, b) or contains(b, a)


def _sizes(a: Box, b: Box) -> tuple[float, float]:
    return math.sqrt(a[2] * a[3]), math.sqrt(b[2] * b[3])


def _spread(a: Box, b: Box) -> float:
    """Distance of the centres in units of the mean size."""
    return math.hypot(a[0] - b[0], a[1] - b[1]) / (sum(_sizes(a, b)) / 2)


def _distance(a: Box, b: Box) -> str | None:
    if _nested(a, b) or _NEAR < _spread(a, b) < _FAR:
        return None
    return "near" if _spread(a, b) <= _NEAR else "far from"


def _size(a: Box, b: Box) -> str | None:
    of_a, of_b = _sizes(a, b)
    ratio = of_a / of_b
    if 1 / _BIGGER < ratio < _BIGGER:
        return None
    return "bigger than" if ratio >= _BIGGER else "smaller than"


def _arrangement(a: Box, b: Box) -> str | None:
    if contains(b, a):
        return "inside"
    if _nested(a, b) or _spread(a, b) > _TOUCHING:
        return None
    # Offset of the centres in units of the mean width and height; above 1 there is no overlap.
    x = (a[0] - b[0]) / ((a[2] + b[2]) / 2)
    y = (a[1] - b[1]) / ((a[3] + b[3]) / 2)
    if abs(x) > 1 and abs(y) <= _ALIGNED:
        return "beside"
    if abs(y) > 1 and abs(x) <= _ALIGNED:
        return "over" if y < 0 else "under"
    return None


def _direction(a: Box, b: Box) -> str | None:
    x, y = a[0] - b[0], a[1] - b[1]
    if _nested(a, b):
        return None
    if abs(x) > _DIRECTED * abs(y):
        return "left of" if x < 0 else "right of"
    if abs(y) > _DIRECTED * abs(x):
        return "above" if y < 0 else "below"
    return None
