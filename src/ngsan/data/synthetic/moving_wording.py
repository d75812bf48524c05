"""Captions of moving scenes: who does what, in varied wording."""

import random
from dataclasses import dataclass
from itertools import permutations, product

from ngsan.data.synthetic.actions import ACTIONS, actions
from ngsan.data.synthetic.moving import MovingScene
from ngsan.data.synthetic.scene import COLOURS, SHAPES

WORDINGS = {
    "approaches": (
        "the {a} approaches the {b}",
        "a {a} moves towards a {b}",
        "the {a} comes closer to the {b}",
    ),
    "leaves": (
        "the {a} leaves the {b}",
        "a {a} moves away from a {b}",
        "the {a} goes away from the {b}",
    ),
    "crosses to the right": (
        "the {a} crosses to the right of the {b}",
        "a {a} moves past a {b} from left to right",
    ),
    "crosses to the left": (
        "the {a} crosses to the left of the {b}",
        "a {a} moves past a {b} from right to left",
    ),
    "rises": ("the {a} rises next to the {b}", "a {a} goes up next to a {b}"),
    "falls": ("the {a} falls next to the {b}", "a {a} goes down next to a {b}"),
    "grows": ("the {a} grows next to the {b}", "a {a} gets bigger next to a {b}"),
    "shrinks": ("the {a} shrinks next to the {b}", "a {a} gets smaller next to a {b}"),
    "jumps": ("the {a} jumps next to the {b}", "a {a} jumps up and down next to a {b}"),
    "stands still": ("the {a} and the {b} stand still", "a {a} and a {b} do not move"),
}
"""How each action is said."""


@dataclass(frozen=True)
class Doing:
    """What a caption says: that `a` does something with regard to `b`."""

    a: str
    """Colour and shape of who acts."""

    action: str
    """One of `ACTIONS`."""

    b: str
    """Colour and shape of the other."""

    def worded(self, wording: str) -> str:
        """The claim as a caption."""
        return wording.format(a=self.a, b=self.b)

    def names_of(self, scene: MovingScene) -> bool:
        """Whether both things are in the scene."""
        return self.a != self.b and {self.a, self.b} <= {thing.name for thing in scene.things}

    def holds_in(self, scene: MovingScene) -> bool:
        """Whether the caption is true of the scene."""
        boxes = {thing.name: thing.boxes for thing in scene.things}
        return self.names_of(scene) and self.action in actions(boxes[self.a], boxes[self.b])


def true_doings(scene: MovingScene) -> list[Doing]:
    """Everything that is true of a scene."""
    return [
        Doing(a.name, action, b.name)
        for a, b in permutations(scene.things, 2)
        for action in sorted(actions(a.boxes, b.boxes), key=ACTIONS.index)
    ]


def sample_moving_captions(scene: MovingScene, rng: random.Random, count: int = 5) -> list[str]:
    """True captions of a moving scene: a claim is drawn, then its wording."""
    found = true_doings(scene)
    if not found:
        raise ValueError("no action word is true of this scene")
    drawn = [rng.choice(found) for _ in range(count)]
    return [doing.worded(rng.choice(WORDINGS[doing.action])) for doing in drawn]


def read_doing(caption: str) -> Doing | None:
    """What a caption claims, or None if it is not a sentence of this little language."""
    text = f" {caption} "
    names = sorted(
        (text.find(f" {name} "), name)
        for name in (f"{colour} {shape}" for colour, shape in product(COLOURS, SHAPES))
        if f" {name} " in text
    )
    if len(names) != 2:
        return None
    for action, wordings in WORDINGS.items():
        doing = Doing(names[0][1], action, names[1][1])
        if caption in {doing.worded(wording) for wording in wordings}:
            return doing
    return None


def all_moving_words() -> list[str]:
    """Every word that a caption may hold, sorted."""
    wordings = [wording for group in WORDINGS.values() for wording in group]
    text = " ".join((*wordings, *COLOURS, *SHAPES))
    return sorted({word for word in text.split() if "{" not in word})
