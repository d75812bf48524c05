"""How fast a translator is trained.

    python benchmarks/translation.py --json speed.json

trains Transformer-Base, and the same with NSA, on random sentences as long as those of WMT14, and
prints real target words per second: all of a step is included, padding is not counted.
`--quick` tries it on a CPU at a small size. How well a translator translates is what
see `ngsan reproduce translation`.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ngsan.config import (
    ParallelConfig,
    TranslationConfig,
    TranslationDecodingConfig,
    TranslationPhaseConfig,
    TranslationValidationConfig,
    TranslatorConfig,
)
from ngsan.config.training import RuntimeConfig
from ngsan.data.parallel.dataset import SIDES, ParallelSplit
from ngsan.text.subwords import Subwords
from ngsan.train.run import train

MODELS = ("transformer", "transformer-nsa")


class RandomSplit(ParallelSplit):
    """Random subwords in sentences as long as WMT14's, about 30 pieces with a long tail."""

    def __init__(self, pairs: int, vocabulary: int, seed: int) -> None:
        """Draws the sentences."""
        random = np.random.default_rng(seed)
        self.folder, self.split = Path("random"), f"random-{seed}"
        self.signature, self.vocab_size = f"random-{seed}-{pairs}", vocabulary
        both = random.lognormal(3.2, 0.6, pairs)
        self.ids, self.offsets = {}, {}
        for side in SIDES:
            noise = random.lognormal(0.0, 0.15, pairs)
            lengths = (both * noise).astype(np.int64).clip(2, 249)
            self.offsets[side] = np.concatenate(([0], lengths.cumsum()))
            drawn = random.zipf(1.2, int(lengths.sum()))
            self.ids[side] = (1 + (drawn - 1) % (vocabulary - 1)).astype(np.int32)

    def texts(self, side: str) -> list[str]:
        """The sentences."""
        pieces = self.subwords()
        return [pieces.decode(self.sentence(side, index)) for index in range(len(self))]

    def subwords(self) -> Subwords:
        """As many pieces as there are ids: letters, and numbers spelled in them."""
        letters = "abcdefghijklmnop"

        def spelled(number: int) -> str:
            return "".join(letters[(number >> shift) & 15] for shift in (16, 12, 8, 4, 0))

        pieces = {spelled(number): number for number in range(self.vocab_size - 1)}
        content = {
            "model": {"type": "BPE", "vocab": pieces, "merges": []},
            "pre_tokenizer": {"type": "ByteLevel"},
            "added_tokens": [],
        }
        return Subwords(json.dumps(content))


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Target words a second of both models."""
    words = 2_000 if options.quick else options.words
    steps = 6 if options.quick else options.steps
    vocabulary = 500 if options.quick else 32_768
    pairs = int(steps * words / 36)
    data = RandomSplit(pairs, vocabulary, 0), RandomSplit(8, vocabulary, 1)
    small = {"dim": 32, "heads": 4, "hidden_dim": 64, "layers": 2} if options.quick else {}
    report: dict[str, Any] = {"words": words, "vocabulary": vocabulary}
    for model in MODELS:
        config = TranslationConfig(
            model=TranslatorConfig.for_model(model, **small),
            data=ParallelConfig(folder="random", max_buckets=options.shapes),
            cross_entropy=TranslationPhaseConfig(epochs=1, batch_size=words, average_epochs=0),
            validation=TranslationValidationConfig(
                decoding=TranslationDecodingConfig(beam=1, max_length_ratio=0.0, max_length_extra=1)
            ),
            runtime=RuntimeConfig(log_steps=2 if options.quick else 10),
        )
        entries: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            train(config, folder, datasets=data, listen=entries.append)
        rates = [entry["tokens_per_second"] for entry in entries if entry["event"] == "step"]
        start = next(entry for entry in entries if entry["event"] == "start")
        # Shapes are compiled and captured when they come first: the later half is undisturbed.
        later = rates[len(rates) // 2 :]
        report[model] = {
            "tokens_per_second": statistics.median(later),
            "best": max(rates),
            "padding": start["padding"],
            "parameters": start["parameters"],
            "device": start["device"],
            "precision": start["precision"],
        }
        print(model, report[model], flush=True)
    return report


def main() -> None:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", help="write the report to this file")
    parser.add_argument("--quick", action="store_true", help="a small size, for a CPU")
    parser.add_argument("--words", type=int, default=25_000, help="target words of a batch")
    parser.add_argument("--steps", type=int, default=300, help="about how many steps to make")
    parser.add_argument("--shapes", type=int, default=8, help="shapes of batches")
    options = parser.parse_args()
    report = speed(options)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
