"""Scores of a set of captions, with intervals and comparisons, as people read them (0 to 100)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import ngsan.metrics.bootstrap as bootstrap
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.metric import Metric
from ngsan.metrics.signature import signature_line

__all__ = ["Comparison", "Scores", "compare", "intervals", "score_captions"]

SCALE = 100.0
"""What a score in natural units is multiplied by where people read it."""


@dataclass(frozen=True)
class Scores:
    """The scores of one system's captions."""

    ids: tuple[str, ...]
    """The images."""

    values: Mapping[str, float]
    """The score of the whole set by its name, such as "BLEU-4", times 100."""

    per_image: Mapping[str, NDArray[np.float64]]
    """The scores (images,) of the single images by name, times 100."""

    signatures: Mapping[str, str]
    """One line by name that says how the score was made."""

    metrics: tuple[Metric, ...]
    """What made the scores; a metric may have several names."""

    rows: tuple[NDArray[np.float64], ...]
    """The statistics (images, K) of each metric of `metrics`."""


@dataclass(frozen=True)
class Comparison:
    """How one system's score differs from another's on the same images."""

    difference: float
    """The first system's score minus the second's, times 100."""

    interval: tuple[float, float]
    """Paired-bootstrap interval of the difference."""

    p: float
    """Chance of a difference this large, either way, if the systems were alike."""


def score_captions(captions: TokenizedCaptions, metrics: Sequence[Metric]) -> Scores:
    """Scores captions with each of the metrics.

    Raises:
        ValueError: Two metrics give a score of the same name.
    """
    values: dict[str, float] = {}
    per_image: dict[str, NDArray[np.float64]] = {}
    signatures: dict[str, str] = {}
    all_rows = []
    _check_names(metrics)
    for metric in metrics:
        rows = metric.statistics(captions)
        totals = metric.score(rows.sum(axis=0)) * SCALE  # (scores,)
        singles = metric.score(rows) * SCALE  # (images, scores)
        for index, name in enumerate(metric.names):
            values[name] = float(totals[index])
            per_image[name] = singles[:, index]
            signatures[name] = signature_line(name, metric.signature, captions)
        all_rows.append(rows)
    return Scores(captions.ids, values, per_image, signatures, tuple(metrics), tuple(all_rows))


def intervals(
    scores: Scores, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Mapping[str, tuple[float, float]]:
    """Percentile-bootstrap interval of every score, times 100.

    All scores see the same resampled sets of images. Whatever a metric took from the whole set of
    references, such as CIDEr's document frequencies, stays as it was.

    Args:
        scores: What `score_captions` gave.
        resamples: Number of resampled sets.
        level: Share of them within the interval.
        seed: Of the random draws.

    Returns:
        Lower and upper end by name.
    """
    found = bootstrap.intervals(
        scores.rows,
        [metric.score for metric in scores.metrics],
        resamples=resamples,
        level=level,
        seed=seed,
    )
    return {
        name: (float(low) * SCALE, float(high) * SCALE)
        for metric, ends in zip(scores.metrics, found, strict=True)
        for name, (low, high) in zip(metric.names, ends, strict=True)
    }


def compare(
    a: Scores, b: Scores, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Mapping[str, Comparison]:
    """Tests whether two systems differ on the same images, for every score that both have.

    Args:
        a: Scores of the first system.
        b: Scores of the second, for the same images in any order.
        resamples: Number of resampled sets, and of random swaps.
        level: Share of the resampled sets within the interval.
        seed: Of the random draws.

    Returns:
        The comparison by name of the score.

    Raises:
        ValueError: Other images, scores that were made in another way, or no score in common.
    """
    places = {name: place for place, name in enumerate(b.ids)}
    if set(a.ids) != set(places):
        raise ValueError(
            f"the systems were scored on other images ({len(a.ids)} and {len(b.ids)}, "
            f"{len(set(a.ids) & set(places))} in common); score both on the same ones"
        )
    order = np.array([places[name] for name in a.ids])
    others = {metric.names: rows[order] for metric, rows in zip(b.metrics, b.rows, strict=True)}
    pairs = [
        (metric, rows, others[metric.names])
        for metric, rows in zip(a.metrics, a.rows, strict=True)
        if metric.names in others
    ]
    if not pairs:
        raise ValueError(
            f"the systems have no score in common ({', '.join(a.values)}; {', '.join(b.values)}); "
            "score both with the same metrics"
        )
    for metric, _, _ in pairs:
        for name in metric.names:
            if a.signatures[name] != b.signatures[name]:
                raise ValueError(
                    f"{a.signatures[name]} and {b.signatures[name]} cannot be compared; "
                    "score both systems in the same way"
                )
    found = bootstrap.compare(
        [rows for _, rows, _ in pairs],
        [rows for _, _, rows in pairs],
        [metric.score for metric, _, _ in pairs],
        resamples=resamples,
        level=level,
        seed=seed,
    )
    comparisons = {}
    for (metric, _, _), result in zip(pairs, found, strict=True):
        for index, name in enumerate(metric.names):
            low, high = result.intervals[index] * SCALE
            comparisons[name] = Comparison(
                difference=float(result.differences[index]) * SCALE,
                interval=(float(low), float(high)),
                p=float(result.p[index]),
            )
    return comparisons


def _check_names(metrics: Sequence[Metric]) -> None:
    """Refuses two metrics that would write the same score."""
    names = [name for metric in metrics for name in metric.names]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two metrics are named {name!r}; leave one of them out")
