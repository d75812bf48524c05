"""Whether a model knows relations: true sentences against false ones, and words in captions.

Intervals are of the percentile bootstrap over images, as the sentences of an image belong together.

Shapes: `S` sentences, `I` images, `R` resampled sets.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngsan.text.relations import relation_words

Floats = NDArray[np.float64]

_LEVEL = 0.95
_MIN_REFERENCES = 2
"""References of an image that must have a word before a caption should have it."""


@dataclass(frozen=True)
class Estimate:
    """A share with its interval."""

    value: float
    """NaN if there is nothing to average."""

    interval: tuple[float, float]


def auc(scores: Floats, true: NDArray[np.bool_], weights: Floats | None = None) -> float:
    """The probability that a true sentence scores higher than a false one; equal counts half.

    Args:
        scores: (S,)
        true: (S,)
        weights: (S,) how often each sentence counts; None for once.

    Returns:
        NaN without a true or without a false sentence.
    """
    weights = np.ones(len(scores)) if weights is None else weights
    _, places = np.unique(scores, return_inverse=True)
    trues = np.bincount(places, weights * true)
    falses = np.bincount(places, weights * ~true)
    pairs = trues.sum() * falses.sum()
    lower = np.cumsum(falses) - falses
    return float(trues @ (lower + falses / 2) / pairs) if pairs else float("nan")


def estimate(
    measure: Callable[[Floats], float], images: Sequence[str], *, resamples: int = 1000
) -> Estimate:
    """A measure of sentences with its interval.

    Args:
        measure: From weights (S,) of the sentences to a value.
        images: The image of each sentence.
        resamples: The number R of resampled sets of images.
    """
    names, places = np.unique(np.asarray(images), return_inverse=True)
    random = np.random.default_rng(0)
    value = measure(np.ones(len(places)))
    if math.isnan(value) or not len(names):
        return Estimate(value, (value, value))
    drawn = [
        measure(
            np.bincount(random.integers(len(names), size=len(names)), minlength=len(names))[
                places
            ].astype(np.float64)
        )
        for _ in range(resamples)
    ]
    low, high = np.nanquantile(drawn, ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2))
    return Estimate(value, (float(low), float(high)))


def estimate_auc(scores: Floats, true: NDArray[np.bool_], images: Sequence[str]) -> Estimate:
    """The AUC of sentences with its interval."""
    return estimate(lambda weights: auc(scores, true, weights), images)


def estimate_share(right: Floats, images: Sequence[str], counted: Floats | None = None) -> Estimate:
    """The share of what is right.

    Args:
        right: (S,) what is right of each item: 0 or 1, or a number.
        images: Its image.
        counted: (S,) of how many; None for one each.
    """
    of = np.ones(len(right)) if counted is None else counted

    def share(weights: Floats) -> float:
        total = float(weights @ of)
        return float(weights @ right) / total if total else float("nan")

    return estimate(share, images)


@dataclass(frozen=True)
class RelationWords:
    """Relation words of captions against those of the references."""

    precision: Estimate
    """The share of the captions' relation words that a reference has, too."""

    recall: Estimate
    """The share of the words that two references have which the caption has, too."""


def relation_words_in_captions(
    captions: Mapping[str, Sequence[str]], references: Mapping[str, Sequence[Sequence[str]]]
) -> RelationWords:
    """Compares the relation words of captions with those of the references.

    Args:
        captions: The words of the caption of each image.
        references: The words of each reference of the same images.
    """
    counts = []
    for image, words in captions.items():
        said = relation_words(words)
        named = Counter(word for one in references[image] for word in relation_words(one))
        agreed = {word for word, times in named.items() if times >= _MIN_REFERENCES}
        counts.append((len(said & named.keys()), len(said), len(said & agreed), len(agreed)))
    table = np.array(counts, np.float64).reshape(-1, 4)
    images = list(captions)
    return RelationWords(
        precision=estimate_share(table[:, 0], images, table[:, 1]),
        recall=estimate_share(table[:, 2], images, table[:, 3]),
    )
