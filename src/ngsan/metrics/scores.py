"""Scores of a set of captions on the scale of 0 to 100, with intervals and comparisons.

`score` takes raw text; `score_captions` takes tokenized captions and metric objects.

Example:
    >>> scores = score({"1": "a dog runs"}, {"1": ["A dog is running.", "The dog runs."]})
    >>> round(scores.values["ROUGE-L"], 1)
    80.5

A signature says how a score was computed; scores with equal signatures can be compared:
``ROUGE-L|images:5000|refs:5-7|tok:ptb-3.4.1-b|beta:1.2|version:ngsan-0.1.0``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import ngsan.metrics.bootstrap as bootstrap
from ngsan import __version__
from ngsan.metrics.bleu import Bleu
from ngsan.metrics.captions import Metric, TokenizedCaptions
from ngsan.metrics.cider import Cider, CiderD, CiderPlain, DocumentFrequencies
from ngsan.metrics.rouge import RougeL

DEFAULT_METRICS = ("BLEU", "METEOR", "ROUGE-L", "CIDEr", "CIDEr-D")
"""Metrics that `score` computes by default, as far as they are installed."""

METRICS = (*DEFAULT_METRICS, "SPICE", "CIDEr-plain")
"""All metrics by name."""

SCALE = 100.0
"""Scores in natural units are multiplied by this; CIDEr is then from 0 to 1000."""


@dataclass(frozen=True)
class Scores:
    """Scores of one system's captions, times 100."""

    ids: tuple[str, ...]
    """The image ids."""
    values: Mapping[str, float]
    """Score of the whole set by name, such as "BLEU-4"."""
    per_image: Mapping[str, NDArray[np.float64]]
    """Scores (images,) of the single images by name."""
    signatures: Mapping[str, str]
    """Signature of each score by name."""
    metrics: tuple[Metric, ...]
    """The metrics that computed the scores; a metric may give several."""
    rows: tuple[NDArray[np.float64], ...]
    """The statistics (images, K) of each metric in `metrics`."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Metrics that were not computed because something is not installed, and what to install."""


@dataclass(frozen=True)
class Comparison:
    """Difference between two systems in one score, on the same images."""

    difference: float
    """First score minus second score, times 100."""
    interval: tuple[float, float]
    """Paired-bootstrap interval of the difference."""
    p: float
    """Two-sided p-value of approximate randomisation."""


def score(
    captions: Mapping[str, str | Sequence[str]],
    references: Mapping[str, Sequence[str]],
    *,
    metrics: Sequence[str] | None = None,
) -> Scores:
    """Scores captions against references, both as raw text.

    Args:
        captions: The caption of each image by id: a string, or a list of one string.
        references: One or more references of each image, for the same ids.
        metrics: Names from `METRICS`; None for `DEFAULT_METRICS`, without those that are not
            installed. `Scores.missing` lists these. SPICE is computed only on request.

    Returns:
        The scores; for example `values["BLEU-4"]` is from 0 to 100 and `values["CIDEr"]` is
        around 120 for a good captioner on COCO.

    Raises:
        ValueError: Captions and references do not match, or a requested metric is not available.
    """
    texts: dict[str, str] = {}
    for image, caption in captions.items():
        if not isinstance(caption, str):
            if len(caption) != 1:
                raise ValueError(f"image {image!r} has {len(caption)} captions; pass exactly one")
            caption = caption[0]
        texts[image] = caption
    built, missing = build_metrics(metrics)
    tokenized = TokenizedCaptions.tokenize(texts, references)
    return replace(score_captions(tokenized, built), missing=missing)


def build_metrics(
    names: Sequence[str] | None = None,
    *,
    document_frequencies: DocumentFrequencies | None = None,
    spice_jars: str | Path | None = None,
) -> tuple[list[Metric], dict[str, str]]:
    """Builds metrics by name.

    Args:
        names: Names from `METRICS`; None for those of `DEFAULT_METRICS` that are installed.
        document_frequencies: For CIDEr-D; None: those of the scored references.
        spice_jars: For SPICE: the folder of its parser; None: NGSAN_SPICE_LIB, or ngsan's own.

    Returns:
        The metrics, and by name why default metrics are not available.

    Raises:
        ValueError: A requested metric is unknown or not available.
    """

    def meteor() -> Metric:
        from ngsan.metrics.meteor import Meteor

        return Meteor()

    def spice() -> Metric:
        from ngsan.metrics.spice import Spice

        return Spice(jars=spice_jars)

    end = document_frequencies is not None and document_frequencies.end
    builders: dict[str, Callable[[], Metric]] = {
        "BLEU": Bleu,
        "METEOR": meteor,
        "ROUGE-L": RougeL,
        "CIDEr": Cider,
        "CIDEr-D": lambda: CiderD(document_frequencies, end=end),
        "SPICE": spice,
        "CIDEr-plain": CiderPlain,
    }
    built: list[Metric] = []
    missing: dict[str, str] = {}
    for name in DEFAULT_METRICS if names is None else names:
        if name not in builders:
            raise ValueError(f"unknown metric {name!r}; choose from {', '.join(METRICS)}")
        try:
            built.append(builders[name]())
        except ValueError as error:
            if names is not None:
                raise
            missing[name] = str(error)
    return built, missing


def score_captions(captions: TokenizedCaptions, metrics: Sequence[Metric]) -> Scores:
    """Scores tokenized captions with each of the metrics.

    Raises:
        ValueError: Two metrics give a score of the same name.
    """
    names = [name for metric in metrics for name in metric.names]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two metrics are named {twice[0]!r}; remove one of them")
    values: dict[str, float] = {}
    per_image: dict[str, NDArray[np.float64]] = {}
    signatures: dict[str, str] = {}
    all_rows = []
    for metric in metrics:
        rows = metric.statistics(captions)
        totals = metric.score(rows.sum(axis=0)) * SCALE  # (scores,)
        singles = metric.score(rows) * SCALE  # (images, scores)
        for index, name in enumerate(metric.names):
            values[name] = float(totals[index])
            per_image[name] = singles[:, index]
            signatures[name] = _signature(name, metric.signature, captions)
        all_rows.append(rows)
    return Scores(captions.ids, values, per_image, signatures, tuple(metrics), tuple(all_rows))


def intervals(
    scores: Scores, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Mapping[str, tuple[float, float]]:
    """Percentile-bootstrap interval (low, high) of every score by name, times 100.

    All scores use the same resampled sets of images. Values that a metric computed from the whole
    set of references, such as CIDEr's document frequencies, stay fixed.

    Args:
        scores: Scores to resample.
        resamples: Number of resampled sets.
        level: Share of them within the interval.
        seed: Seed of the random draws.
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
        b: Scores of the second system, for the same images in any order.
        resamples: Number of resampled sets, and of random swaps.
        level: Share of the resampled sets within the interval.
        seed: Seed of the random draws.

    Raises:
        ValueError: The images or the signatures differ, or no score is in common.
    """
    places = {name: place for place, name in enumerate(b.ids)}
    if set(a.ids) != set(places):
        raise ValueError(
            f"the systems were scored on different images ({len(a.ids)} and {len(b.ids)}, "
            f"{len(set(a.ids) & set(places))} in common); score both on the same images"
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
    for name in (name for metric, _, _ in pairs for name in metric.names):
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
    return {
        name: Comparison(
            difference=float(result.differences[index]) * SCALE,
            interval=(float(ends[0]) * SCALE, float(ends[1]) * SCALE),
            p=float(result.p[index]),
        )
        for (metric, _, _), result in zip(pairs, found, strict=True)
        for index, (name, ends) in enumerate(zip(metric.names, result.intervals, strict=True))
    }


def _signature(name: str, parts: Mapping[str, str], captions: TokenizedCaptions) -> str:
    """``name|key:value|...`` of a score, ending in the version of ngsan."""
    counts = sorted({len(references) for references in captions.references})
    shared = {
        "images": str(len(captions.ids)),
        "refs": str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}",
        "tok": captions.tokenizer,
    }
    program = {"version": f"ngsan-{__version__}"}
    if taken := parts.keys() & (shared.keys() | program.keys()):
        raise ValueError(f"signature key {min(taken)!r} of {name} is reserved; rename it")
    whole = {**shared, **parts, **program}
    for key, value in whole.items():
        if set("|:\n") & set(key + value):
            raise ValueError(f"signature part {key!r}: {value!r} must not contain '|' or ':'")
    return "|".join([name, *(f"{key}:{value}" for key, value in whole.items())])
