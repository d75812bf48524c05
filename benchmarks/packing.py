"""Measures how much packing (skipping padding in the decoder) saves, on one CPU core.

    python benchmarks/packing.py

It times forward and backward of the losses of NG-SAN's two phases, on random captions of COCO's
lengths, with all positions of the batch and with real words only, alternately, and prints the
medians.
"""

import argparse
import statistics
import time
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner
from ngsan.nn.losses import word_cross_entropy_sum
from ngsan.train.self_critical import SelfCriticalLoss
from ngsan.train.tasks.captioning import CrossEntropyLoss

CAPTIONS, MAX_LENGTH = 5, 20


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=8, help="images of a batch")
    parser.add_argument("--regions", type=int, default=64, help="regions of an image")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = CaptionerConfig(feature_dim=352, layers=options.layers, norm_place="pre")
    captioner = build_captioner(config).train()
    random = np.random.default_rng(0)
    # COCO's captions have 10.5 words on average; few have less than 8 or more than 16.
    lengths = 8 + random.gamma(2.1, 1.65, (options.images, CAPTIONS)).astype(np.int64)
    mask = (
        torch.arange(MAX_LENGTH + 1)
        < torch.from_numpy(lengths).clamp(max=MAX_LENGTH + 1)[..., None]
    )
    words, targets = torch.randint(1, config.vocab_size, (2, *mask.shape))
    regions = torch.randn(options.images, options.regions, config.feature_dim)
    boxes = torch.rand(options.images, options.regions, 4) / 2 + 0.1
    advantages = torch.randn(options.images, CAPTIONS)
    rules = SimpleNamespace(temperature=1.0, forbidden=None)
    packed = CrossEntropyLoss(captioner)
    critical = {static: SelfCriticalLoss(captioner, rules, static=static) for static in (0, 1)}

    def padded() -> Tensor:
        logits = captioner(regions, boxes, None, words)
        return word_cross_entropy_sum(logits, targets, mask)

    given = (regions, boxes, None, words, targets, mask)
    phases = {
        "cross-entropy": (padded, lambda: packed(*given)[0]),
        "self-critical": (
            lambda: critical[1](*given, advantages)[0],
            lambda: critical[0](*given, advantages)[0],
        ),
    }
    print(f"{float(mask.float().mean()):.0%} of the positions are words")
    for name, (whole, real) in phases.items():
        spent: tuple[list[float], list[float]] = [], []
        for _ in range(options.times + 1):
            for work, times in zip((whole, real), spent, strict=True):
                start = time.perf_counter()
                work().backward()
                times.append(time.perf_counter() - start)
        before, after = (statistics.median(times[1:]) for times in spent)
        print(f"{name}: {before:.2f} s with padding, {after:.2f} s without: {after / before:.2f}")


if __name__ == "__main__":
    main()
