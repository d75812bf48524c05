"""Diversity of captions, measured without references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from ngsan.text.vocabulary import BAD_ENDINGS


@dataclass(frozen=True)
class Diversity:
    """Statistics of a set of captions; shares are between 0 and 1."""

    captions: int
    """Number of captions."""
    mean_length: float
    """Mean number of words per caption."""
    min_length: int
    """Number of words of the shortest caption."""
    max_length: int
    """Number of words of the longest caption."""
    vocabulary: int
    """Number of distinct words."""
    distinct: float
    """Share of distinct captions, compared as words."""
    novel: float | None
    """Share of captions that are not training captions; None if those are not given."""
    bad_endings: float
    """Share of captions whose last word is in `BAD_ENDINGS`."""
    distinct_1: float
    """Distinct words divided by words, over all captions; 0 without words."""
    distinct_2: float
    """Distinct bigrams divided by bigrams; 0 without bigrams."""


def measure_diversity(
    captions: Iterable[Sequence[str]], training: Iterable[Sequence[str]] | None = None
) -> Diversity:
    """Measures a set of captions.

    Args:
        captions: The words of each caption.
        training: The words of each training caption, from the same tokenizer; read once.
    """
    words = [tuple(caption) for caption in captions]
    if not words:
        raise ValueError("no captions to measure; pass at least one")
    lengths = [len(caption) for caption in words]
    different = set(words)
    vocabulary = set(chain.from_iterable(words))
    pairs = set(chain.from_iterable(map(pairwise, words)))
    novel = None
    if training is not None:
        seen = different.intersection(map(tuple, training))
        novel = sum(caption not in seen for caption in words) / len(words)
    return Diversity(
        captions=len(words),
        mean_length=sum(lengths) / len(words),
        min_length=min(lengths),
        max_length=max(lengths),
        vocabulary=len(vocabulary),
        distinct=len(different) / len(words),
        novel=novel,
        bad_endings=sum(caption[-1] in BAD_ENDINGS for caption in words if caption) / len(words),
        distinct_1=len(vocabulary) / max(1, sum(lengths)),
        distinct_2=len(pairs) / max(1, sum(max(0, length - 1) for length in lengths)),
    )
