"""How sure a score is, and whether two differ, from statistics that add up (see `metric`).

Shape legend: I images, K statistics of a metric, S scores of a metric, R resampled sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["PairedTest", "compare", "intervals"]

Floats = NDArray[np.float64]
Score = Callable[[Floats], Floats]
"""From sums of statistics (..., K) to scores (..., S)."""

_AT_ONCE = 4_000_000  # random numbers held at a time
# Two sums of the same numbers in another order may differ by this much of the sum of scores.
_ROUNDING = 1e-11


@dataclass(frozen=True)
class PairedTest:
    """How the scores of one metric differ between two systems."""

    differences: Floats
    """(S,) First minus second."""

    intervals: Floats
    """(S, 2) Percentile interval of the difference from paired resampling."""

    p: Floats
    """(S,) Two-sided p of approximate randomisation."""


def intervals(
    rows: Sequence[Floats],
    scores: Sequence[Score],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> list[Floats]:
    """Percentile-bootstrap intervals of the scores of several metrics.

    Images are drawn with replacement, as many as there are. All metrics see the same draws.

    Args:
        rows: Statistics (I, K) of each metric, for the same images.
        scores: The formula of each metric.
        resamples: Number R of resampled sets.
        level: Share of the resampled scores within the interval.
        seed: Of the random draws.

    Returns:
        For each metric the ends (S, 2) of its scores' intervals.
    """
    _check(resamples, level)
    totals = _resampled_totals(rows, resamples, seed) if rows else []
    return [_percentiles(score(total), level) for score, total in zip(scores, totals, strict=True)]


def compare(
    first: Sequence[Floats],
    second: Sequence[Floats],
    scores: Sequence[Score],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> list[PairedTest]:
    """Tests for each of several metrics whether two systems differ on the same images.

    The p-value is that of approximate randomisation: were the systems alike, each image's two
    captions could be swapped. Of R random swaps, each image's with chance 1/2, count those that
    give a difference at least as large as the true one in either direction; then
    p = (count + 1) / (R + 1).

    The interval comes from drawing images with replacement, the same ones for both systems.

    Args:
        first: Statistics (I, K) of each metric for the first system.
        second: The same for the second system, image by image.
        scores: The formula of each metric.
        resamples: Number R of random swaps, and of resampled sets.
        level: Share of the resampled differences within the interval.
        seed: Of the random draws.

    Returns:
        One result for each metric.
    """
    _check(resamples, level)
    for ours, theirs in zip(first, second, strict=True):
        if ours.shape != theirs.shape:
            raise ValueError(
                f"statistics of shapes {ours.shape} and {theirs.shape} cannot be compared; score "
                "both systems on the same images with the same metric"
            )
    drawn = _resampled_totals([*first, *second], resamples, seed)
    moved = _swapped_totals([b - a for a, b in zip(first, second, strict=True)], resamples, seed)
    results = []
    for index, score in enumerate(scores):
        a, b = first[index].sum(axis=0), second[index].sum(axis=0)
        of_a, of_b = score(a), score(b)
        change = moved[index]  # (R, K)
        swapped = np.abs(score(a + change) - score(b - change))
        least = np.abs(of_a - of_b) - _ROUNDING * (np.abs(of_a) + np.abs(of_b))
        ends = _percentiles(score(drawn[index]) - score(drawn[len(first) + index]), level)
        p = ((swapped >= least).sum(axis=0) + 1) / (resamples + 1)
        results.append(PairedTest(of_a - of_b, ends, p))
    return results


def _check(resamples: int, level: float) -> None:
    """Refuses impossible settings."""
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; give at least 1, or ask for no interval")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; give a share between 0 and 1, such as 0.95")


def _percentiles(samples: Floats, level: float) -> Floats:
    """Ends (S, 2) of the interval that holds the middle of the samples (R, S)."""
    tail = (1 - level) / 2
    ends: Floats = np.quantile(samples, (tail, 1 - tail), axis=0).T
    return ends


def _resampled_totals(rows: Sequence[Floats], resamples: int, seed: int) -> list[Floats]:
    """For each metric the sums (R, K) of its statistics over resampled images."""
    images = len(rows[0])
    random = np.random.default_rng([seed, 0])

    def draws(size: int) -> Floats:
        drawn = (random.integers(images, size=images) for _ in range(size))
        return np.array([np.bincount(one, minlength=images) for one in drawn], np.float64)

    return _totals(rows, resamples, draws)


def _swapped_totals(rows: Sequence[Floats], resamples: int, seed: int) -> list[Floats]:
    """For each metric the sums (R, K) of its statistics over a random half of the images."""
    images = len(rows[0])
    random = np.random.default_rng([seed, 1])

    def draws(size: int) -> Floats:
        return random.integers(2, size=(size, images)).astype(np.float64)

    return _totals(rows, resamples, draws)


def _totals(rows: Sequence[Floats], resamples: int, draws: Callable[[int], Floats]) -> list[Floats]:
    """Sums the rows of all metrics with the weights (size, I) that `draws` gives, in chunks."""
    whole = np.concatenate(rows, axis=1)  # (I, sum of K)
    sums = [draws(size) @ whole for size in _chunks(resamples, len(whole))]
    borders = np.cumsum([each.shape[1] for each in rows])[:-1]
    return np.split(np.concatenate(sums), borders, axis=1)


def _chunks(resamples: int, images: int) -> Iterator[int]:
    """Sizes that add up to the number of resampled sets and keep memory bounded."""
    most = max(1, _AT_ONCE // images)
    for done in range(0, resamples, most):
        yield min(most, resamples - done)
