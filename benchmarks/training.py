"""Measures the training speed of a captioner, and of a plain loop like those of public captioners.

    python benchmarks/training.py --json training.json
    python benchmarks/training.py --schedule --json schedule.json

On a GPU, each figure is one short training run; together they take five minutes, mostly for
compilation. `--schedule` runs the paper's whole schedule instead, 15 epochs of cross-entropy and 15
of self-critical training with validation after each; it takes about ten minutes.

The data has the size of COCO: 113,287 images of 36 x 2048 numbers, five captions each, a vocabulary
of 9,488. Features are random, and captions are random words of COCO's lengths. Figures
include all of a step, with loading of batches and logging.

The plain loop (`plain_training.py`) computes attention explicitly, repeats the encoder for every
caption, has no cache and computes rewards of strings in Python. `--device cpu` runs the script at a
small size.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from itertools import islice, product
from pathlib import Path

import numpy as np
import plain_training
import torch
from torch.utils.flop_counter import FlopCounterMode

from ngsan.config import (
    CaptionerConfig,
    CrossEntropyConfig,
    RuntimeConfig,
    SelfCriticalConfig,
    TrainConfig,
)
from ngsan.data.batch import CaptionRows, TokenTable
from ngsan.data.dataset import CaptionDataset
from ngsan.data.resident import resident_bytes
from ngsan.data.store import Regions
from ngsan.models import build_captioner
from ngsan.text.tokenizers import TOKENIZERS
from ngsan.text.vocabulary import UNKNOWN, Origin, Vocabulary
from ngsan.train.run import train
from ngsan.train.tasks.captioning import CrossEntropyLoss

CAPTIONS = 5
POOL = 2048
"""Number of distinct images; the others repeat their features."""


class RandomStore:
    """Random features in memory."""

    has_boxes = True

    def __init__(self, regions: int, feature_dim: int, seed: int) -> None:
        """Draws the features."""
        random = np.random.default_rng(seed)
        self.feature_dim, self.regions = feature_dim, regions
        shape = (POOL, regions, feature_dim)
        self._features = random.standard_normal(shape, np.float32).astype(np.float16)
        self._boxes = random.uniform(0.1, 0.5, (POOL, regions, 4)).astype(np.float32)

    def __getitem__(self, image: str) -> Regions:
        """The regions of an image, whose id is a number."""
        place = int(image) % POOL
        return Regions(self._features[place], self._boxes[place], None)


class RandomDataset(CaptionDataset):
    """A dataset of random captions, as long as COCO's."""

    def __init__(
        self, images: int, store: RandomStore, vocabulary: Vocabulary, seed: int, dtype: torch.dtype
    ) -> None:
        """Draws the captions."""
        random = np.random.default_rng(seed)
        self.folder, self.split, self.max_length, self.dtype = Path("random"), "random", 20, dtype
        self.captions_per_image, self.missing = CAPTIONS, 0
        self.vocabulary, self.store = vocabulary, store
        self.ids = [str(number) for number in range(images)]
        self.region_counts = np.full(images, store.regions)
        # COCO's captions have 10.5 words on average; few have less than 8 or more than 16.
        lengths = 7 + random.gamma(2.1, 1.65, images * CAPTIONS).astype(np.int64)
        lengths = lengths.clip(max=20)
        size = len(vocabulary) - 2
        words = 1 + (random.zipf(1.2, int(lengths.sum())) - 1) % size
        self.rows = CaptionRows.of_counts(np.full(images, CAPTIONS), seed=seed)
        self.tokens = TokenTable.of_lengths(words, lengths)
        self._words, self._ends = words.tolist(), [0, *lengths.cumsum().tolist()]
        self.signature = f"random-{seed}-{images}"

    def captions(self, index: int) -> list[str]:
        """The captions of an image."""
        names, ends = self.vocabulary.words, self._ends
        captions = range(index * CAPTIONS, (index + 1) * CAPTIONS)
        rows = [self._words[ends[caption] : ends[caption + 1]] for caption in captions]
        return [" ".join([names[word - 1] for word in row]) for row in rows]


class Recorder:
    """Records the log entries of a run."""

    def __init__(self, verbose: bool) -> None:
        """Prints epochs if `verbose`."""
        self.entries: list[dict] = []
        self._verbose = verbose

    def __call__(self, entry: dict) -> None:
        """Records an entry."""
        self.entries.append({**entry, "at": time.perf_counter()})
        if self._verbose and entry["event"] in ("epoch", "before", "end"):
            print({k: v for k, v in entry.items() if k != "metrics"}, flush=True)

    def speed(self, phase: str, batch: int) -> float:
        """Images per second from the log entries, without the first two."""
        rates = [
            entry["images_per_second"]
            for entry in self.entries
            if entry["event"] == "step" and entry["phase"] == phase
        ]
        return statistics.harmonic_mean(rates[2:] or rates)


def matrix_rate(device: torch.device) -> float:
    """TFLOP/s of a large matrix product in bfloat16."""
    size, times = (8192, 20) if device.type == "cuda" else (512, 2)
    matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        matrix @ matrix
    wait(device)
    start = time.perf_counter()
    for _ in range(times):
        matrix @ matrix
    wait(device)
    return 2 * size**3 * times / (time.perf_counter() - start) / 1e12


def wait(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def step_flops(model: CaptionerConfig, data: CaptionDataset, device: torch.device) -> float:
    """FLOPs of matrix products in a cross-entropy step, per image."""
    batch = data.batch(np.arange(8)).to(device)
    words = int(batch.target_mask.sum())
    module = CrossEntropyLoss(build_captioner(model).to(device), capacity=words)
    pad = 21 - batch.words.shape[2]
    longer = [
        torch.nn.functional.pad(part, (0, pad))
        for part in (batch.words, batch.targets, batch.target_mask)
    ]
    with FlopCounterMode(display=False) as counter:
        total, _ = module(batch.features.float(), batch.boxes, None, *longer)
        total.backward()
    return counter.get_total_flops() / 8


def short_run(options, name: str, batch: int, *, critical: bool) -> tuple[float, float]:
    """Images per second of a phase, and its peak memory in GiB without the data."""
    config = configuration(options, name, batch)
    epochs = (0, 1) if critical else (1, 0)
    config = dataclasses.replace(
        config,
        cross_entropy=dataclasses.replace(config.cross_entropy, epochs=epochs[0]),
        self_critical=dataclasses.replace(config.self_critical, epochs=epochs[1]),
    )
    train_data, val_data = data_of(options, options.short * batch, 500)
    watch = Recorder(False)
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        train(config, folder, listen=watch, datasets=(train_data, val_data))
    held = resident_bytes(train_data) + resident_bytes(val_data)
    peak = (torch.cuda.max_memory_allocated() - held) / 2**30 if on_gpu else 0.0
    return watch.speed("self-critical" if critical else "cross-entropy", batch), peak


def whole_schedule(options) -> dict[str, float]:
    """The paper's 15 + 15 epochs with validation."""
    batch = options.batch
    train_data, val_data = data_of(options, options.images, options.validated)
    watch = Recorder(True)
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(options, "ng-san", batch)
        start = time.perf_counter()
        train(config, folder, listen=watch, datasets=(train_data, val_data))
        seconds = time.perf_counter() - start
    epochs = [entry for entry in watch.entries if entry["event"] == "epoch"]
    found = {"whole schedule, minutes": seconds / 60}
    for phase in ("cross-entropy", "self-critical"):
        later = [entry["seconds"] for entry in epochs if entry["phase"] == phase][1:]
        if later:
            found[f"{phase}, whole epoch with validation, s"] = statistics.median(later)
        found[f"{phase}, batch {batch}, whole schedule, images/s"] = watch.speed(phase, batch)
    on_gpu = options.device == "cuda"
    held = resident_bytes(train_data) + resident_bytes(val_data)
    if on_gpu:
        peak = (torch.cuda.max_memory_allocated() - held) / 2**30
        found["peak memory beside the data, GiB"] = peak
    found["validation, s"] = statistics.median(entry["validation_seconds"] for entry in epochs)
    return found


def configuration(options, name: str, batch: int) -> TrainConfig:
    """The paper's schedule; small on a CPU."""
    small = {} if options.device == "cuda" else {"dim": 64, "hidden_dim": 64, "layers": 1}
    model = CaptionerConfig.for_model(name, feature_dim=options.feature_dim, **small)
    epochs = 15 if options.device == "cuda" else 2
    return TrainConfig(
        model=model,
        cross_entropy=CrossEntropyConfig(batch_size=batch, epochs=epochs),
        self_critical=SelfCriticalConfig(batch_size=batch, epochs=epochs),
        runtime=RuntimeConfig(device=options.device, save_seconds=120.0, log_steps=20),
    )


def data_of(options, images: int, val_images: int) -> tuple[RandomDataset, RandomDataset]:
    """Random datasets for training and validation."""
    dtype = torch.float16 if options.device == "cuda" else torch.float32
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(word) for word in islice(product(letters, repeat=4), 9486)] + [UNKNOWN]
    vocabulary = Vocabulary(words, origin=Origin(TOKENIZERS["plain"].version, 0, 0))
    store = RandomStore(options.regions, options.feature_dim, 0)
    return (
        RandomDataset(images, store, vocabulary, 1, dtype),
        RandomDataset(val_images, store, vocabulary, 2, dtype),
    )


def plain_speeds(options) -> dict[str, float]:
    """Speeds of the plain loop, with TF32 on a GPU."""
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device(options.device)
    cross, critical = options.plain
    train_data, _ = data_of(options, max(256, cross), 1)
    config = configuration(options, "ng-san", cross).model
    model = plain_training.PlainCaptioner(
        vocab_size=config.vocab_size,
        feature_dim=config.feature_dim,
        dim=config.dim,
        hidden_dim=config.hidden_dim,
        layers=config.layers,
        norm=True,
        geometry=True,
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    words_of = ["<end>", *train_data.vocabulary.words]
    references = [
        [f"{text} <end>" for text in train_data.captions(i)] for i in range(len(train_data))
    ]
    documents = plain_training.count_documents(references)
    found = {}
    batch = train_data.batch(np.arange(cross)).to(device)
    parts = (batch.features.float(), batch.boxes)

    def cross_step() -> None:
        captions = (batch.words, batch.targets, batch.target_mask)
        plain_training.plain_cross_entropy_step(model, optimizer, *parts, *captions)

    def critical_step() -> None:
        some = [part[:critical] for part in parts]
        plain_training.plain_self_critical_step(
            model, optimizer, *some, references[:critical], words_of, documents
        )

    for name, images, work in (
        ("cross-entropy", cross, cross_step),
        ("self-critical", critical, critical_step),
    ):
        times = []
        for _ in range(4):
            wait(device)
            start = time.perf_counter()
            work()
            wait(device)
            times.append(time.perf_counter() - start)
        found[f"plain {name}, batch {images}, images/s"] = images / statistics.median(times[1:])
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


class Figures:
    """Prints figures and writes them to a file."""

    def __init__(self, options, setting: dict[str, str]) -> None:
        """Starts with the settings."""
        self._file, self.found = options.json, {**setting}

    def __call__(self, more: dict[str, float]) -> None:
        """Adds figures."""
        for what, figure in more.items():
            print(f"{what:58} {figure:12,.2f}", flush=True)
        self.found.update(more)
        if self._file:
            Path(self._file).write_text(json.dumps(self.found, indent=1) + "\n")


def measure(options, report: Figures) -> None:
    """Measures with short runs."""
    device, batch = torch.device(options.device), options.batch
    cross, cross_memory = short_run(options, "ng-san", batch, critical=False)
    train_data, _ = data_of(options, 64, 1)
    flops = step_flops(configuration(options, "ng-san", 1).model, train_data, device)
    report({f"cross-entropy, batch {batch}, images/s": cross})
    report({"cross-entropy, TFLOP/s": cross * flops / 1e12})
    report({"cross-entropy, peak memory beside the data, GiB": cross_memory})
    plain_san, _ = short_run(options, "san", batch, critical=False)
    report({f"SAN, cross-entropy, batch {batch}, images/s": plain_san})
    report({"NSA and GSA cost over SAN, %": 100 * (plain_san / cross - 1)})
    small, _ = short_run(options, "ng-san", batch // 4, critical=False)
    report({f"cross-entropy, batch {batch // 4}, images/s": small})
    critical, critical_memory = short_run(options, "ng-san", batch, critical=True)
    report({f"self-critical, batch {batch}, images/s": critical})
    report({"self-critical, peak memory beside the data, GiB": critical_memory})
    report({"self-critical over cross-entropy, memory": critical_memory / (cross_memory or 1)})
    plain = plain_speeds(options)
    report(plain)
    by_phase = {"cross-entropy": cross, "self-critical": critical}
    for what, speed in plain.items():
        phase = what.split(",")[0].removeprefix("plain ")
        report({f"{phase}, times the plain loop": by_phase[phase] / speed})


def main() -> None:
    """Runs the benchmarks."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--schedule", action="store_true", help="run the whole schedule instead")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if cuda else "cpu")
    parser.add_argument("--batch", type=int, help="images per step; 256 on a GPU")
    parser.add_argument("--short", type=int, help="steps of a short run; 160 on a GPU")
    parser.add_argument("--images", type=int, help="images of the whole schedule; 113,287 on a GPU")
    parser.add_argument("--validated", type=int, help="validation images; 5,000 on a GPU")
    parser.add_argument("--plain", type=int, nargs=2, help="images per step of the plain loop")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    sizes = {"batch": 256, "short": 160, "images": 113_287, "validated": 5000, "plain": (64, 32)}
    small = {"batch": 8, "short": 4, "images": 64, "validated": 16, "plain": (4, 2)}
    for name, value in (sizes if on_gpu else small).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.regions, options.feature_dim = (36, 2048) if on_gpu else (6, 16)
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"torch {torch.__version__}, {name}", flush=True)
    report = Figures(options, {"torch": torch.__version__, "device": name})
    report({"matrix products, TFLOP/s": matrix_rate(torch.device(options.device))})
    if options.schedule:
        report(whole_schedule(options))
    else:
        measure(options, report)


if __name__ == "__main__":
    main()
