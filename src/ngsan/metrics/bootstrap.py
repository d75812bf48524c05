"""Confidence intervals and significance tests from statistics that add up over images.

Shape legend: I images, K statistics of a metric, S scores of a metric, R resampled sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Score = Callable[[Floats], Floats]
"""Maps sums of statistics (..., K) to scores (..., S)."""

_CHUNK = 4_000_000  # random numbers in memory at a time
# Sums in another order may differ by this share of the sum of the scores.
_ROUNDING = 1e-11


@dataclass(frozen=True)
class PairedTest:
    """Difference between two systems in the scores of one metric."""

    differences: Floats
    """(S,) First minus second."""
    intervals: Floats
    """(S, 2) Percentile interval of the difference, from paired resampling."""
    p: Floats
    """(S,) Two-sided p-value of approximate randomisation."""


def intervals(
    rows: Sequence[Floats],
    scores: Sequence[Score],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> list[Floats]:
    """Percentile-bootstrap intervals of the scores of several metrics.

    I images are drawn with replacement, the same ones for all metrics.

    Args:
        rows: Statistics (I, K) of each metric, for the same images.
        scores: Score function of each metric.
        resamples: Number R of resampled sets.
        level: Share of the resampled scores within the interval.
        seed: Seed of the random draws.

    Returns:
        For each metric the limits (S, 2) of its scores' intervals.
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

    The p-value is that of approximate randomisation. If the systems were equal, each image's two
    captions could be swapped. Each of R trials swaps the captions of each image with probability
    1/2; with `count` the trials whose absolute difference is at least the observed one,
    p = (count + 1) / (R + 1).

    The interval comes from drawing images with replacement, the same ones for both systems.

    Args:
        first: Statistics (I, K) of each metric for the first system.
        second: The same for the second system, image by image.
        scores: Score function of each metric.
        resamples: Number R of random swaps, and of resampled sets.
        level: Share of the resampled differences within the interval.
        seed: Seed of the random draws.

    Returns:
        One result per metric.
    """
    _check(resamples, level)
    for ours, theirs in zip(first, second, strict=True):
        if ours.shape != theirs.shape:
            raise ValueError(
                f"cannot compare statistics of shapes {ours.shape} and {theirs.shape}; score both "
                "systems on the same images with the same metric"
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
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}, but must be at least 1")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, but must be between 0 and 1, such as 0.95")


def _percentiles(samples: Floats, level: float) -> Floats:
    """Limits (S, 2) of the central interval of the samples (R, S)."""
    tail = (1 - level) / 2
    ends: Floats = np.quantile(samples, (tail, 1 - tail), axis=0).T
    return ends


def _resampled_totals(rows: Sequence[Floats], resamples: int, seed: int) -> list[Floats]:
    """Sums (R, K) of each metric's statistics over resampled images."""
    images = len(rows[0])
    random = np.random.default_rng([seed, 0])

    def draws(size: int) -> Floats:
        drawn = (random.integers(images, size=images) for _ in range(size))
        return np.array([np.bincount(one, minlength=images) for one in drawn], np.float64)

    return _totals(rows, resamples, draws)


def _swapped_totals(rows: Sequence[Floats], resamples: int, seed: int) -> list[Floats]:
    """Sums (R, K) of each metric's statistics over a random half of the images."""
    images = len(rows[0])
    random = np.random.default_rng([seed, 1])

    def draws(size: int) -> Floats:
        return random.integers(2, size=(size, images)).astype(np.float64)

    return _totals(rows, resamples, draws)


def _totals(rows: Sequence[Floats], resamples: int, draws: Callable[[int], Floats]) -> list[Floats]:
    """Sums the rows of all metrics with weights (size, I) from `draws`, in chunks."""
    whole = np.concatenate(rows, axis=1)  # (I, sum of K)
    chunk = max(1, _CHUNK // len(whole))
    sizes = (min(chunk, resamples - done) for done in range(0, resamples, chunk))
    sums = [draws(size) @ whole for size in sizes]
    borders = np.cumsum([each.shape[1] for each in rows])[:-1]
    return np.split(np.concatenate(sums), borders, axis=1)
