"""The log-probability of given sentences.

Shapes: `B` images, `R` sentences an image, `T` words, `V` vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.search.search import StepModel, ops_for
from ngsan.text.vocabulary import BOUNDARY


def score_sentences(model: StepModel, words: NDArray[np.int64]) -> NDArray[np.float64]:
    """(B, R) log-probabilities of sentences with their ends.

    Args:
        model: The model with its images.
        words: (B, R, T) word ids; each sentence ends with the boundary, and so does the padding.
    """
    ops = ops_for(model.device)
    images, rows, length = words.shape
    total = np.zeros((images, rows))
    open_ones = np.ones((images, rows), np.bool_)
    previous = np.full((images, rows), BOUNDARY)
    with ops.session():
        model.start(rows, length)
        for place in range(length):
            log_probs = ops.log_softmax(model.step(ops.array(previous), None))
            previous = words[..., place]
            chosen = ops.take(log_probs, ops.array(previous[..., None]))[..., 0]
            total += np.where(open_ones, _numpy(chosen), 0.0)
            open_ones &= previous != BOUNDARY
    return total


def _numpy(values: Any) -> NDArray[Any]:
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def pad_sentences(sentences: Sequence[Sequence[Sequence[int]]]) -> NDArray[np.int64]:
    """(B, R, T) ids of sentences with their ends; images with fewer get empty ones.

    Args:
        sentences: The ids of the words of each sentence of each image.
    """
    rows = max(map(len, sentences), default=0)
    length = 1 + max((len(one) for mine in sentences for one in mine), default=0)
    words = np.full((len(sentences), rows, length), BOUNDARY)
    for image, mine in enumerate(sentences):
        for row, one in enumerate(mine):
            words[image, row, : len(one)] = one
    return words
