"""Moving scenes: two coloured shapes over some frames, of which one acts; actions and captions.

Every action but "jumps" and "stands still" has an opposite, which is true of the same frames in
reverse: no set of frames without their order can tell the two apart.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from ngsan.data.synthetic.scenes import COLOURS, SHAPES, Box, Scene, Thing, names_in, words_of

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
"""Each action in reverse."""

ACTIONS = tuple(OPPOSITES)

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
"""The caption templates of each action."""

FRAMES = 8
"""Default number of frames."""

_STILL = 0.02
_NEARER = 0.65
_ASIDE = 0.15
_CLIMB = 0.3
_UPRIGHT = 0.08
_JUMP = 0.15
_GROWTH = 1.4
_SLACK = 0.01
_TRIES = 10_000


def actions(a: Sequence[Box], b: Sequence[Box]) -> set[str]:
    """The actions that are true of `a` with regard to `b`.

    Args:
        a: The boxes of the thing that acts, frame by frame.
        b: Those of another thing, which must not move.

    Returns:
        A subset of `ACTIONS`, which may be empty.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"{len(a)} boxes of one thing and {len(b)} of another: pass one per frame")
    if _moves(b) or _changes(b):
        return set()
    if _moves(a):
        return set() if _changes(a) else _movements(a, b)
    if not _changes(a):
        return {"stands still"}
    sizes = [math.sqrt(box[2] * box[3]) for box in a]
    return _trend(sizes, "grows", "shrinks", sizes[-1] / sizes[0], _GROWTH)


def _movements(a: Sequence[Box], b: Sequence[Box]) -> set[str]:
    """The actions of a thing that moves and keeps its size."""
    found = set()
    apart = [math.hypot(p[0] - q[0], p[1] - q[1]) for p, q in zip(a, b, strict=True)]
    found |= _trend(apart, "leaves", "approaches", apart[-1] / max(apart[0], 1e-9), 1 / _NEARER)
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
        if abs(climb) <= _STILL and heights[0] - min(heights) >= _JUMP:
            found.add("jumps")
    return found


def _trend(numbers: Sequence[float], up: str, down: str, ratio: float, least: float) -> set[str]:
    """`up` or `down` if numbers change monotonically, by at least a ratio."""
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


@dataclass(frozen=True)
class Moving:
    """One thing and its box in every frame."""

    colour: str
    shape: str
    boxes: tuple[Box, ...]

    @property
    def name(self) -> str:
        """Colour and shape, as captions name it."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class MovingScene:
    """Things over time, all of different colour and shape."""

    things: tuple[Moving, ...]

    look: int = 0
    """Seed of the background and of the exact colours."""

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.things[0].boxes)

    def at(self, frame: int) -> Scene:
        """The scene in one frame."""
        return Scene(
            tuple(Thing(thing.colour, thing.shape, thing.boxes[frame]) for thing in self.things)
        )

    def select(self, places: Sequence[int]) -> "MovingScene":
        """Some of the frames."""
        things = tuple(
            replace(thing, boxes=tuple(thing.boxes[place] for place in places))
            for thing in self.things
        )
        return replace(self, things=things)

    def reversed(self) -> "MovingScene":
        """The same frames in reverse."""
        return self.select(range(self.frames)[::-1])


def sample_moving_scenes(
    count: int, *, frames: int = FRAMES, seed: int = 0
) -> Iterator[MovingScene]:
    """Makes moving scenes; scene i depends only on the seed and i."""
    for index in range(count):
        yield sample_moving_scene(random.Random(f"moving {seed}/{index}"), frames=frames)


def sample_moving_scene(rng: random.Random, *, frames: int = FRAMES) -> MovingScene:
    """Makes one moving scene of at least 3 frames: draws an action, and then its details.

    A scene is as likely as its reverse, so that only the order of frames tells opposite actions
    apart.
    """
    if frames < 3:
        raise ValueError(f"frames: {frames}: a moving scene has at least 3")
    action = rng.choice(ACTIONS)
    backwards = action not in _TRACKS
    forwards = OPPOSITES[action] if backwards else action
    for _ in range(_TRIES):
        actor, other = _TRACKS[forwards](rng, _progress(rng, frames))
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
    """From 0 to 1, with random start, end and acceleration."""
    begin, end = rng.uniform(0, 0.25), rng.uniform(0.75, 1)
    power = math.exp(rng.uniform(-0.4, 0.4))
    if rng.random() < 0.3:
        begin, end, power = 0.0, 1.0, 1.0
    times = (frame / (frames - 1) for frame in range(frames))
    return [min(1.0, max(0.0, (time - begin) / (end - begin))) ** power for time in times]


_Track = tuple[list[Box], Box]


def _approach(rng: random.Random, progress: list[float]) -> _Track:
    actor, other = _anywhere(rng), _anywhere(rng)
    near = rng.uniform(0.0, 0.25)
    goal = (other[0] + near * (actor[0] - other[0]), other[1] + near * (actor[1] - other[1]))
    # As far as the two do not touch.
    reach = max(
        (
            step / 50
            for step in range(51)
            if _apart(_between(actor, goal, step / 50), other, rng.uniform(1.0, 1.1))
        ),
        default=0.0,
    )
    return [_between(actor, goal, reach * share) for share in progress], other


def _cross(rng: random.Random, progress: list[float]) -> _Track:
    actor, other = _anywhere(rng), _anywhere(rng)
    start = (rng.uniform(0.1, 0.3), actor[1], *actor[2:])
    goal = (rng.uniform(0.7, 0.9), actor[1] + rng.uniform(-0.1, 0.1))
    return [_between(start, goal, share) for share in progress], other


def _rise(rng: random.Random, progress: list[float]) -> _Track:
    actor, other = _anywhere(rng), _anywhere(rng)
    goal = (actor[0] + rng.uniform(-0.04, 0.04), actor[1] - rng.uniform(0.35, 0.65))
    return [_between(actor, goal, share) for share in progress], other


def _grow(rng: random.Random, progress: list[float]) -> _Track:
    actor, ratio = _anywhere(rng), rng.uniform(1.6, 2.5)
    small, track = 1 / math.sqrt(ratio), []
    for share in progress:
        scale = small * ratio**share
        track.append((actor[0], actor[1], actor[2] * scale, actor[3] * scale))
    return track, _anywhere(rng)


def _jump(rng: random.Random, progress: list[float]) -> _Track:
    actor, height = _anywhere(rng), rng.uniform(0.22, 0.5)
    track = [
        (actor[0], actor[1] - height * 4 * share * (1 - share), *actor[2:]) for share in progress
    ]
    return track, _anywhere(rng)


def _stand(rng: random.Random, progress: list[float]) -> _Track:
    return [_anywhere(rng)] * len(progress), _anywhere(rng)


_TRACKS: dict[str, Callable[[random.Random, list[float]], _Track]] = {
    "approaches": _approach,
    "crosses to the right": _cross,
    "rises": _rise,
    "grows": _grow,
    "jumps": _jump,
    "stands still": _stand,
}
"""Makes the boxes of the actor and the box of the other; the other actions are reversed."""


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


@dataclass(frozen=True)
class Doing:
    """The content of a caption: `a` does something with regard to `b`, both by colour and shape."""

    a: str
    action: str
    b: str

    def worded(self, wording: str) -> str:
        """The claim as a caption."""
        return wording.format(a=self.a, b=self.b)

    def names_of(self, scene: MovingScene) -> bool:
        """Whether both things are in the scene."""
        return self.a != self.b and {self.a, self.b} <= {thing.name for thing in scene.things}

    def holds_in(self, scene: MovingScene) -> bool:
        """Whether the claim is true of the scene."""
        boxes = {thing.name: thing.boxes for thing in scene.things}
        return self.names_of(scene) and self.action in actions(boxes[self.a], boxes[self.b])


def true_doings(scene: MovingScene) -> list[Doing]:
    """All true claims about a scene."""
    return [
        Doing(a.name, action, b.name)
        for a, b in permutations(scene.things, 2)
        for action in sorted(actions(a.boxes, b.boxes), key=ACTIONS.index)
    ]


def sample_moving_captions(scene: MovingScene, rng: random.Random, count: int = 5) -> list[str]:
    """True captions of a moving scene: draws a claim, then its wording."""
    found = true_doings(scene)
    if not found:
        raise ValueError("no action word is true of this scene")
    drawn = [rng.choice(found) for _ in range(count)]
    return [doing.worded(rng.choice(WORDINGS[doing.action])) for doing in drawn]


def read_doing(caption: str) -> Doing | None:
    """The claim of a caption, or None if it follows no template."""
    names = names_in(caption)
    if len(names) != 2:
        return None
    for action, wordings in WORDINGS.items():
        doing = Doing(names[0], action, names[1])
        if caption in {doing.worded(wording) for wording in wordings}:
            return doing
    return None


def all_moving_words() -> list[str]:
    """All words of captions, sorted."""
    wordings = (wording for group in WORDINGS.values() for wording in group)
    return words_of((*wordings, *COLOURS, *SHAPES))
