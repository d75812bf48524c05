"""Learns which words people use for a photograph, from features of the second eye.

Shapes: `M` photographs, `D` inputs of the layers, `W` words, `K` keywords.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ngsan.atomic_io import replace_folder
from ngsan.data.captions import read_captions
from ngsan.fit.features import read_features
from ngsan.fit.logistic import fit_logistic
from ngsan.fit.words import choose_words, group_forms
from ngsan.metrics.calibration import Bin, calibration_error, reliability
from ngsan.text.tokenizers import plain_words
from ngsan.vision.keywords import (
    EYE,
    LAYERS,
    KeywordModel,
    Layers,
    Words,
    keyword_log_odds,
    layer_inputs,
    load_keywords,
)

MIN_SHARE = 0.00115
"""Share of the training photographs that a word must describe: 130 of COCO's 113,287."""

SHOWN = 10
"""Keywords of a photograph that the calibration is for."""

_HIDDEN = 1024
_BATCH = 256
_PEAK_RATE = 1e-3
_EPOCHS = 8
_DECAY = 0.1
_INPUT_DROPOUT, _DROPOUT = 0.2, 0.3
_LEAST_DEVIATION = 1e-3


@dataclass(frozen=True)
class Report:
    """How good keywords are on photographs that nothing was fitted to."""

    photographs: int
    precision: Mapping[int, float]
    """Share of the first 1, 5 and 10 keywords of a photograph that a reference caption has."""
    error: float
    """Expected calibration error of the first 10."""
    bins: Sequence[Bin]
    """Reliability of the first 10."""


class References:
    """The words of the reference captions of a dataset's photographs."""

    def __init__(self, folder: str | Path) -> None:
        self.splits: dict[str, str] = {}
        self._words: dict[str, list[set[str]]] = {}
        for record in read_captions(folder):
            self.splits[record.id] = record.split
            self._words[record.id] = [set(plain_words(caption)) for caption in record.captions]

    def of_split(self, split: str) -> list[list[set[str]]]:
        """The words of each caption of the photographs of a split."""
        return [self._words[image] for image, own in self.splits.items() if own == split]

    def shares(self, images: Sequence[str], words: Sequence[str]) -> NDArray[np.float16]:
        """(M, W) the share of a photograph's captions that use a word."""
        places = {word: place for place, word in enumerate(words)}
        found = np.zeros((len(images), len(words)), np.float16)
        for row, image in zip(found, images, strict=True):
            captions = self._words[image]
            for caption in captions:
                for word in caption & places.keys():
                    row[places[word]] += 1
            row /= len(captions)
        return found


def fit_keywords(data: str | Path, features: Path, output: Path) -> Report:
    """Learns keywords and writes their folder.

    The layers learn from the photographs of the training split, the calibration from every other
    one of the validation split, and the report is about the rest of that.

    Args:
        data: The dataset's folder, with captions.
        features: What `extract_features` wrote, and the graph that made it.
        output: The folder to write. Keywords that are there are replaced.

    Raises:
        ValueError: There are no features of a split.
    """
    references = References(data)
    images, pooled = read_features(features)
    split = np.array([references.splits[image] for image in images])
    learn, held = np.flatnonzero(split == "train"), np.flatnonzero(split == "val")
    if not len(learn) or len(held) < 2:
        raise ValueError(f"{features} has {len(learn)} photographs of train and {len(held)} of val")
    training = references.of_split("train")
    words = choose_words(training, min_images=max(2, round(MIN_SHARE * len(training))))
    places = {word: place for place, word in enumerate(words)}
    groups = group_forms(words)
    forms = {name: [places[word] for word in mine] for name, mine in groups.items()}
    shares = references.shares(images, words)
    inputs = np.concatenate([layer_inputs(part) for part in np.array_split(pooled, 64)])
    layers = fit_layers(inputs[learn], shares[learn])
    used = _any_of(shares[held] > 0, list(forms.values()))
    fit, rest = slice(0, None, 2), slice(1, None, 2)
    with replace_folder(output) as partial:
        shutil.copyfile(features / EYE, partial / EYE)
        layers.save(partial / LAYERS)
        sums = {name: _sha256(partial / name) for name in (EYE, LAYERS)}
        logits = Layers.load((partial / LAYERS).read_bytes())(pooled[held])
        calibration = calibrate(keyword_log_odds(logits[fit], list(forms.values())), used[fit])
        Words(words, forms, calibration, len(learn), sums).save(partial)
        model = load_keywords(partial)
    return assess(model, logits[rest], used[rest])


def fit_layers(
    inputs: NDArray[np.float32], shares: NDArray[np.float16], *, seed: int = 0
) -> Layers:
    """Learns the layers by AdamW with a one-cycle schedule.

    Args:
        inputs: (M, D) of training photographs.
        shares: (M, W) the share of a photograph's captions that use each word.
        seed: Seed of the initial weights, the batches and dropout.
    """
    mean, deviation = inputs.mean(0), inputs.std(0) + _LEAST_DEVIATION
    x = torch.from_numpy((inputs - mean) / deviation)
    y = torch.from_numpy(shares)
    least = 0.5 / len(shares)
    prior = torch.logit(torch.from_numpy(shares.mean(0, dtype=np.float32)).clamp(least, 1 - least))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = nn.Linear(x.shape[1], _HIDDEN)
        output = nn.Linear(_HIDDEN, y.shape[1])
        nn.init.zeros_(output.weight)
        output.bias.data.copy_(prior)
        network = nn.Sequential(
            nn.Dropout(_INPUT_DROPOUT), hidden, nn.ReLU(), nn.Dropout(_DROPOUT), output
        )
        _train(network, x, y)

    def array(tensor: Tensor) -> NDArray[np.float32]:
        found: NDArray[np.float32] = tensor.detach().numpy()
        return found

    return Layers(
        mean,
        deviation,
        array(hidden.weight),
        array(hidden.bias),
        array(output.weight),
        array(output.bias),
        array(prior),
    )


def _train(network: nn.Module, x: Tensor, y: Tensor) -> None:
    steps = -(-len(x) // _BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _PEAK_RATE, total_steps=_EPOCHS * steps
    )
    for _ in range(_EPOCHS):
        for chosen in torch.split(torch.randperm(len(x)), _BATCH):
            logits = network(x[chosen])
            loss = F.binary_cross_entropy_with_logits(logits, y[chosen].float(), reduction="sum")
            optimizer.zero_grad()
            torch.autograd.backward(loss / len(chosen))
            optimizer.step()
            schedule.step()


def calibrate(log_odds: NDArray[np.float64], used: NDArray[np.bool_]) -> tuple[float, float]:
    """Factor and summand that make the log-odds of the first keywords of photographs true.

    Args:
        log_odds: (M, K).
        used: (M, K) whether a reference caption uses a form of the keyword.
    """
    best = np.argsort(-log_odds, 1)[:, :SHOWN]
    shown = np.take_along_axis(log_odds, best, 1).ravel()
    inputs = np.stack((shown, np.ones_like(shown)), 1)
    factor, summand = fit_logistic(inputs, np.take_along_axis(used, best, 1).ravel())
    return float(factor), float(summand)


def assess(model: KeywordModel, logits: NDArray[np.float32], used: NDArray[np.bool_]) -> Report:
    """How good keywords are.

    Args:
        model: Them.
        logits: (M, W) of photographs that nothing was fitted to.
        used: (M, K) whether a reference caption uses a form of the keyword.
    """
    confidences = model.confidences(logits)
    best = np.argsort(-confidences, 1, kind="stable")[:, :SHOWN]
    right = np.take_along_axis(used, best, 1)
    bins = reliability(np.take_along_axis(confidences, best, 1).ravel(), right.ravel())
    precision = {limit: float(right[:, :limit].mean()) for limit in (1, 5, 10)}
    return Report(len(logits), precision, calibration_error(bins), bins)


def _any_of(used: NDArray[np.bool_], forms: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """(M, K) whether any form of each keyword is used, of (M, W) words."""
    return np.stack([used[:, list(places)].any(1) for places in forms], 1)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
