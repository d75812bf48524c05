"""Measures scoring against pycocoevalcap: words, BLEU, ROUGE-L and CIDEr of 5,000 images.

Both programs take turns on the same captions, from text to scores, and must agree. Needs
pycocoevalcap, and Java for its tokenizer. One core for us; Java takes what it gets.

    python benchmarks/scores.py --json scores.json
    python benchmarks/scores.py --results captions.json --annotations captions_val2014.json
"""

import argparse
import contextlib
import io
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pycocoevalcap.bleu.bleu import Bleu as PeerBleu
from pycocoevalcap.cider.cider import Cider as PeerCider
from pycocoevalcap.rouge.rouge import Rouge as PeerRouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
from rich.console import Console
from rich.table import Table

from ngsan.metrics.bleu import Bleu
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.cider import Cider
from ngsan.metrics.rouge import RougeL

WORDS, VOCABULARY, REFERENCES = 10.5, 9_000, 5
RATIO_WANTED = 4

Captions = tuple[dict[str, str], dict[str, list[str]]]
Marks = dict[str, float]
Values = dict[str, np.ndarray]


def make_captions(images: int) -> Captions:
    """Captions whose words are as frequent as in natural text; those of an image share some."""
    random = np.random.default_rng(0)
    probabilities = 1 / np.arange(2, VOCABULARY + 2)
    probabilities /= probabilities.sum()
    letters = "etaoinsrhldcumfpgwybvk"
    vocabulary = np.array(
        ["".join(letters[ord(c) % 22] for c in np.base_repr(n * 7 + 36, 36)) for n in range(9000)]
    )

    def caption(topic: np.ndarray) -> str:
        length = max(5, random.poisson(WORDS))
        own = random.choice(VOCABULARY, length, p=probabilities)
        words = vocabulary[np.where(random.random(length) < 0.5, np.resize(topic, length), own)]
        return " ".join(words).capitalize() + random.choice(
            [".", "", ",  it's 1 of 2."], p=(0.6, 0.3, 0.1)
        )

    hypotheses, references = {}, {}
    for number in range(images):
        topic = random.choice(VOCABULARY, 12, p=probabilities)
        hypotheses[str(number)] = caption(topic)
        references[str(number)] = [caption(topic) for _ in range(REFERENCES)]
    return hypotheses, references


def read_captions(results: Path, annotations: Path) -> Captions:
    """Captions in COCO result format and their references in COCO annotation format."""
    entries = json.loads(results.read_text(encoding="utf-8"))
    hypotheses = {str(entry["image_id"]): entry["caption"] for entry in entries}
    whole = json.loads(annotations.read_text(encoding="utf-8"))
    ids = [str(image["id"]) for image in whole["images"]]
    references: dict[str, list[str]] = {name: [] for name in ids if name in hypotheses}
    for entry in whole["annotations"]:
        if str(entry["image_id"]) in references:
            references[str(entry["image_id"])].append(entry["caption"])
    return {name: hypotheses[name] for name in references}, references


class Clock:
    """Seconds between marks, by name."""

    def __init__(self) -> None:
        """Starts."""
        self.marks: Marks = {}
        self._last = time.perf_counter()

    def mark(self, name: str) -> None:
        """Gives the time since the last mark a name."""
        now = time.perf_counter()
        self.marks[name] = now - self._last
        self._last = now


def score_ours(
    hypotheses: dict[str, str], references: dict[str, list[str]]
) -> tuple[Marks, Values]:
    """Seconds of each step, and the scores of the set followed by those of the images."""
    clock, values = Clock(), {}
    captions = TokenizedCaptions.tokenize(hypotheses, references)
    clock.mark("words")
    # The n-grams that BLEU and CIDEr share are counted in the first of them.
    for metric in (Bleu(), RougeL(), Cider()):
        rows = metric.statistics(captions)
        whole, single = metric.score(rows.sum(axis=0)), metric.score(rows)
        name = metric.names[0].removesuffix("-1")
        values[name] = np.concatenate((whole[None], single))
        clock.mark(name)
    return clock.marks, values


def score_peer(
    hypotheses: dict[str, str], references: dict[str, list[str]]
) -> tuple[Marks, Values]:
    """The same by pycocoevalcap."""
    clock, values = Clock(), {}
    tokenizer = PTBTokenizer()
    theirs = tokenizer.tokenize(
        {name: [{"caption": text} for text in texts] for name, texts in references.items()}
    )
    ours = tokenizer.tokenize({name: [{"caption": hypotheses[name]}] for name in references})
    clock.mark("words")
    scorers = {"BLEU": PeerBleu(4), "ROUGE-L": PeerRouge(), "CIDEr": PeerCider()}
    for name, scorer in scorers.items():
        with contextlib.redirect_stdout(io.StringIO()):
            whole, single = scorer.compute_score(theirs, ours)
        table = np.column_stack((np.atleast_1d(whole), np.atleast_2d(single)))
        values[name] = table.T
        clock.mark(name)
    return clock.marks, values


def measure(
    run: dict[str, Callable[..., tuple[Marks, Values]]], captions: Captions, rounds: int
) -> tuple[dict[str, Marks], float]:
    """The median seconds of each program's steps, and the largest difference of any score."""
    marks: dict[str, list[Marks]] = {name: [] for name in run}
    values: dict[str, Values] = {}
    # Alternate, so that other load on the machine slows both.
    for _ in range(rounds):
        for name, score in run.items():
            seconds, values[name] = score(*captions)
            marks[name].append(seconds | {"all": sum(seconds.values())})
    ours, peer = values.values()
    difference = max(float(np.abs(ours[name] - peer[name]).max()) for name in peer)
    medians = {
        name: {step: float(np.median([each[step] for each in several])) for step in several[0]}
        for name, several in marks.items()
    }
    return medians, difference


def report(seconds: dict[str, Marks], difference: float, images: int) -> None:
    """Prints the table."""
    console = Console()
    table = Table("step", *(f"{name}, s" for name in seconds), "faster by")
    table.title = f"{images:,} images, from text to scores"
    ours, peer = seconds.values()
    for step in ours:
        table.add_row(
            step, f"{ours[step]:.3f}", f"{peer[step]:.3f}", f"{peer[step] / ours[step]:.1f} x"
        )
    console.print(table)
    console.print(
        f"largest difference of any score, of the set or of an image, in natural units: "
        f"{difference:.1e}. To reach: {RATIO_WANTED} x."
    )


def main() -> None:
    """Reads the command line and runs everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, help="captions in COCO result format")
    parser.add_argument("--annotations", type=Path, help="references in COCO annotation format")
    parser.add_argument("--images", type=int, default=5_000, help="images when no file is given")
    parser.add_argument("--rounds", type=int, default=3, help="times that both take turns")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    if (options.results is None) != (options.annotations is None):
        parser.error("give --results and --annotations, or neither for captions made up here")
    if options.results:
        captions = read_captions(options.results, options.annotations)
    else:
        captions = make_captions(options.images)
    run = {"ngsan": score_ours, "pycocoevalcap": score_peer}
    seconds, difference = measure(run, captions, options.rounds)
    report(seconds, difference, len(captions[0]))
    if options.json:
        machine = {"runtime": platform.machine(), "python": platform.python_version()}
        figures = {**machine, "numpy": np.__version__, "images": len(captions[0])}
        figures |= {"seconds": seconds, "difference": difference}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
