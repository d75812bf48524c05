"""Whether probabilities come true: calibration error, reliability, and how well they separate.

Shapes: `M` predictions.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS = 10
"""Default number of bins."""


class Bin(NamedTuple):
    """Predictions of about the same probability."""

    total: int
    predicted: float
    """Mean probability."""
    observed: float
    """Share that came true."""


def reliability(
    probabilities: NDArray[np.floating[Any]], outcomes: NDArray[np.bool_], *, bins: int = BINS
) -> list[Bin]:
    """Groups predictions into bins of equal width from 0 to 1; empty bins are left out.

    Args:
        probabilities: (M,) from 0 to 1.
        outcomes: (M,) what came true.
        bins: Their number.

    Raises:
        ValueError: There are no predictions, or one is not a probability.
    """
    probabilities = np.asarray(probabilities, np.float64)
    if not len(probabilities) or not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("probabilities must be one or more numbers from 0 to 1")
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    counts = np.bincount(place, minlength=bins)
    predicted = np.bincount(place, probabilities, bins)
    observed = np.bincount(place, np.asarray(outcomes, np.float64), bins)
    return [
        Bin(int(count), float(predicted[each] / count), float(observed[each] / count))
        for each, count in enumerate(counts)
        if count
    ]


def calibration_error(bins: list[Bin]) -> float:
    """The expected calibration error (Naeini et al. 2015): the bins' mean gap, by their counts."""
    gap = sum(each.total * abs(each.predicted - each.observed) for each in bins)
    return gap / sum(each.total for each in bins)


def auroc(scores: NDArray[np.floating[Any]], outcomes: NDArray[np.bool_]) -> float:
    """The area under the ROC curve: how often a true one has the higher score; a tie is half.

    Raises:
        ValueError: All outcomes are the same.
    """
    outcomes = np.asarray(outcomes, np.bool_)
    true, false = int(outcomes.sum()), int((~outcomes).sum())
    if not true or not false:
        raise ValueError(f"all {len(outcomes)} outcomes are the same")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # from 1; ties share their mean
    return float((ranks[outcomes].sum() - true * (true + 1) / 2) / (true * false))
