"""Measures how fast a photo model captions without torch, and the memory that it needs.

    python benchmarks/photo.py --model DIR --images FOLDER [--threads 2] [--original MODEL]
    python benchmarks/photo.py --model DIR --images FOLDER --baseline CHECKOUT

Times include reading, decoding and resizing of files; beam 3. Every figure is measured in its own
processes, which never import torch: cold starts from the start of Python to the first caption; one
photograph after the other, with the parts of the time; and the folder in batches. With
`--original`, captions of the packed model are compared with those of the original in PyTorch.

With `--baseline`, another checkout of this repository captions the same photographs with the model
that ships with it, by its own copy of this program. The two take turns: a busy machine slows both.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

_ROUNDS = 5
"""Turns with the baseline."""

PARTS = ("read", "backbone", "encoder and words")

Figures = dict[str, Any]


def read(paths: list[Path], size: int) -> Any:
    """(B, size, size, 3) the pixels of files."""
    import numpy as np

    from ngsan.vision.decoding import shared_service

    service = shared_service()
    return np.stack([service.squares(path, (size,)).squares[0] for path in paths])


def opened(options: argparse.Namespace) -> Any:
    """The captioner."""
    import ngsan

    return ngsan.load(options.model, threads=options.threads)


def cold(options: argparse.Namespace, paths: list[Path]) -> Figures:
    """The first caption of a new process; whoever started it takes the time."""
    captioner = opened(options)
    (caption,) = captioner.caption_pixels(read(paths[:1], captioner.image_size))
    return {"caption": caption.text}


def single(options: argparse.Namespace, paths: list[Path]) -> Figures:
    """One photograph after the other."""
    captioner = opened(options)
    model, rows, words = captioner.backend, [], 0
    for path in [*paths[:3], *paths]:  # the first three to warm up
        times = [time.perf_counter()]
        images = read([path], captioner.image_size)
        times.append(time.perf_counter())
        features, boxes = model.describe(images)
        times.append(time.perf_counter())
        (caption,) = captioner.caption_regions(features, boxes)
        times.append(time.perf_counter())
        words += len(caption.words)
        rows.append([1000 * (end - start) for start, end in pairwise(times)])
    rows = rows[3:]
    whole = sorted(sum(row) for row in rows)
    columns = zip(PARTS, zip(*rows, strict=True), strict=True)
    return {
        "photographs": len(rows),
        "words a caption": words / (len(rows) + 3),
        "ms, median": statistics.median(whole),
        "ms, 95 of 100 below": whole[int(0.95 * (len(whole) - 1))],
        **{f"ms of it: {name}": statistics.median(column) for name, column in columns},
    }


def batches(options: argparse.Namespace, paths: list[Path]) -> Figures:
    """The whole folder."""
    captioner = opened(options)
    size, count = captioner.image_size, options.batch
    captioner.caption_pixels(read(paths[:count], size))
    start = time.perf_counter()
    for first in range(0, len(paths), count):
        images = read(paths[first : first + count], size)
        captioner.caption_pixels(images)
    return {"batch": count, "images a second": len(paths) / (time.perf_counter() - start)}


def compare(options: argparse.Namespace, paths: list[Path]) -> Figures:
    """Features and captions of PyTorch, before and after packing, and of ONNX Runtime."""
    import torch

    from ngsan.models.checkpoint import load_model
    from ngsan.predict.captioner import Captioner

    light = opened(options)
    before, after = (
        load_model(folder, "captioning")[0] for folder in (options.original, options.model)
    )
    captioners = [Captioner.from_model(one, light.vocabulary) for one in (before, after)]
    names, errors, sizes = ("before", "after", "ONNX"), 0.0, 0.0
    captions_by_name: dict[str, list[str]] = {name: [] for name in names}
    for first in range(0, len(paths), options.batch):
        pixels = read(paths[first : first + options.batch], light.image_size)
        regions = light.backend.describe(pixels)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        written = [one.caption_pixels(pixels) for one in (*captioners, light)]
        for name, captions in zip(names, written, strict=True):
            captions_by_name[name] += captions
        with torch.inference_mode():
            features = before.encoder.backbone(images)
        errors += (torch.from_numpy(regions[0]) - features).square().sum().item()
        sizes += features.square().sum().item()
    pairs = {
        "before and after packing": (0, 1),
        "before and ONNX": (0, 2),
        "after and ONNX": (1, 2),
    }
    return {
        "photographs": len(paths),
        "difference of features, %": 100 * (errors / sizes) ** 0.5,
        **{
            f"equal captions, {what}": sum(
                one == other
                for one, other in zip(
                    captions_by_name[names[a]], captions_by_name[names[b]], strict=True
                )
            )
            for what, (a, b) in pairs.items()
        },
    }


WORKS = {"cold": cold, "single": single, "batches": batches, "compare": compare}


def work(options: argparse.Namespace) -> None:
    """Does one of the works in this process, and prints its figures and the memory it took."""
    paths = sorted(path for path in options.images.iterdir() if path.suffix == ".jpg")
    found = WORKS[options.work](options, paths)
    assert "torch" not in sys.modules or options.work == "compare"
    found["MB, peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def in_new_process(name: str, *more: str, checkout: Path | None = None) -> tuple[float, Figures]:
    """Seconds and figures of a work, with further arguments; by another checkout if given."""
    start = time.perf_counter()
    script, environment = Path(__file__), dict(os.environ)
    arguments = sys.argv[1:]
    if checkout is not None:
        place = arguments.index("--baseline")  # which its program need not know
        arguments = arguments[:place] + arguments[place + 2 :]
        script, environment["PYTHONPATH"] = checkout / "benchmarks/photo.py", str(checkout / "src")
    command = [sys.executable, str(script), *arguments, "--work", name, *more]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return time.perf_counter() - start, json.loads(done.stdout)


def against(options: argparse.Namespace) -> Figures:
    """How many times as many photographs as a baseline."""
    checkout = options.baseline.resolve()
    model = ("--model", str(checkout / "src/ngsan/shipped/coco"))
    found: Figures = {}
    for batch in ("1", str(options.batch)):
        ratios = []
        for _ in range(_ROUNDS):
            theirs = in_new_process("batches", "--batch", batch, *model, checkout=checkout)[1]
            ours = in_new_process("batches", "--batch", batch)[1]
            ratios.append(ours["images a second"] / theirs["images a second"])
        found[f"ratio, median, batches of {batch}"] = statistics.median(ratios)
        found[f"ratio, smallest, batches of {batch}"] = min(ratios)
    return found


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="what `ngsan pack` wrote")
    parser.add_argument("--images", type=Path, required=True, help="a folder of .jpg files")
    parser.add_argument("--threads", type=int, help="of ONNX Runtime; one a core if not given")
    parser.add_argument("--batch", type=int, default=16, help="photographs at a time")
    parser.add_argument("--cold", type=int, default=5, help="how many cold starts")
    parser.add_argument("--original", type=Path, help="the model folder that was packed")
    parser.add_argument("--baseline", type=Path, help="a checkout to take turns with")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--work", choices=list(WORKS), help="do only this, in this process")
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    if options.baseline:
        report(options, {"compared with the baseline": against(options)})
        return
    runs = [in_new_process("cold") for _ in range(options.cold)]
    seconds = [elapsed for elapsed, _ in runs]
    found = {
        "folder": {"bytes": sum(path.stat().st_size for path in options.model.iterdir())},
        "cold start to the first caption": {
            "s, median": statistics.median(seconds),
            "s, longest": max(seconds),
            **runs[-1][1],
        },
        "one after the other": in_new_process("single")[1],
        "in batches": in_new_process("batches")[1],
    }
    if options.original:
        found["compared with PyTorch"] = in_new_process("compare")[1]
    report(options, found)


def report(options: argparse.Namespace, found: dict[str, Figures]) -> None:
    """Prints the figures, and writes them to a file if asked to."""
    for what, figures in found.items():
        print(what)
        for name, value in figures.items():
            print(
                f"  {name:30} {value:12,.4g}" if isinstance(value, float) else f"  {name}: {value}"
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
