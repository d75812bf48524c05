"""How fast an exported model of regions writes captions with ONNX Runtime.

    python benchmarks/light.py FOLDER [--make] [--layers 3] [--regions 64] [--threads 1 2]

Random regions, beam 3, one image at a time. `--make` first writes an export in 8 bits of a
random NG-SAN whose captions never end, so that all have 20 words. Cold starts run in processes of
their own, which never import torch.
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

import ngsan

COLD = """
import sys, time
begun = time.perf_counter()
import numpy as np
import ngsan
captioner = ngsan.load(sys.argv[1])
opened = time.perf_counter()
width, regions = captioner.backend.config.feature_dim, int(sys.argv[2])
captioner.caption_regions(np.zeros((1, regions, width), "f4"), np.full((1, regions, 4), 0.5, "f4"))
assert "torch" not in sys.modules
print(opened - begun, time.perf_counter() - opened)
"""


def make(folder: Path, layers: int, feature_dim: int) -> None:
    """Writes an export of the paper's NG-SAN; its captions never end."""
    import torch

    from ngsan.config import CaptionerConfig
    from ngsan.export.write import export_model
    from ngsan.models import build_captioner
    from ngsan.models.checkpoint import save_model
    from ngsan.text.vocabulary import UNKNOWN, Vocabulary

    torch.manual_seed(0)
    config = CaptionerConfig(layers=layers, feature_dim=feature_dim)
    captioner = build_captioner(config)
    with torch.no_grad():
        captioner.decoder.output.bias[[0, -1]] = -1e4
    vocabulary = Vocabulary([*(f"word{number}" for number in range(9486)), UNKNOWN])
    model = folder.with_name(f"{folder.name}-model")
    save_model(model, captioner, config, {"vocabulary": vocabulary})
    export_model(model, folder, precision="int8")


def milliseconds(repeat: int, work: Callable[[], Any]) -> list[float]:
    """The times of some work, after two runs to warm up."""
    times = []
    for _ in range(repeat + 2):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return times[2:]


def cold(folder: Path, regions: int, repeat: int) -> dict[str, list[float]]:
    """From the start of Python to a caption, in a new process each time."""
    rows = []
    for _ in range(repeat):
        start = time.perf_counter()
        command = [sys.executable, "-c", COLD, str(folder), str(regions)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append([time.perf_counter() - start, *map(float, done.stdout.split())])
    names = ("process", "importing and opening", "first caption")
    columns = zip(*rows, strict=True)
    return {
        f"cold start: {name}, ms": [1000 * number for number in column]
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
    parser.add_argument("--cold", type=int, default=5, help="number of cold starts")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.make:
        make(options.export, options.layers, options.features)
    times = cold(options.export, options.regions, options.cold) if options.cold else {}
    random = np.random.default_rng(0)
    for threads in options.threads:
        captioner = ngsan.load(options.export, threads=threads)
        shape = (1, options.regions)
        images = (
            random.standard_normal((*shape, captioner.backend.config.feature_dim)).astype("f4"),
            (0.1 + 0.4 * random.random((*shape, 4))).astype("f4"),
        )
        work = functools.partial(captioner.caption_regions, *images)
        times[f"one image, beam 3, threads: {threads}, ms"] = milliseconds(options.repeat, work)
    found = {
        what: {"best": min(values), "median": statistics.median(values)}
        for what, values in times.items()
    }
    for what, figures in found.items():
        print(f"{what:50} best {figures['best']:8.1f}  median {figures['median']:8.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
