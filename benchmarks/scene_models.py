"""Makes the scene models that ship: trains, packs and scores them.

    python benchmarks/scene_models.py --runs runs/studio --to src/ngsan/shipped/scenes

The recipe is src/ngsan/recipes/studio-scenes.yaml. The models differ in their norm, their geometry
and the length of their training. A finished run is not repeated.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load_file

from ngsan.__main__ import main as ngsan
from ngsan.config import TrainConfig, read_yaml
from ngsan.data.synthetic.folders import look_codes, scene_vocabulary, scenes_to_batch
from ngsan.data.synthetic.scenes import COLOURS, FAMILIES, SHAPES, read_claim, sample_scenes
from ngsan.models import CaptionerModel
from ngsan.models.checkpoint import load_model, save_model
from ngsan.predict.captioner import Captioner
from ngsan.predict.probe import balanced_accuracy, choose_relations

CONFIG = Path(__file__).parents[1] / "src" / "ngsan" / "recipes" / "studio-scenes.yaml"

NORM, UNSIGNED = {"model.norm": "none"}, {"model.signed_geometry": "false"}
EARLY = {"cross_entropy.epochs": "2"}
"""For models that can only learn which objects there are."""

MIDDLE = {"cross_entropy.epochs": "5"}
"""For models that cannot learn the side, which is learned late."""

MODELS = {
    "san": {**EARLY, **UNSIGNED, **NORM, "model.geometry": "none"},
    "n-san": {**EARLY, **UNSIGNED, "model.geometry": "none"},
    "g-san": {**MIDDLE, **UNSIGNED, **NORM},
    "ng-san": {**MIDDLE, **UNSIGNED},
    "g-san-signed": NORM,
    "ng-san-signed": {},
    "g-san-ci": {**MIDDLE, **UNSIGNED, **NORM, "model.geometry": "content-independent"},
}
"""What each model changes in the recipe."""

WORDS = ("names", "true", *FAMILIES)
"""What is scored: captions that name what is there and true ones, and by family how often the true
word is chosen among all."""

UNSEEN_SEED = 5_000_011
"""Differs from the seeds of training and of the run's validation."""

UNSEEN = 1000
"""Number of test scenes."""


def make(name: str, runs: Path, to: Path) -> None:
    """Trains a model, unless it exists, and packs it.

    The last weights are kept: CIDEr, by which a run chooses its best epoch, compares a caption with
    five of the many that are true of a scene, and does not show which epoch is best.
    """
    recipe, changes = read_yaml(TrainConfig, CONFIG), MODELS[name]
    assert recipe.data.scenes is not None
    epochs = int(changes.get("cross_entropy.epochs", recipe.cross_entropy.epochs))
    steps = epochs * math.ceil(recipe.data.scenes.train / recipe.cross_entropy.batch_size)
    run = runs / name
    last = run / "training" / f"step-{steps:08d}" / "weights.safetensors"
    if not last.exists():
        keys = [part for key, value in changes.items() for part in (f"--{key}", value)]
        again = ["--resume"] if run.exists() else []
        if ngsan(["train", "--config", str(CONFIG), *keys, "--output", str(run), *again]):
            raise SystemExit(f"{name}: training failed")
    captioner, config, companions = load_model(run, "captioning")
    vocabulary = companions["vocabulary"]
    captioner.load_state_dict(load_file(last))
    found = {
        words: round(number, 1)
        for words, number in zip(WORDS, score(captioner, (2, 3)), strict=True)
    }
    whole = read_yaml(TrainConfig, run / "config.yaml")
    save_model(
        run / "last", captioner, config, {"vocabulary": vocabulary}, run=whole, metrics=found
    )
    if ngsan(["pack", str(run / "last"), "--to", str(to / name)]):
        raise SystemExit(f"{name}: packing failed")


def score(captioner: CaptionerModel, things: tuple[int, int]) -> Iterator[float]:
    """The scores named in `WORDS`, in percent, on test scenes with the given number of objects."""
    vocabulary = scene_vocabulary()
    scenes = list(
        sample_scenes(UNSEEN, min_objects=things[0], max_objects=things[1], seed=UNSEEN_SEED)
    )
    batch = scenes_to_batch(scenes, vocabulary, seed=UNSEEN_SEED)
    generated = Captioner.from_model(captioner, vocabulary).caption_regions(
        batch.features, batch.boxes, batch.mask
    )
    claims = [
        (read_claim(caption), scene) for caption, scene in zip(generated, scenes, strict=True)
    ]
    yield 100 * sum(c is not None and c.names_of(s) for c, s in claims) / len(claims)
    yield 100 * sum(c is not None and c.holds_in(s) for c, s in claims) / len(claims)
    for family in FAMILIES:
        answers = choose_relations(captioner, scenes, batch, vocabulary, family)
        yield 100 * balanced_accuracy(answers)


def write_looks(path: Path) -> None:
    """Writes the codes of which the features of a scene's regions are made."""
    rows = [[round(number, 7) for number in row] for row in look_codes().tolist()]
    found = {
        "colours": dict(zip(COLOURS, rows, strict=False)),
        "shapes": dict(zip(SHAPES, rows[len(COLOURS) :], strict=False)),
        "canvas": rows[-1],
    }
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")


def main() -> None:
    """Reads the command line, makes the models, and prints the card's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/studio"), help="runs to keep")
    parser.add_argument("--to", type=Path, required=True, help="where the packed models go")
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args()
    for name in options.only:
        make(name, options.runs, options.to)
    write_looks(options.to / "looks.json")
    print(f"| | things | {' | '.join(WORDS)} |\n|{'---|' * (len(WORDS) + 2)}")
    for name in options.only:
        captioner, _, _ = load_model(options.to / name, "captioning")
        for things in (2, 3, 4):
            numbers = (f"{number:.0f}" for number in score(captioner, (things, things)))
            print(f"| {name} | {things} | {' | '.join(numbers)} |", flush=True)


if __name__ == "__main__":
    main()
