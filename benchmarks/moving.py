"""Makes the data of the shipped clip model, and measures how often its captions are true.

    python benchmarks/moving.py data --to DIR [--grid 4] [--train 4000]
    ngsan train moving-clips --data DIR -o RUN
    python benchmarks/moving.py score RUN [RUN ...]

`data` renders the built-in moving scenes, extracts features of every frame with the backbone of
the shipped photo model, in one thread, and writes a dataset folder. 5 of 8 frames of every scene
are used (4 in some training scenes), and every scene is included with its reverse. `score` captions
unseen scenes and compares each caption with the boxes: whether it names the two objects, and
whether it is true. As controls, the frames are shuffled, or one frame is repeated.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.data.store import Regions
from ngsan.data.synthetic.folders import sample_moving_splits, write_moving_folder
from ngsan.data.synthetic.moving import MovingScene, read_doing, true_doings
from ngsan.data.synthetic.render import render_moving
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.captioner import PHOTO_MODEL
from ngsan.predict.clips import FrameDescriber
from ngsan.vision.clips import FRAMES
from ngsan.vision.frames import evenly

SPLITS = ("train", "val", "test")
BATCH = 50

Array = NDArray[Any]


class FeatureExtractor:
    """Extracts features of scenes; the previous scene and its reverse are cached."""

    def __init__(self, grid: int) -> None:
        self.describer = FrameDescriber(OnnxBackend(PHOTO_MODEL, threads=1), grid)
        self._seen: tuple[MovingScene, Regions] | None = None

    def __call__(self, scene: MovingScene) -> Regions:
        """The grid features of all frames of a scene."""
        if self._seen is not None and scene.reversed() == self._seen[0]:
            seen = self._seen[1]
            frames = seen.features.reshape(scene.frames, -1, seen.features.shape[1])
            return Regions(frames[::-1].reshape(seen.features.shape), seen.boxes, None)
        described = self.describer.describe(render_moving(scene, self.describer.size))
        self._seen = scene, Regions(*described, None)
        return self._seen[1]


def sample(options: argparse.Namespace) -> dict[str, list[MovingScene]]:
    """The scenes of every split, each followed by its reverse."""
    sizes = {split: 2 * getattr(options, split) for split in SPLITS}
    rng = random.Random(options.seed)
    found: dict[str, list[MovingScene]] = {}
    for split, scenes in sample_moving_splits(sizes, seed=options.seed).items():
        found[split] = []
        for scene in scenes[::2]:
            count = rng.choice((FRAMES - 1, FRAMES, FRAMES)) if split == "train" else FRAMES
            short = scene.select(evenly(scene.frames, count))
            if true_doings(short):  # a jump may fall between the frames
                found[split] += [short, short.reversed()]
    return found


def make_data(options: argparse.Namespace, describe: Callable[[MovingScene], Regions]) -> None:
    """Writes the dataset folder."""
    write_moving_folder(
        options.to,
        sample(options),
        seed=options.seed,
        describe=describe,
        source=f"moving scenes through the photo model, grid {options.grid}",
    )


def score(options: argparse.Namespace) -> None:
    """Prints how often captions are true."""
    import ngsan
    from ngsan.models.checkpoint import load_model

    scenes = sample(options)[options.split]
    print("model\tframes\tnames\ttrue\tdirection")
    extracted: dict[int, list[Regions]] = {}
    for model in options.models:
        grid = load_model(model, "captioning")[1].frame_grid
        if grid not in extracted:
            describe = FeatureExtractor(grid)
            extracted[grid] = [describe(scene) for scene in scenes]
        captioner = ngsan.load(model)
        boxes = np.stack([np.asarray(extracted[grid][0].boxes)] * BATCH)
        for name, order in ORDERS.items():
            rng = np.random.default_rng(0)
            written = []
            for start in range(0, len(scenes), BATCH):
                some = [
                    order(np.float32(one.features).reshape(FRAMES, grid * grid, -1), rng)
                    for one in extracted[grid][start : start + BATCH]
                ]
                clips = np.stack(some).reshape(len(some), boxes.shape[1], -1)
                written += captioner.caption_regions(clips, boxes[: len(some)])
            print(f"{Path(model).name}\t{name}\t{scores(written, scenes)}", flush=True)
            if name == "forward":
                print(by_action(written, scenes))


def shuffled(features: Array, rng: np.random.Generator) -> Array:
    """The frames (frames, cells, width) in random order."""
    return rng.permutation(features)


def one_frame(features: Array, rng: np.random.Generator) -> Array:
    """One of the frames, repeated, with the features of a clip without change."""
    found = np.repeat(features[rng.integers(len(features))][None], len(features), 0)
    found[..., found.shape[-1] // 2 :] = 0
    return found


ORDERS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "forward": lambda features, rng: features,
    "reversed": lambda features, rng: features[::-1],
    "shuffled": shuffled,
    "one, repeated": one_frame,
}


def scores(captions: Sequence[str], scenes: Sequence[MovingScene]) -> str:
    """Percentages of captions that name both objects, that are true, and that are true in scenes
    which differ from their reverse.
    """  # noqa: D205
    claims = [read_doing(caption) for caption in captions]
    pairs = list(zip(claims, scenes, strict=True))
    names = [claim is not None and claim.names_of(scene) for claim, scene in pairs]
    true = [claim is not None and claim.holds_in(scene) for claim, scene in pairs]
    directed = [
        right
        for right, scene in zip(true, scenes, strict=True)
        if not set(true_doings(scene)) & set(true_doings(scene.reversed()))
    ]
    return "\t".join(f"{100 * np.mean(found):.1f}" for found in (names, true, directed))


def by_action(captions: Sequence[str], scenes: Sequence[MovingScene]) -> str:
    """The number of true captions, by the first action of the scene."""
    right, there = Counter[str](), Counter[str]()
    for caption, scene in zip(captions, scenes, strict=True):
        claim, action = read_doing(caption), true_doings(scene)[0].action
        there[action] += 1
        right[action] += claim is not None and claim.holds_in(scene)
    return "\n".join(f"  {name}: {right[name]} of {count}" for name, count in there.items())


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    data, scoring = commands.add_parser("data"), commands.add_parser("score")
    data.add_argument("--to", required=True)
    data.add_argument("--grid", type=int, default=4)
    scoring.add_argument("models", nargs="+")
    scoring.add_argument("--split", choices=SPLITS[1:], default="test")
    for one in (data, scoring):
        one.add_argument("--train", type=int, default=4000, help="scenes, before they are reversed")
        one.add_argument("--val", type=int, default=300)
        one.add_argument("--test", type=int, default=400)
        one.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.command == "data":
        make_data(options, FeatureExtractor(options.grid))
    else:
        score(options)


if __name__ == "__main__":
    main()
