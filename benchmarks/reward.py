"""Measures the CIDEr-D reward of sampled captions against pycocoevalcap.

Captions are made up, with words and lengths spread about as in COCO, or are read from COCO's
annotation files. Of pycocoevalcap only what a training step needs is timed: its references are
cut into n-grams and their document frequencies counted beforehand. It runs on one core, and so
does the reward unless `--threads` or `--device` say otherwise. Where pycocoevalcap is not
installed, give its time from another run.

    python benchmarks/reward.py --json reward.json
    python benchmarks/reward.py --device cuda --peer-seconds-per-caption 3e-4
"""

import argparse
import json
import platform
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngsan.metrics.reward import Bleu4Reward, CiderDReward, MixedReward, References

Captions = list[list[list[int]]]

VOCABULARY, LEAST_COUNT, UNKNOWN = 9488, 5, 1
RATIO_WANTED = {"cpu": 5, "cuda": 100}


def zipf(rng: np.random.Generator, size: int | tuple[int, ...], words: int) -> np.ndarray:
    """Ranks from 0 on whose frequencies fall as one over the rank."""
    shares = (1 / np.arange(1, words + 1)).cumsum()
    ranks: np.ndarray = np.searchsorted(shares, rng.random(size) * shares[-1])
    return ranks


def make_captions(images: int) -> Captions:
    """References that share words within an image and word pairs with all others."""
    rng = np.random.default_rng(0)
    references = np.where(rng.random(images) < 0.002, rng.integers(6, 8, images), 5)
    image = np.repeat(np.arange(images), references)
    lengths = np.clip(7 + rng.exponential(3.5, len(image)).astype(int), 7, 50)
    successors = 1 + zipf(rng, (VOCABULARY, 300), VOCABULARY - 1)
    topics = 1 + zipf(rng, (images, 8), VOCABULARY - 1)
    words = np.zeros((len(image), 50), np.int64)
    word = 1 + zipf(rng, len(image), 5)
    for place in range(50):
        words[:, place] = word
        topic = topics[image, rng.integers(0, 8, len(image))]
        going_on = successors[word, zipf(rng, len(image), 300)]
        word = np.where(rng.random(len(image)) < 0.4, topic, going_on)
    captions: Captions = [[] for _ in range(images)]
    for number, row, length in zip(image.tolist(), words, lengths.tolist(), strict=True):
        captions[number].append(row[:length].tolist())
    return captions


def read_captions(paths: list[Path], images: int) -> tuple[Captions, int]:
    """References of COCO's files, cut at everything but letters and digits; and the vocabulary."""
    texts: dict[int, list[list[str]]] = defaultdict(list)
    for path in paths:
        for item in json.loads(path.read_text(encoding="utf-8"))["annotations"]:
            texts[item["image_id"]].append(re.findall(r"[a-z0-9']+", item["caption"].lower()))
    chosen = list(texts.values())[:images]
    counts = Counter(word for captions in chosen for words in captions for word in words)
    known = [word for word, count in counts.most_common() if count >= LEAST_COUNT]
    ids = {word: number for number, word in enumerate(known, start=UNKNOWN + 1)}
    captions = [[[ids.get(w, UNKNOWN) for w in words] for words in one] for one in chosen]
    return captions, len(ids) + UNKNOWN + 1


def make_batch(
    rng: np.random.Generator, captions: Captions, options: argparse.Namespace, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Images, and for each of them samples: references of it with some words changed."""
    images = rng.integers(0, len(captions), options.batch)
    samples = np.zeros((options.batch, options.samples, options.words), np.int64)
    for image, rows in zip(images.tolist(), samples, strict=True):
        for row in rows:
            reference = captions[image][rng.integers(len(captions[image]))][: options.words]
            row[: len(reference)] = reference
    others = 1 + zipf(rng, samples.shape, vocab_size - 1)
    changed = (samples > 0) & (rng.random(samples.shape) < 0.3)
    return torch.from_numpy(images), torch.from_numpy(np.where(changed, others, samples))


class Peer:
    """CIDEr-D by pycocoevalcap, its references prepared."""

    def __init__(self, captions: Captions, images: Tensor, *, end: bool) -> None:
        """Cuts the references into n-grams, counts them all, keeps those of `images`; not timed."""
        from pycocoevalcap.cider import cider_scorer

        self.end = end
        self.scorer: Any = cider_scorer.CiderScorer()
        self.cook_test = cider_scorer.cook_test
        self.references: dict[int, Any] = dict.fromkeys(images.tolist())
        for number, references in enumerate(captions):
            texts = [self.text(words, ended=True) for words in references]
            self.scorer.crefs = [cider_scorer.cook_refs(texts)]
            self.scorer.compute_doc_freq()
            if number in self.references:
                self.references[number] = self.scorer.crefs[0]
        size = len(captions)

        class OfSplit(list):  # type: ignore[type-arg]
            """References of a batch, with the image count of the split for log N."""

            def __len__(self) -> int:
                return size

        self.of_split = OfSplit

    def text(self, words: list[int], *, ended: bool) -> str:
        """A caption as a string, the end as its last word where it counts."""
        return " ".join(map(str, [*words, 0] if ended and self.end else words))

    def texts(self, samples: Tensor) -> list[str]:
        """Samples as strings; not timed."""
        rows = samples.flatten(0, 1).tolist()
        return [self.text(row[: row.index(0)] if 0 in row else row, ended=0 in row) for row in rows]

    def score(self, images: Tensor, texts: list[str]) -> list[float]:
        """CIDEr-D of as many texts for every image."""
        numbers = images.repeat_interleave(len(texts) // len(images)).tolist()
        self.scorer.ctest = [self.cook_test(text) for text in texts]
        self.scorer.crefs = self.of_split(self.references[number] for number in numbers)
        scores: list[float] = self.scorer.compute_cider()
        return scores


def seconds(call: Callable[[], object], *, device: str, repeats: int) -> float:
    """Time of one call, with the device's work done."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def captured(
    reward: CiderDReward | MixedReward, images: Tensor, samples: Tensor
) -> Callable[[], Tensor]:
    """The reward as one CUDA graph, with the copies of its inputs."""
    inputs = images.clone(), samples.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result: Tensor = reward(*inputs)

    def call() -> Tensor:
        inputs[0].copy_(images)
        inputs[1].copy_(samples)
        graph.replay()
        return result

    return call


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Builds everything and lets all take turns."""
    if options.annotations:
        captions, vocab_size = read_captions(options.annotations, options.images)
    else:
        captions, vocab_size = make_captions(options.images), VOCABULARY
    device = options.device
    start = time.perf_counter()
    references = References.build(captions, vocab_size=vocab_size, end=options.end, device=device)
    cider = CiderDReward(references)
    float(cider.inverse_norms.sum())  # waits for the device
    build = time.perf_counter() - start
    mixed = MixedReward([(1.0, cider), (1.0, Bleu4Reward(references))])
    batch = make_batch(np.random.default_rng(1), captions, options, vocab_size)
    images, samples = (tensor.to(device) for tensor in batch)
    calls: dict[str, Callable[[], object]] = {
        "CIDEr-D": lambda: cider(images, samples),
        "CIDEr-D and BLEU-4": lambda: mixed(images, samples),
    }
    for call in calls.values():
        for _ in range(3):
            call()
    if device == "cuda":
        calls["CIDEr-D, CUDA graph"] = captured(cider, images, samples)
    figures: dict[str, Any] = {"build_seconds": build, "images": len(captions)}
    figures["references"] = len(references.lengths)
    figures["table_megabytes"] = sum(x.numel() * x.element_size() for x in cider.buffers()) / 1e6
    if options.peer_seconds_per_caption is None:
        peer = Peer(captions, batch[0], end=options.end)
        texts = peer.texts(batch[1])
        found = torch.tensor(peer.score(batch[0], texts), dtype=torch.float64)
        ours = cider(images, samples).flatten().double().cpu()
        figures["largest_difference"] = float((found - ours).abs().max())
        figures["mean_score"] = float(found.mean())
        calls["pycocoevalcap"] = lambda: peer.score(batch[0], texts)
    times: dict[str, list[float]] = {name: [] for name in calls}
    # Alternate, so that other load on the machine slows all of them.
    for _ in range(options.rounds):
        for name, call in calls.items():
            repeats = 1 if name == "pycocoevalcap" else options.repeats
            times[name].append(seconds(call, device=device, repeats=repeats))
    number = options.batch * options.samples
    per_caption = {name: float(np.median(values)) / number for name, values in times.items()}
    if options.peer_seconds_per_caption is not None:
        per_caption["pycocoevalcap"] = options.peer_seconds_per_caption
    return {**figures, "seconds_per_caption": per_caption}


def report(figures: dict[str, Any], options: argparse.Namespace) -> None:
    """Prints the figures."""
    print(
        f"{figures['images']:,} images, {figures['references']:,} references: prepared in "
        f"{figures['build_seconds']:.1f} s, {figures['table_megabytes']:.0f} MB"
    )
    print(f"{options.batch} images x {options.samples} samples of {options.words} words at most")
    peer = figures["seconds_per_caption"]["pycocoevalcap"]
    for name, value in figures["seconds_per_caption"].items():
        where = options.device if name != "pycocoevalcap" else "one core"
        print(f"{name:22} {where:9} {value * 1e6:10.3f} us a caption {peer / value:10.1f} x")
    if "largest_difference" in figures:
        print(
            f"largest difference {figures['largest_difference']:.1e} "
            f"at a mean CIDEr-D of {figures['mean_score']:.2f} of 10"
        )
    print(f"to reach: {RATIO_WANTED[options.device]} x pycocoevalcap")


def main() -> None:
    """Reads the command line and runs everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--annotations", type=Path, nargs="+", help="COCO's caption files")
    parser.add_argument("--images", type=int, default=20_000, help="images with references")
    parser.add_argument("--batch", type=int, default=256, help="images of a call")
    parser.add_argument("--samples", type=int, default=5, help="captions an image")
    parser.add_argument("--words", type=int, default=20, help="most words of a caption")
    parser.add_argument(
        "--end",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="count the end of a caption as a word",
    )
    parser.add_argument("--rounds", type=int, default=5, help="times that all take turns")
    parser.add_argument("--repeats", type=int, default=20, help="calls of the reward in a turn")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=list(RATIO_WANTED), default=default)
    parser.add_argument("--threads", type=int, default=1, help="cores of the reward, on the CPU")
    parser.add_argument(
        "--peer-seconds-per-caption", type=float, help="pycocoevalcap's time, from another run"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    if options.peer_seconds_per_caption is None and find_spec("pycocoevalcap") is None:
        parser.error("pycocoevalcap is not installed; give --peer-seconds-per-caption")
    torch.set_num_threads(options.threads)
    figures = measure(options)
    report(figures, options)
    if options.json:
        where = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
        machine = {"device": where, "threads": options.threads, "torch": torch.__version__}
        options.json.write_text(json.dumps({**machine, **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
