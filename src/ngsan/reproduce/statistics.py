"""Means over seeds, and whether two models differ."""

import math
from collections.abc import Sequence

import numpy as np

from ngsan.metrics.bootstrap import Floats, Score, compare

RESAMPLES = 10_000


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation (of a sample) if there is more than one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1))


def welch(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Welch's t-test: the chance of means this far apart, either way, if both were alike.

    Args:
        first: Values of one model, a seed each.
        second: Of the other.

    Returns:
        None with fewer than two values of either, or if none of them vary.
    """
    if len(first) < 2 or len(second) < 2:
        return None
    (mean, deviation), (other, its) = mean_and_deviation(first), mean_and_deviation(second)
    assert deviation is not None
    assert its is not None
    mine, theirs = deviation**2 / len(first), its**2 / len(second)
    if mine + theirs == 0:
        return None
    t = abs(mean - other) / math.sqrt(mine + theirs)
    freedom = (mine + theirs) ** 2 / (mine**2 / (len(first) - 1) + theirs**2 / (len(second) - 1))
    return 2 * student_tail(t, freedom)


def student_tail(t: float, freedom: float) -> float:
    """The chance of a value above `t`, at least 0, of Student's distribution.

    With x = sqrt(n) tan(a) the density becomes a power of the cosine, which is smooth and ends at
    a right angle, so that Simpson's rule is exact to many digits.
    """
    angle = math.atan(t / math.sqrt(freedom))
    steps = 2000
    points = np.linspace(angle, math.pi / 2, steps + 1)
    with np.errstate(divide="ignore"):
        values = np.exp((freedom - 1) * np.log(np.maximum(np.cos(points), 0)))
    weights = np.ones(steps + 1)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    area = float(values @ weights) * (math.pi / 2 - angle) / steps / 3
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return area * math.exp(log_scale)


def sum_of_first(totals: Floats) -> Floats:
    """The score (..., 1) of a metric that is a mean, but for the number of what it is taken of."""
    return totals[..., :1]


def paired(first: Floats, second: Floats, score: Score = sum_of_first, seed: int = 0) -> float:
    """A paired test: the chance of such a difference if both were alike.

    Whoever wrote which of the two texts of an image, sentence or question is drawn by a coin again
    and again, and the score of the whole set is taken each time.

    Args:
        first: (I, K) what the score counts in each, of one model, averaged over its seeds.
        second: Of the other, of the same images, sentences or questions.
        score: From sums (..., K) to scores (..., 1).
        seed: Of the coin.
    """
    (found,) = compare([first], [second], [score], resamples=RESAMPLES, seed=seed)
    return float(found.p[0])
