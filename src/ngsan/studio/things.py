"""The objects of a scene, as they come from a user, and what is true of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngsan.data.synthetic.relations import Box, family_of, relation
from ngsan.data.synthetic.scene import COLOURS, SHAPES
from ngsan.data.synthetic.wording import read_claim

SMALLEST = 0.001
"""Least width and height of a thing."""

MOST_THINGS = 8
"""Most things of a scene. Models have learned from fewer; see the card of the scene models."""


@dataclass(frozen=True)
class SceneThing:
    """One object; numbers are relative to the canvas, from 0 to 1, and y grows downwards."""

    shape: str
    """One of `ngsan.data.synthetic.SHAPES`."""

    colour: str
    """One of `ngsan.data.synthetic.COLOURS`."""

    x: float
    """Of its centre."""

    y: float
    """Of its centre."""

    width: float
    """Of its box."""

    height: float
    """Of its box."""

    def __post_init__(self) -> None:
        """Checks every value; raises a `ValueError` that names it."""
        for key, value, known in (
            ("shape", self.shape, SHAPES),
            ("colour", self.colour, COLOURS),
        ):
            if value not in known:
                raise ValueError(f"{key}: {value!r} is not one of {', '.join(known)}")
        for key, least in (("x", 0.0), ("y", 0.0), ("width", SMALLEST), ("height", SMALLEST)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{key}: {value!r} is not a number")
            if not least <= value <= 1:  # which NaN is not, either
                raise ValueError(f"{key}: {value!r} is not from {least:g} to 1")

    @property
    def name(self) -> str:
        """Colour and shape, as captions say them."""
        return f"{self.colour} {self.shape}"

    @property
    def box(self) -> Box:
        """`cxcywh` relative to the canvas."""
        return self.x, self.y, self.width, self.height


def check_things(things: Sequence[SceneThing]) -> None:
    """Raises a `ValueError` for too few or too many things."""
    if not 1 <= len(things) <= MOST_THINGS:
        raise ValueError(f"things: a scene has 1 to {MOST_THINGS} of them, not {len(things)}")


def is_true(caption: str, things: Sequence[SceneThing]) -> bool | None:
    """Whether a caption is true of a scene; None if it is no sentence of the scenes' language.

    Of several things of the same name it is enough that one pair of them stands so.
    """
    claim = read_claim(caption)
    if claim is None:
        return None
    family = family_of(claim.relation)
    return any(
        relation(a.box, b.box, family) == claim.relation
        for a in things
        for b in things
        if (a.name, b.name) == (claim.a, claim.b)
    )
