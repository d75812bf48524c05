"""Measures METEOR against the Java program of pycocoevalcap, which it must agree with.

Both score the same captions, cut into words beforehand. By default people are scored against each
other: one of the captions of each image of COCO's validation set, which pycocoevalcap brings along,
against the others. One core for us; Java takes what it gets.

    python benchmarks/meteor.py --json meteor.json
    python benchmarks/meteor.py --results captions.json
"""

import argparse
import json
import os
import platform
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import numpy as np
from pycocoevalcap.meteor.meteor import Meteor as PeerMeteor
from rich.console import Console
from rich.table import Table

from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.meteor import Meteor

ANNOTATIONS = "coco/annotations/captions_val2014.json"

T = TypeVar("T")


def read_references() -> dict[str, list[str]]:
    """The captions of each image of COCO's validation set."""
    package = find_spec("pycocoevalcap")
    if package is None or not package.submodule_search_locations:
        raise SystemExit('needs pycocoevalcap: pip install "ngsan[metrics]"')
    jar = Path(package.submodule_search_locations[0]) / "spice" / "spice-1.0.jar"
    with zipfile.ZipFile(jar) as archive, archive.open(ANNOTATIONS) as file:
        whole = json.load(file)
    references: dict[str, list[str]] = {str(image["id"]): [] for image in whole["images"]}
    for entry in whole["annotations"]:
        references[str(entry["image_id"])].append(entry["caption"])
    return references


def cut(results: Path | None, images: int) -> TokenizedCaptions:
    """The captions of a file in COCO result format, or one of each image's own."""
    references = read_references()
    if results is None:
        some = dict(list(references.items())[:images])
        hypotheses = {name: several[0] for name, several in some.items()}
        return TokenizedCaptions.tokenize(hypotheses, {n: some[n][1:] for n in some})
    entries = json.loads(results.read_text(encoding="utf-8"))
    hypotheses = {str(entry["image_id"]): entry["caption"] for entry in entries}
    return TokenizedCaptions.tokenize(
        hypotheses, {name: several for name, several in references.items() if name in hypotheses}
    )


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """Seconds that something took, and what came of it."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def score_ours(captions: TokenizedCaptions) -> np.ndarray:
    """The score of the set followed by those of the images."""
    meteor = Meteor()
    rows = meteor.statistics(captions)
    return np.concatenate((meteor.score(rows.sum(axis=0)), meteor.score(rows)[:, 0]))


def score_peer(captions: TokenizedCaptions) -> np.ndarray:
    """The same by the Java program, its start included."""
    names = captions.ids
    references = [[" ".join(words) for words in several] for several in captions.references]
    hypotheses = [[" ".join(words)] for words in captions.hypotheses]
    whole, single = PeerMeteor().compute_score(
        dict(zip(names, references, strict=True)), dict(zip(names, hypotheses, strict=True))
    )
    return np.array([whole, *single])


def main() -> None:
    """Reads the command line and runs everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, help="captions in COCO result format")
    parser.add_argument("--images", type=int, default=5_000, help="images when no file is given")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    captions = cut(options.results, options.images)
    one = TokenizedCaptions(("0",), (("dog",),), ((("dog",),),))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NGSAN_CACHE"] = cache
        seconds = {
            "first start, which makes the index of paraphrases": timed(lambda: score_ours(one))[0],
            "later starts": timed(lambda: score_ours(one))[0],
        }
        seconds["ngsan, start included"], ours = timed(lambda: score_ours(captions))
    seconds["Java, start included"], peer = timed(lambda: score_peer(captions))
    differences = np.abs(ours - peer)

    table = Table("step", "s", title=f"METEOR of {len(captions.ids):,} images")
    for step, value in seconds.items():
        table.add_row(step, f"{value:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"score: {100 * ours[0]:.6f} and {100 * peer[0]:.6f}; images that differ by more than "
        f"1e-9: {int((differences[1:] > 1e-9).sum())}; largest difference: {differences.max():.1e}"
    )
    if options.json:
        machine = {"runtime": platform.machine(), "python": platform.python_version()}
        figures = {**machine, "images": len(captions.ids), "seconds": seconds}
        figures["difference"] = float(differences.max())
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
