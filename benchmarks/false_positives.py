"""How often the tests of the tables call equal models different, and what they can find.

    python benchmarks/false_positives.py --train docs/reproduction/toy-seeds --seeds 32
    python benchmarks/false_positives.py

The first trains one tiny captioner with many seeds on built-in scenes (seconds each on a CPU; the
same command resumes). The second reads the ledgers in docs/reproduction and prints, at the 5 %
level, the share of equal models that are called different:

- simulated: pairs of models with equal means, with the variances over seeds, images and the rest
  that each pair of rows has in its ledger;
- real: groups of seeds drawn from those of the tiny model.

"images" is a t-test over images alone, which the tables do not use. The last table shows the true
difference that the test over seeds finds in 80 %.
"""

import argparse
import itertools
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ngsan.__main__ import main as ngsan
from ngsan.data.synthetic.folders import sample_splits, scene_vocabulary, write_scene_folder
from ngsan.metrics.bootstrap import Floats
from ngsan.reproduce.ledger import LEDGER, WRITTEN, Entry, Ledger
from ngsan.reproduce.statistics import (
    MixedModel,
    detectable,
    paired_p,
    student_tail,
)

FOLDER = Path(__file__).parents[1] / "docs" / "reproduction"
TOY = FOLDER / "toy-seeds"
PAIRS = 2000
SMALL = [
    "--model.dim=32", "--model.heads=2", "--model.hidden_dim=64", "--cross_entropy.epochs=12",
    "--cross_entropy.batch_size=32", "--cross_entropy.label_smoothing=0.1",
    "--cross_entropy.weight_decay=0.01", "--cross_entropy.clip_grad_norm=1",
    "--cross_entropy.clip_grad_value=0", "--cross_entropy.schedule.shape=cosine",
    "--cross_entropy.schedule.peak_lr=0.0005", "--cross_entropy.schedule.warmup_epochs=0.5",
    "--runtime.device=cpu", "--runtime.threads=1",
]  # fmt: skip
SCENES = {"train": 600, "val": 50, "test": 300}


def train(folder: Path, seeds: int) -> None:
    """Adds the seeds of the tiny model that a ledger lacks, with their scores on the test split."""
    with tempfile.TemporaryDirectory() as place:
        data, runs = Path(place, "data"), Path(place, "runs")
        scenes = sample_splits(SCENES, min_objects=2, max_objects=2, seed=1)
        write_scene_folder(data, scenes, scene_vocabulary())
        runs.mkdir()
        if (folder / LEDGER).exists():
            shutil.copy(folder / LEDGER, runs)
        for number in range(1, seeds + 1):
            words = ["reproduce", "curve-cross-entropy", "--rows", "SAN, pre-norm"]
            words += ["--seeds", str(number)]
            if ngsan([*words, "--data", str(data), "--output", str(runs), *SMALL]):
                raise SystemExit(1)
            made, kept = Ledger(runs), Ledger(folder)
            for entry in made:
                if entry.key not in kept:
                    written = made.written(entry.key, "test").without_texts()
                    kept.add(entry, {"test": written})


def model_of(entry: Entry) -> str:
    """What makes two runs the same model: the phase, the configuration, and the boxes."""
    boxes = entry.settings.get("data", {}).get("boxes")
    return f"{entry.phase} {sorted(entry.model.items())} {boxes}"


def scores(ledger: Ledger, split: str) -> dict[str, dict[int, Floats]]:
    """(I,) the scores of each run with one score per image, by model and seed."""
    found: dict[str, dict[int, Floats]] = {}
    for entry in ledger:
        if not ledger.has_written(entry.key, split):
            continue
        written = ledger.written(entry.key, split)
        order = np.argsort(written.ids)
        counts = np.asarray(written.scores, float)[order]
        if counts.shape[1] == 1:
            found.setdefault(model_of(entry), {})[entry.seed] = counts[:, 0]
    return found


def pairs_of(runs: Mapping[str, Mapping[int, Floats]]) -> Iterator[Floats]:
    """(N, I) the differences of each pair of models with three common seeds."""
    for first, second in itertools.combinations(runs.values(), 2):
        seeds = sorted(first.keys() & second.keys())
        if len(seeds) > 2:
            yield np.stack([first[seed] - second[seed] for seed in seeds])


def variances(differences: Floats) -> tuple[float, float, float]:
    """The variances of the effects of seed and image, and of the rest."""
    seeds, images = differences.shape
    mean = differences.mean()
    by_seed = differences.mean(axis=1, keepdims=True) - mean
    by_image = differences.mean(axis=0) - mean
    rest = differences - mean - by_seed - by_image
    of_rest = float((rest**2).sum()) / (seeds - 1) / (images - 1)
    of_seed = float((by_seed**2).sum()) / (seeds - 1) - of_rest / images
    of_image = float((by_image**2).sum()) / (images - 1) - of_rest / seeds
    return max(of_seed, 0.0), max(of_image, 0.0), of_rest


def rejected(samples: Sequence[Floats]) -> tuple[float, float, float]:
    """The shares below 0.05 of the tests over seeds, seeds and images, and images alone."""
    found = []
    for differences in samples:
        by_image = differences.mean(axis=0)
        error = by_image.std(ddof=1) / math.sqrt(len(by_image))
        found.append(
            (
                paired_p(list(differences.mean(axis=1))),
                model.p if (model := MixedModel.fit(differences)) else 1.0,
                2 * student_tail(abs(by_image.mean()) / error, len(by_image) - 1),
            )
        )
    first, second, third = (np.array(found) < 0.05).mean(axis=0)
    return float(first), float(second), float(third)


def simulate(
    of: tuple[float, float, float], seeds: int, images: int, random: np.random.Generator
) -> list[Floats]:
    """(N, I) differences of pairs of equal models with given variances."""
    seed, image, rest = map(math.sqrt, of)
    return [
        random.normal(0, seed, (seeds, 1))
        + random.normal(0, image, images)
        + random.normal(0, rest, (seeds, images))
        for _ in range(PAIRS)
    ]


def report_simulated(random: np.random.Generator) -> None:
    """Prints the shares for simulated pairs."""
    print("\nsimulated pairs of equal models, by ledger: share with p < 0.05")
    print("| ledger | seeds | image variance / rest | seeds | seeds and images | images |")
    print("|---|---:|---:|---:|---:|---:|")
    for folder in sorted(path.parent for path in FOLDER.glob(f"*/{WRITTEN}")):
        if folder == TOY:
            continue
        for differences in itertools.islice(pairs_of(scores(Ledger(folder), "test")), 3):
            of, (seeds, images) = variances(differences), differences.shape
            shares = rejected(simulate(of, seeds, images, random))
            cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
            print(f"| {folder.name} | {seeds} | {of[1] / of[2]:.2f} | {cells} |", flush=True)


def report_real(folder: Path, random: np.random.Generator) -> None:
    """Prints the shares for groups of seeds of one model."""
    (runs,) = scores(Ledger(folder), "test").values()
    values = np.stack([runs[seed] for seed in sorted(runs)])  # (N, I)
    spread = values.mean(axis=1)
    print(f"\ntwo groups of {len(values)} seeds of one model (CIDEr {spread.mean():.1f}, standard")
    print(f"deviation over seeds {spread.std(ddof=1):.1f}): share with p < 0.05")
    print("| seeds in a group | seeds | seeds and images | images |")
    print("|---:|---:|---:|---:|")
    for seeds in (3, 4, 5, 6):
        samples = []
        for _ in range(PAIRS):
            chosen = random.permutation(len(values))[: 2 * seeds]
            samples.append(values[chosen[:seeds]] - values[chosen[seeds:]])
        cells = " | ".join(f"{100 * share:.1f} %" for share in rejected(samples))
        print(f"| {seeds} | {cells} |", flush=True)


def report_power() -> None:
    """Prints the differences found in 80 %, from the spread of all pairs of a ledger."""
    numbers = (3, 4, 5, 6, 8, 10)
    print("\ntrue difference of CIDEr found in 80 %, by the number of seeds")
    print("| ledger, split | deviation of the differences |", *(f"{n} |" for n in numbers))
    print("|---" * (2 + len(numbers)) + "|")
    for folder in sorted(path.parent for path in FOLDER.glob(f"*/{LEDGER}")):
        ledger = Ledger(folder)
        for split in ("test", "val"):
            runs: dict[str, dict[int, float]] = {}
            for entry in ledger:
                if "CIDEr" in entry.metrics.get(split, {}):
                    runs.setdefault(model_of(entry), {})[entry.seed] = entry.metrics[split]["CIDEr"]
            squares = [
                np.var([first[seed] - second[seed] for seed in common], ddof=1)
                for first, second in itertools.combinations(runs.values(), 2)
                if len(common := sorted(first.keys() & second.keys())) > 2
            ]
            if squares:
                deviation = math.sqrt(np.mean(squares))
                cells = " ".join(f"{detectable(deviation, n):.1f} |" for n in numbers)
                print(f"| {folder.name}, {split} | {deviation:.2f} | {cells}")


def main() -> None:
    """Trains the tiny model, or prints the rates."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", type=Path, metavar="DIR", help="train the tiny model's seeds")
    parser.add_argument("--seeds", type=int, default=32, help="the number of seeds to train")
    options = parser.parse_args()
    if options.train:
        train(options.train, options.seeds)
        return
    random = np.random.default_rng(0)
    report_simulated(random)
    report_real(TOY, random)
    report_power()


if __name__ == "__main__":
    main()
