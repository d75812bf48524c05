"""Moving scenes: two coloured shapes over some frames, of which one acts, made from a seed.

Boxes are `cxcywh` relative to the canvas; y grows downwards, as in pictures.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ngsan.data.synthetic.actions import ACTIONS, OPPOSITES, actions
from ngsan.data.synthetic.relations import Box
from ngsan.data.synthetic.scene import COLOURS, SHAPES, Scene, Thing

FRAMES = 8
"""Frames of a moving scene, unless told otherwise."""

_TRIES = 10_000


@dataclass(frozen=True)
class Moving:
    """One thing and where it is in every frame."""

    colour: str
    """One of `COLOURS`."""

    shape: str
    """One of `SHAPES`."""

    boxes: tuple[Box, ...]
    """`cxcywh` relative to the canvas, one a frame."""

    @property
    def name(self) -> str:
        """Colour and shape, as captions say them."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class MovingScene:
    """Things over time, no two of them alike in colour or in shape."""

    things: tuple[Moving, ...]
    """Those that move and those that do not, in any order."""

    look: int = 0
    """Seed of the background and of the exact colours."""

    @property
    def frames(self) -> int:
        """How many frames there are."""
        return len(self.things[0].boxes)

    def at(self, frame: int) -> Scene:
        """The scene in one frame."""
        return Scene(
            tuple(Thing(thing.colour, thing.shape, thing.boxes[frame]) for thing in self.things)
        )

    def reversed(self) -> "MovingScene":
        """The same frames in reverse."""
        things = tuple(replace(thing, boxes=thing.boxes[::-1]) for thing in self.things)
        return replace(self, things=things)

    def thinned(self, places: Sequence[int]) -> "MovingScene":
        """Some of the frames."""
        things = tuple(
            replace(thing, boxes=tuple(thing.boxes[place] for place in places))
            for thing in self.things
        )
        return replace(self, things=things)


def sample_moving_scenes(
    count: int, *, frames: int = FRAMES, seed: int = 0
) -> Iterator[MovingScene]:
    """Makes moving scenes; a seed and an index decide one, whatever the count.

    Args:
        count: How many.
        frames: Frames of each.
        seed: Seed of the whole series.
    """
    for index in range(count):
        yield sample_moving_scene(random.Random(f"moving {seed}/{index}"), frames=frames)


def sample_moving_scene(rng: random.Random, *, frames: int = FRAMES) -> MovingScene:
    """Makes one moving scene: an action is drawn, and then how it is done.

    A scene is as likely as the same in reverse, so that only the order of frames tells which of
    two opposite actions it shows.

    Args:
        rng: Where chance comes from.
        frames: At least 3, as a jump needs.
    """
    if frames < 3:
        raise ValueError(f"frames: {frames}: a moving scene has at least 3")
    action = rng.choice(ACTIONS)
    backwards = action not in _WAYS
    forwards = OPPOSITES[action] if backwards else action
    for _ in range(_TRIES):
        actor, other = _WAYS[forwards](rng, _progress(rng, frames))
        boxes = (actor, [other] * frames)
        if not all(map(_on_canvas, (*actor, other))) or not all(_apart(p, other) for p in actor):
            continue
        if forwards in actions(*boxes):
            break
    else:
        raise RuntimeError(f"no scene was found in which something {action}")
    looks = zip(rng.sample(COLOURS, 2), rng.sample(SHAPES, 2), boxes, strict=True)
    things = [Moving(colour, shape, tuple(track)) for colour, shape, track in looks]
    rng.shuffle(things)
    scene = MovingScene(tuple(things), look=rng.getrandbits(32))
    return scene.reversed() if backwards else scene


def _progress(rng: random.Random, frames: int) -> list[float]:
    """From 0 to 1: when an action begins and ends, and whether it is fast at first or later."""
    begin, end = rng.uniform(0, 0.25), rng.uniform(0.75, 1)
    power = math.exp(rng.uniform(-0.4, 0.4))
    if rng.random() < 0.3:
        begin, end, power = 0.0, 1.0, 1.0
    times = (frame / (frames - 1) for frame in range(frames))
    return [min(1.0, max(0.0, (time - begin) / (end - begin))) ** power for time in times]


_Made = tuple[list[Box], Box]


def _approach(rng: random.Random, progress: list[float]) -> _Made:
    actor, other = _anywhere(rng), _anywhere(rng)
    near = rng.uniform(0.0, 0.25)
    goal = (other[0] + near * (actor[0] - other[0]), other[1] + near * (actor[1] - other[1]))
    # As far on the way as the two do not touch.
    reach = max(
        (
            step / 50
            for step in range(51)
            if _apart(_between(actor, goal, step / 50), other, rng.uniform(1.0, 1.1))
        ),
        default=0.0,
    )
    return [_between(actor, goal, reach * share) for share in progress], other


def _cross(rng: random.Random, progress: list[float]) -> _Made:
    actor, other = _anywhere(rng), _anywhere(rng)
    start = (rng.uniform(0.1, 0.3), actor[1], *actor[2:])
    goal = (rng.uniform(0.7, 0.9), actor[1] + rng.uniform(-0.1, 0.1))
    return [_between(start, goal, share) for share in progress], other


def _rise(rng: random.Random, progress: list[float]) -> _Made:
    actor, other = _anywhere(rng), _anywhere(rng)
    goal = (actor[0] + rng.uniform(-0.04, 0.04), actor[1] - rng.uniform(0.35, 0.65))
    return [_between(actor, goal, share) for share in progress], other


def _grow(rng: random.Random, progress: list[float]) -> _Made:
    actor, ratio = _anywhere(rng), rng.uniform(1.6, 2.5)
    small, track = 1 / math.sqrt(ratio), []
    for share in progress:
        scale = small * ratio**share
        track.append((actor[0], actor[1], actor[2] * scale, actor[3] * scale))
    return track, _anywhere(rng)


def _jump(rng: random.Random, progress: list[float]) -> _Made:
    actor, height = _anywhere(rng), rng.uniform(0.22, 0.5)
    track = [
        (actor[0], actor[1] - height * 4 * share * (1 - share), *actor[2:]) for share in progress
    ]
    return track, _anywhere(rng)


def _stand(rng: random.Random, progress: list[float]) -> _Made:
    return [_anywhere(rng)] * len(progress), _anywhere(rng)


_WAYS: dict[str, Callable[[random.Random, list[float]], _Made]] = {
    "approaches": _approach,
    "crosses to the right": _cross,
    "rises": _rise,
    "grows": _grow,
    "jumps": _jump,
    "stands still": _stand,
}
"""Makes the boxes of the actor and the box of the other, by action; the rest are reversed."""


def _anywhere(rng: random.Random) -> Box:
    size = rng.uniform(0.16, 0.3)
    width, height = size * rng.uniform(0.9, 1.1), size * rng.uniform(0.9, 1.1)
    x, y = (rng.uniform(side / 2, 1 - side / 2) for side in (width, height))
    return x, y, width, height


def _between(box: Box, goal: tuple[float, float], share: float) -> Box:
    x, y, width, height = box
    return x + share * (goal[0] - x), y + share * (goal[1] - y), width, height


def _on_canvas(box: Box) -> bool:
    x, y, width, height = box
    return width / 2 <= x <= 1 - width / 2 and height / 2 <= y <= 1 - height / 2


def _apart(a: Box, b: Box, margin: float = 1.0) -> bool:
    wide, high = margin * (a[2] + b[2]) / 2, margin * (a[3] + b[3]) / 2
    return abs(a[0] - b[0]) > wide or abs(a[1] - b[1]) > high
