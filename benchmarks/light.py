"""How fast an export writes captions without torch, and with it.

    python benchmarks/light.py FOLDER [--make] [--layers 3] [--regions 64] [--threads 1 2]

Random regions, beam 3, one image at a time. `--make` first writes an export in 8 bits of a
random NG-SAN whose captions never end, so that all have 20 words. Cold starts are processes of
their own, which never import torch; afterwards the captioner without torch and the predictor with
it take turns.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ngsan.light import LightCaptioner
from ngsan.light.search import Beam

COLD = """
import sys, time
begun = time.perf_counter()
import numpy as np
from ngsan.light import LightCaptioner
imported = time.perf_counter()
captioner = LightCaptioner.open(sys.argv[1])
opened = time.perf_counter()
width, regions = captioner.model.config.feature_dim, int(sys.argv[2])
captioner.caption(np.zeros((1, regions, width), "f4"), np.full((1, regions, 4), 0.5, "f4"))
assert "torch" not in sys.modules
print(imported - begun, opened - imported, time.perf_counter() - opened)
"""


def make(folder: Path, layers: int, feature_dim: int) -> None:
    """Writes an export of the paper's NG-SAN; its captions never end."""
    import torch

    from ngsan.config import CaptionerConfig
    from ngsan.export import export_captioner
    from ngsan.models import build_captioner
    from ngsan.models.saved_captioner import save_captioner
    from ngsan.text.vocabulary import UNKNOWN, Vocabulary

    torch.manual_seed(0)
    config = CaptionerConfig(layers=layers, feature_dim=feature_dim)
    captioner = build_captioner(config)
    with torch.no_grad():
        captioner.decoder.output.bias[[0, -1]] = -1e4
    vocabulary = Vocabulary([*(f"word{number}" for number in range(9486)), UNKNOWN])
    model = folder.with_name(f"{folder.name}-model")
    save_captioner(model, captioner, config, vocabulary)
    export_captioner(model, folder, precision="int8")


def milliseconds(repeat: int, **works: Callable[[], Any]) -> dict[str, dict[str, float]]:
    """The shortest and the median time of works that take turns, each after two for nothing."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeat + 2):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(1000 * (time.perf_counter() - start))
    return {
        name: {"best": min(found[2:]), "median": statistics.median(found[2:])}
        for name, found in times.items()
    }


class Remembered:
    """Logits of a caption that was written before, to time a search without its model."""

    def __init__(self, vocab_size: int, beam: int, longest: int) -> None:
        """Draws them."""
        self.images, self.vocab_size = 1, vocab_size
        random = np.random.default_rng(0)
        self._logits = random.standard_normal((longest, 1, beam, vocab_size)).astype("f4")
        self._logits[..., 0] = -1e4
        self._position = 0

    def first(self, captions: int) -> np.ndarray:
        """The first."""
        self._position = 0
        return self._logits[0]

    def step(self, words: np.ndarray, parents: np.ndarray) -> np.ndarray:
        """The next."""
        self._position += 1
        return self._logits[self._position]


def cold(folder: Path, regions: int, repeat: int) -> dict[str, dict[str, float]]:
    """From the start of Python to a caption, in a new process each time."""
    rows = []
    for _ in range(repeat):
        start = time.perf_counter()
        command = [sys.executable, "-c", COLD, str(folder), str(regions)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append([time.perf_counter() - start, *map(float, done.stdout.split())])
    names = ("process, ms", "imports, ms", "opening, ms", "first caption, ms")
    columns = [[1000 * number for number in column] for column in zip(*rows, strict=True)]
    return {
        f"cold start: {name}": {"best": min(column), "median": statistics.median(column)}
        for name, column in zip(names, columns, strict=True)
    }


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", type=Path, help="an export's folder")
    parser.add_argument("--make", action="store_true", help="write the export first")
    parser.add_argument("--layers", type=int, default=3, help="of the export that is written")
    parser.add_argument("--features", type=int, default=1280, help="their width, likewise")
    parser.add_argument("--regions", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--cold", type=int, default=5, help="how many cold starts")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.make:
        make(options.export, options.layers, options.features)
    found = cold(options.export, options.regions, options.cold) if options.cold else {}
    model = LightCaptioner.open(options.export).model
    search = Beam(Remembered(model.config.vocab_size, 3, 20))
    alone = milliseconds(options.repeat, search=search.run)["search"]
    found["search of 20 words without a model, ms"] = alone
    random = np.random.default_rng(0)
    shape = (1, options.regions)
    images = (
        random.standard_normal((*shape, model.config.feature_dim)).astype("f4"),
        (0.1 + 0.4 * random.random((*shape, 4))).astype("f4"),
    )
    import torch

    from ngsan.export import load

    for threads in options.threads:
        torch.set_num_threads(threads)
        light = LightCaptioner.open(options.export, threads=threads)
        heavy = load(options.export, threads=threads)
        works = {
            "without torch": functools.partial(light.caption, *images),
            "with torch": functools.partial(heavy.caption, *images),
        }
        for name, figures in milliseconds(options.repeat, **works).items():
            found[f"one image, beam 3, threads: {threads}, {name}, ms"] = figures
    for what, figures in found.items():
        print(f"{what:60} best {figures['best']:8.1f}  median {figures['median']:8.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
