"""How fast a translator is trained, and how well it translates Multi30k.

    python benchmarks/translation.py speed --json speed.json
    python benchmarks/translation.py multi30k --data multi30k --to runs/multi30k --seeds 0 1 2

`speed` trains Transformer-Base, and the same with NSA, on random sentences as long as those of
WMT14, and tells the real target words a second: all that a step does is included, padding is not
counted. `multi30k` trains both models of `configs/translation/multi30k*.yaml` with several seeds,
translates validation and test, and reports BLEU with its spread; what is done already is not done
again, and a run that was stopped goes on. The folder of data comes from `ngsan data parallel`, so
that neither part needs the library `tokenizers`. BLEU is computed as sacreBLEU does; the
translations are beside each model, for `ngsan score --translation`.

`--quick` tries both on a CPU at a small size.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ngsan.config.training import MachineConfig
from ngsan.config.translation import (
    ParallelConfig,
    TranslatingConfig,
    TranslationPhase,
    TranslationRun,
    TranslationValidation,
    TranslatorConfig,
    multi30k_run,
)
from ngsan.data.parallel.dataset import SIDES, ParallelSplit
from ngsan.metrics.translation import compound_bleu, plain_bleu
from ngsan.predict.translating import open_translator
from ngsan.text.subwords import Subwords
from ngsan.train.run import train

MODELS = ("transformer", "transformer-nsa")


class RandomSplit(ParallelSplit):
    """Random word pieces in sentences as long as WMT14's, about 30 pieces with a long tail."""

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


class FirstPairs(ParallelSplit):
    """The first pairs of a split."""

    def __init__(self, folder: str, split: str, count: int) -> None:
        """Opens the split and leaves out the rest."""
        super().__init__(folder, split)
        self.offsets = {side: self.offsets[side][: count + 1] for side in SIDES}

    def texts(self, side: str) -> list[str]:
        """The first lines."""
        return super().texts(side)[: len(self)]


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
        config = TranslationRun(
            model=TranslatorConfig.for_model(model, **small),
            data=ParallelConfig(folder="random", shapes=options.shapes),
            cross_entropy=TranslationPhase(epochs=1, batch_size=words, average=0),
            validation=TranslationValidation(
                decoding=TranslatingConfig(beam=1, ratio=0.0, extra=1)
            ),
            machine=MachineConfig(log_steps=2 if options.quick else 10),
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


def multi30k(options: argparse.Namespace) -> dict[str, Any]:
    """BLEU of both models with several seeds."""
    report: dict[str, Any] = {}
    for model in MODELS:
        rows = [_one_run(options, model, seed) for seed in options.seeds]
        report[model] = {"runs": rows}
        for key in ("val", "test", "test_tokenised"):
            values = [row[key] for row in rows]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            report[model][key] = {"mean": statistics.mean(values), "spread": spread}
            print(f"{model} {key}: {statistics.mean(values):.2f} ± {spread:.2f} {values}")
    return report


def _one_run(options: argparse.Namespace, model: str, seed: int) -> dict[str, Any]:
    config = multi30k_run(model)
    config = dataclasses.replace(
        config, seed=seed, data=dataclasses.replace(config.data, folder=options.data)
    )
    datasets = None
    if options.quick:
        datasets = tuple(FirstPairs(options.data, name, 200) for name in ("train", "val"))
        small = {"dim": 32, "heads": 4, "hidden_dim": 64, "layers": 1}
        config = dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, **small),
            cross_entropy=dataclasses.replace(config.cross_entropy, epochs=1, average=0),
        )
    folder = Path(options.to) / f"{model}-{seed}"
    resume = (folder / "training").is_dir()
    train(config, folder, resume=resume, listen=_tell, datasets=datasets)
    translator = open_translator(folder)
    row: dict[str, Any] = {"seed": seed}
    for name in ("val", "test"):
        count = 20 if options.quick else 1_000_000
        split = FirstPairs(options.data, name, count)
        sentences = [split.sentence("source", index) for index in range(len(split))]
        texts = [best.text for best, *_ in translator.translate_ids(sentences, words=8_000)]
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
        references = split.texts("target")
        row[name] = plain_bleu(texts, references).value
        row[f"{name}_tokenised"] = compound_bleu(texts, references).value
    print(model, row, flush=True)
    return row


def _tell(entry: dict[str, Any]) -> None:
    if entry["event"] in ("epoch", "average"):
        kept = {key: entry.get(key) for key in ("event", "epoch", "loss", "metrics", "seconds")}
        print(json.dumps(kept), flush=True)


def main() -> None:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", help="write the report to this file")
    parser.add_argument("--quick", action="store_true", help="a small size, for a CPU")
    parts = parser.add_subparsers(required=True)
    fast = parts.add_parser("speed", help="target words a second at Transformer-Base size")
    fast.add_argument("--words", type=int, default=25_000, help="target words of a batch")
    fast.add_argument("--steps", type=int, default=300, help="about how many steps to make")
    fast.add_argument("--shapes", type=int, default=8, help="shapes of batches")
    fast.set_defaults(measure=speed)
    runs = parts.add_parser("multi30k", help="BLEU on Multi30k with several seeds")
    runs.add_argument("--data", required=True, help="folder of ngsan data parallel")
    runs.add_argument("--to", required=True, help="folder for the models")
    runs.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    runs.set_defaults(measure=multi30k)
    options = parser.parse_args()
    report = options.measure(options)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
