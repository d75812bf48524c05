"""How varied captions are, without looking at references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from ngsan.text.endings import BAD_ENDINGS

__all__ = ["Diversity", "measure_diversity"]


@dataclass(frozen=True)
class Diversity:
    """Figures about a set of captions; shares are between 0 and 1."""

    captions: int
    """Number of captions."""

    mean_length: float
    """Mean number of words of a caption."""

    shortest: int
    """Fewest words of a caption."""

    longest: int
    """Most words of a caption."""

    vocabulary: int
    """Number of different words in all captions."""

    distinct: float
    """Different captions, compared as words, for each caption."""

    novel: float | None
    """Share of captions that, compared as words, are no training caption; None without those."""

    bad_endings: float
    """Share of captions whose last word is one of `BAD_ENDINGS`; an empty caption has none."""

    distinct_1: float
    """Different words for each word, over all captions together; 0 when there are no words."""

    distinct_2: float
    """Different pairs of neighbouring words for each such pair, likewise."""


def measure_diversity(
    captions: Iterable[Sequence[str]], training: Iterable[Sequence[str]] | None = None
) -> Diversity:
    """Measures a set of captions.

    Args:
        captions: The words of each caption.
        training: The words, cut by the same tokenizer, of each caption that the captioner was
            trained on. It is read once and not kept.

    Raises:
        ValueError: There are no captions.
    """
    words = [tuple(caption) for caption in captions]
    if not words:
        raise ValueError("there are no captions to measure; give at least one")
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
        shortest=min(lengths),
        longest=max(lengths),
        vocabulary=len(vocabulary),
        distinct=len(different) / len(words),
        novel=novel,
        bad_endings=sum(caption[-1] in BAD_ENDINGS for caption in words if caption) / len(words),
        distinct_1=len(vocabulary) / max(1, sum(lengths)),
        distinct_2=len(pairs) / max(1, sum(max(0, length - 1) for length in lengths)),
    )
