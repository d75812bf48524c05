"""Scenes of coloured shapes, the relations in them, and their captions.

Relation words come in families. At most one word of a family holds for an ordered pair of boxes,
and none where the pair is a borderline case. Inside means that one box is in the other: a small
thing in the corner of a ball's box counts, as it would for a detector.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

Box = tuple[float, float, float, float]

FAMILIES: dict[str, tuple[str, ...]] = {
    "distance": ("near", "far from"),
    "size": ("bigger than", "smaller than"),
    "arrangement": ("beside", "over", "under", "inside"),
    "direction": ("left of", "right of", "above", "below"),
}
"""The relation words. Eq. 8 is enough for all but direction, and over against under."""

COLOURS = ("red", "green", "blue", "yellow", "purple", "black")
SHAPES = ("ball", "box", "triangle", "diamond", "star", "ring")

TEMPLATES = (
    "a {a} {relation} a {b}",
    "the {a} {relation} the {b}",
    "one {a} is {relation} one {b}",
    "this {a} is {relation} that {b}",
    "see a {a} {relation} the {b}",
)

_NEAR, _FAR = 1.6, 2.6
_BIGGER = 1.4
_ALIGNED = 0.25
_TOUCHING = 2.0
_DIRECTED = 1.5
_PLACINGS = ("anywhere", "beside", "stacked", "inside")
_TRIES = 50


def relation(a: Box, b: Box, family: str) -> str | None:
    """The word of a family, a key of `FAMILIES`, that holds for `a` with regard to `b`, or None."""
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
    """Whether one box is completely inside another."""
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
    # Offset of the centres in units of the mean width and height; above 1 they do not overlap.
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
        """Colour and shape, as captions name it."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """Objects on a canvas, all of different colour and shape."""

    things: tuple[Thing, ...]


def sample_scenes(
    count: int, *, min_objects: int = 3, max_objects: int = 4, seed: int = 0
) -> Iterator[Scene]:
    """Makes scenes; scene i depends only on the seed and i."""
    for index in range(count):
        yield sample_scene(
            random.Random(f"{seed}/{index}"), min_objects=min_objects, max_objects=max_objects
        )


def sample_scene(rng: random.Random, *, min_objects: int = 3, max_objects: int = 4) -> Scene:
    """Makes one scene, of 6 objects at most.

    A scene is as likely as its mirror image, so that only signed geometry can tell directions.
    """
    if not 2 <= min_objects <= max_objects <= len(COLOURS):
        raise ValueError(
            f"a scene has 2 to {len(COLOURS)} objects, not {min_objects} to {max_objects}"
        )
    count = rng.randint(min_objects, max_objects)
    boxes = _place(rng, count)
    while not _has_relation(boxes):
        boxes = _place(rng, count)
    looks = zip(rng.sample(COLOURS, count), rng.sample(SHAPES, count), boxes, strict=True)
    things = [Thing(colour, shape, box) for colour, shape, box in looks]
    rng.shuffle(things)
    return Scene(tuple(things))


def _has_relation(boxes: list[Box]) -> bool:
    return any(relation(a, b, family) for a, b in permutations(boxes, 2) for family in FAMILIES)


def _place(rng: random.Random, count: int) -> list[Box]:
    """Boxes that overlap only where one is inside another; empty if there was no room."""
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


@dataclass(frozen=True)
class Claim:
    """The content of a caption: object `a` has a relation to object `b`.

    Attributes:
        a: Colour and shape.
        relation: A relation word.
        b: Colour and shape.
    """

    a: str
    relation: str
    b: str

    def worded(self, template: str) -> str:
        """The claim as a caption."""
        return template.format(a=self.a, relation=self.relation, b=self.b)

    def names_of(self, scene: Scene) -> bool:
        """Whether both objects are in the scene."""
        names = {thing.name for thing in scene.things}
        return self.a != self.b and {self.a, self.b} <= names

    def holds_in(self, scene: Scene) -> bool:
        """Whether the claim is true of the scene."""
        boxes = {thing.name: thing.box for thing in scene.things}
        if not self.names_of(scene):
            return False
        return relation(boxes[self.a], boxes[self.b], family_of(self.relation)) == self.relation


def true_claims(scene: Scene) -> dict[str, list[Claim]]:
    """All true claims about a scene, by family of relation words."""
    claims: dict[str, list[Claim]] = {family: [] for family in FAMILIES}
    for a, b in permutations(scene.things, 2):
        for family in FAMILIES:
            word = relation(a.box, b.box, family)
            if word is not None:
                claims[family].append(Claim(a.name, word, b.name))
    return claims


def sample_captions(scene: Scene, rng: random.Random, count: int = 5) -> list[str]:
    """True captions of a scene: draws a family, then a claim of it, then a template."""
    claims = [group for group in true_claims(scene).values() if group]
    if not claims:
        raise ValueError("no relation word is true of this scene")
    return [rng.choice(rng.choice(claims)).worded(rng.choice(TEMPLATES)) for _ in range(count)]


def read_claim(caption: str) -> Claim | None:
    """The claim of a caption, or None if it follows no template."""
    names = names_in(caption)
    words = [word for group in FAMILIES.values() for word in group if f" {word} " in f" {caption} "]
    if len(names) != 2 or len(words) != 1:
        return None
    claim = Claim(names[0], words[0], names[1])
    return claim if caption in {claim.worded(template) for template in TEMPLATES} else None


def names_in(caption: str) -> list[str]:
    """The things that a caption names, in their order."""
    text = f" {caption} "
    names = (f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
    return sorted(
        (name for name in names if f" {name} " in text), key=lambda n: text.find(f" {n} ")
    )


def all_words() -> list[str]:
    """All words of captions, sorted."""
    relations = [word for group in FAMILIES.values() for word in group]
    return words_of((*TEMPLATES, *COLOURS, *SHAPES, *relations))


def words_of(texts: tuple[str, ...]) -> list[str]:
    """The words of texts or templates, sorted."""
    return sorted({word for word in " ".join(texts).split() if "{" not in word})
