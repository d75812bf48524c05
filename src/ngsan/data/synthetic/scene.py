"""Scenes of coloured shapes on a square canvas, made from a seed.

Boxes are `cxcywh` relative to the canvas; y grows downwards, as in pictures.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from ngsan.data.synthetic.relations import FAMILIES, Box, contains, relation

COLOURS = ("red", "green", "blue", "yellow", "purple", "black")
SHAPES = ("ball", "box", "triangle", "diamond", "star", "ring")

_PLACINGS = ("anywhere", "beside", "stacked", "inside")
_TRIES = 50


@dataclass(frozen=True)
class Thing:
    """One object of a scene.

    Attributes:
        colour: One of `COLOURS`.
        shape: One of `SHAPES`.
        box: `cxcywh` relative to the canvas.
    """

    colour: str
    shape: str
    box: Box

    @property
    def name(self) -> str:
        """Colour and shape, as captions say them."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """Objects on a canvas, no two of them alike in colour or in shape."""

    things: tuple[Thing, ...]


def sample_scenes(count: int, *, fewest: int = 3, most: int = 4, seed: int = 0) -> Iterator[Scene]:
    """Makes scenes; a seed and an index decide a scene, whatever the count.

    Args:
        count: How many.
        fewest: Fewest objects in a scene.
        most: Most objects in a scene.
        seed: Seed of the whole series.
    """
    for index in range(count):
        yield sample_scene(random.Random(f"{seed}/{index}"), fewest=fewest, most=most)


def sample_scene(rng: random.Random, *, fewest: int = 3, most: int = 4) -> Scene:
    """Makes one scene.

    Directions are drawn evenly, so that nothing but signed geometry can tell them: a scene is as
    likely as its mirror image.

    Args:
        rng: Where chance comes from.
        fewest: Fewest objects.
        most: Most objects, at most 6, as there are colours and shapes.
    """
    if not 2 <= fewest <= most <= len(COLOURS):
        raise ValueError(f"a scene has 2 to {len(COLOURS)} objects, not {fewest} to {most}")
    count = rng.randint(fewest, most)
    boxes = _place(rng, count)
    while not _tells(boxes):
        boxes = _place(rng, count)
    looks = zip(rng.sample(COLOURS, count), rng.sample(SHAPES, count), boxes, strict=True)
    things = [Thing(colour, shape, box) for colour, shape, box in looks]
    rng.shuffle(things)
    return Scene(tuple(things))


def _tells(boxes: list[Box]) -> bool:
    """Whether some relation word is true of some pair."""
    return any(relation(a, b, family) for a, b in permutations(boxes, 2) for family in FAMILIES)


def _place(rng: random.Random, count: int) -> list[Box]:
    """Boxes that overlap only where one lies inside another; none if room ran out."""
    boxes = [_anywhere(rng)]
    for _ in range(_TRIES * count):
        if len(boxes) == count:
            return boxes
        box = _near(rng, rng.choice(boxes), rng.choice(_PLACINGS))
        if _on_canvas(box) and all(
            _apart(box, b) or contains(b, box) or contains(box, b) for b in boxes
        ):
            boxes.append(box)
    return boxes if len(boxes) == count else []


def _anywhere(rng: random.Random) -> Box:
    size = 0.08 * 5.0 ** rng.random()
    width, height = size * rng.uniform(0.9, 1.1), size * rng.uniform(0.9, 1.1)
    centre = [rng.uniform(side / 2, 1 - side / 2) for side in (width, height)]
    return centre[0], centre[1], width, height


def _near(rng: random.Random, anchor: Box, placing: str) -> Box:
    """A box placed with regard to another."""
    box = _anywhere(rng)
    if placing == "anywhere":
        return box
    x, y, width, height = anchor
    if placing == "inside":
        scale = rng.uniform(0.2, 0.5)
        inner = (width * scale, height * scale)
        slack = [(outer - side) / 2 for outer, side in zip((width, height), inner, strict=True)]
        centre = (x + rng.uniform(-1, 1) * slack[0], y + rng.uniform(-1, 1) * slack[1])
        return *centre, *inner
    along = rng.choice((-1, 1)) * rng.uniform(1.1, 1.5)
    across = rng.uniform(-0.15, 0.15)
    wide, high = (width + box[2]) / 2, (height + box[3]) / 2
    if placing == "beside":
        return x + along * wide, y + across * high, box[2], box[3]
    return x + across * wide, y + along * high, box[2], box[3]


def _on_canvas(box: Box) -> bool:
    x, y, width, height = box
    inside = width / 2 <= x <= 1 - width / 2 and height / 2 <= y <= 1 - height / 2
    return inside and min(width, height) >= 0.03


def _apart(a: Box, b: Box) -> bool:
    return abs(a[0] - b[0]) > (a[2] + b[2]) / 2 or abs(a[1] - b[1]) > (a[3] + b[3]) / 2
