"""Tests and intervals for the difference of two models, each trained with several seeds.

The sample is the trained models: two models are compared by their differences seed by seed, with a
t-test on the number of seeds. Images come in only together with seeds: a test over images alone
takes two seeds of one model for different models.

Shape legend: N seeds, I units (images, sentences, questions), K counts of a score.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ngsan.metrics.bootstrap import Floats, Score

LEVEL = 0.95
"""The share of the intervals that hold the true difference."""

MIN_SEEDS = 3
"""Fewer seeds have no test: with two, a 95 % interval is nine deviations wide to each side."""

_SIMPSON_STEPS = 2000
_POWER_STEPS = 400
_HALVINGS = 60


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation (of a sample) if there is more than one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1))


def student_tail(t: float, freedom: float) -> float:
    """The probability of a value above `t`, at least 0, in Student's distribution.

    With x = sqrt(n) tan(a) the density becomes a power of the cosine, which is smooth and ends at
    a right angle, so that Simpson's rule is exact to many digits.
    """
    angle = math.atan(t / math.sqrt(freedom))
    points = np.linspace(angle, math.pi / 2, _SIMPSON_STEPS + 1)
    with np.errstate(divide="ignore"):
        values = np.exp((freedom - 1) * np.log(np.maximum(np.cos(points), 0)))
    area = _simpson(values, (math.pi / 2 - angle) / _SIMPSON_STEPS)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return area * math.exp(log_scale)


def _simpson(values: Floats, step: float) -> float:
    """The integral over an even number of steps."""
    weights = np.ones(len(values))
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return float(values @ weights) * step / 3


def critical_value(freedom: float, level: float = LEVEL) -> float:
    """The t that a share `level` of Student's distribution lies within."""
    return _root(lambda t: student_tail(t, freedom) - (1 - level) / 2)


def _root(function: Callable[[float], float]) -> float:
    """Where a falling function that is positive at 0 crosses 0."""
    high = 1.0
    while function(high) > 0:
        high *= 2
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return high


def paired_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the mean difference over seeds, of the paired t-test.

    Args:
        differences: One per seed.

    Returns:
        None with fewer than `MIN_SEEDS` seeds, or if they do not vary.
    """
    mean, deviation = mean_and_deviation(differences)
    if len(differences) < MIN_SEEDS or not deviation:
        return None
    half = critical_value(len(differences) - 1) * deviation / math.sqrt(len(differences))
    return mean - half, mean + half


def paired_p(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of the paired t-test over seeds; None where `paired_interval` is."""
    mean, deviation = mean_and_deviation(differences)
    if len(differences) < MIN_SEEDS or not deviation:
        return None
    t = abs(mean) / deviation * math.sqrt(len(differences))
    return 2 * student_tail(t, len(differences) - 1)


@dataclass(frozen=True)
class MixedModel:
    """A difference when both seeds and units are samples.

    Difference = mean + effect of the seed + effect of the unit + rest. The variance of the mean is
    that over seeds plus what units add beyond the rest. The first has the degrees of freedom of the
    seeds, the second those of the units; probabilities are the means of those of the two
    t-distributions, weighted by these variances.

    Note: Satterthwaite's degrees of freedom reject too many equal models with three seeds.
        `benchmarks/false_positives.py` measures what these weights reject at the 5 % level.
    """

    mean: float
    error: float
    """The standard error of the mean."""

    share: float
    """The share of the seeds in its square."""

    seeds: int
    units: int

    @classmethod
    def fit(cls, differences: Floats) -> "MixedModel | None":
        """Estimates the variances by the analysis of variance.

        Args:
            differences: (N, I)

        Returns:
            None with fewer than `MIN_SEEDS` seeds or two units, or if seeds do not vary.
        """
        seeds, units = differences.shape
        if seeds < MIN_SEEDS or units < 2:
            return None
        mean = float(differences.mean())
        by_seed: Floats = differences.mean(axis=1, keepdims=True) - mean  # (N, 1)
        by_unit: Floats = differences.mean(axis=0) - mean  # (I,)
        rest = differences - mean - by_seed - by_unit
        of_seeds = units * float((by_seed**2).sum()) / (seeds - 1)
        of_units = seeds * float((by_unit**2).sum()) / (units - 1)
        of_rest = float((rest**2).sum()) / ((seeds - 1) * (units - 1))
        # Equal seeds leave rounding errors.
        if of_seeds <= 1e-20 * (mean**2 + of_units):
            return None
        total = of_seeds + max(of_units - of_rest, 0.0)
        return cls(mean, math.sqrt(total / (seeds * units)), of_seeds / total, seeds, units)

    def _tail(self, t: float) -> float:
        """The probability of a value above `t` standard errors."""
        of_units = student_tail(t, self.units - 1)
        return self.share * student_tail(t, self.seeds - 1) + (1 - self.share) * of_units

    @property
    def p(self) -> float:
        """The two-sided p-value."""
        return 2 * self._tail(abs(self.mean) / self.error)

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return self.error * _root(lambda t: self._tail(t) - (1 - LEVEL) / 2)


def unit_scores(counts: Floats, score: Score) -> Floats:
    """(I,) values whose mean is a score of a whole set: jackknife pseudo-values.

    For a metric that is a mean they are the units' own values; for corpus BLEU each is I times the
    score less I - 1 times the score without the sentence.

    Args:
        counts: (I, K) counts per unit.
        score: From means (..., K) to scores (..., 1).
    """
    units = len(counts)
    total = counts.sum(axis=0)
    whole = score(total / units)[..., 0]
    without = score((total - counts) / (units - 1))[..., 0]
    return np.asarray(units * whole - (units - 1) * without)


def detectable(deviation: float, seeds: int, power: float = 0.8) -> float:
    """The true difference that the paired t-test finds with a given probability, at the 5 % level.

    Args:
        deviation: The standard deviation of the differences over seeds.
        seeds: The number of seeds.
        power: The probability.
    """
    freedom = seeds - 1
    limit = critical_value(freedom)
    # The ratio of the sample's deviation to the true one is chi-distributed.
    end = 1 + 12 / math.sqrt(freedom)
    ratios = np.linspace(0, end, _POWER_STEPS + 1)
    scale = math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
    density = np.exp(scale - freedom / 2 * ratios**2) * ratios ** (freedom - 1)
    limits = (limit * ratios).tolist()

    def missed(shift: float) -> float:
        """The probability of no finding, with a difference of `shift` standard errors."""
        inside = [_normal(each - shift) - _normal(-each - shift) for each in limits]
        return _simpson(density * np.array(inside), end / _POWER_STEPS)

    return _root(lambda shift: missed(shift) - (1 - power)) * deviation / math.sqrt(seeds)


def _normal(value: float) -> float:
    return math.erfc(-value / math.sqrt(2)) / 2
