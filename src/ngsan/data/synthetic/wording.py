"""Captions of scenes: one true relation of one pair of objects, in varied wording."""

import random
from dataclasses import dataclass
from itertools import permutations

from ngsan.data.synthetic.relations import FAMILIES, family_of, relation
from ngsan.data.synthetic.scene import COLOURS, SHAPES, Scene

TEMPLATES = (
    "a {a} {relation} a {b}",
    "the {a} {relation} the {b}",
    "one {a} is {relation} one {b}",
    "this {a} is {relation} that {b}",
    "see a {a} {relation} the {b}",
)


@dataclass(frozen=True)
class Claim:
    """What a caption says: that object `a` stands in a relation to object `b`.

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
        """Whether the caption is true of the scene."""
        boxes = {thing.name: thing.box for thing in scene.things}
        if not self.names_of(scene):
            return False
        return relation(boxes[self.a], boxes[self.b], family_of(self.relation)) == self.relation


def true_claims(scene: Scene) -> dict[str, list[Claim]]:
    """Everything that is true of a scene, by family of relation words."""
    claims: dict[str, list[Claim]] = {family: [] for family in FAMILIES}
    for a, b in permutations(scene.things, 2):
        for family in FAMILIES:
            word = relation(a.box, b.box, family)
            if word is not None:
                claims[family].append(Claim(a.name, word, b.name))
    return claims


def sample_captions(scene: Scene, rng: random.Random, count: int = 5) -> list[str]:
    """True captions of a scene: a family is drawn, then a claim of it, then its wording."""
    claims = [group for group in true_claims(scene).values() if group]
    if not claims:
        raise ValueError("no relation word is true of this scene")
    return [rng.choice(rng.choice(claims)).worded(rng.choice(TEMPLATES)) for _ in range(count)]


def read_claim(caption: str) -> Claim | None:
    """What a caption claims, or None if it is not a sentence of this little language."""
    text = f" {caption} "
    names = sorted(
        (text.find(f" {colour} {shape} "), f"{colour} {shape}")
        for colour in COLOURS
        for shape in SHAPES
        if f" {colour} {shape} " in text
    )
    words = [word for group in FAMILIES.values() for word in group if f" {word} " in text]
    if len(names) != 2 or len(words) != 1:
        return None
    claim = Claim(names[0][1], words[0], names[1][1])
    return claim if caption in {claim.worded(template) for template in TEMPLATES} else None


def all_words() -> list[str]:
    """Every word that a caption may hold, sorted."""
    relations = [word for group in FAMILIES.values() for word in group]
    text = " ".join((*TEMPLATES, *COLOURS, *SHAPES, *relations))
    return sorted({word for word in text.split() if "{" not in word})
