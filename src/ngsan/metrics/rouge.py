"""ROUGE-L as the COCO tools compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ngsan.metrics.captions import MeanMetric, TokenizedCaptions, rows_of_values

_BETA = 1.2
# The COCO tools read an empty caption as one empty word, so two empty captions match.
_EMPTY = ("",)


class RougeL(MeanMetric):
    """F-score of the longest common subsequence of a caption and its references.

    Precision is the largest share of the caption's words that a common subsequence covers, recall
    the largest share of a reference's words; the two may come from different references. Recall
    weighs beta = 1.2 times as much. The score of a set is the mean over images.
    """

    names: tuple[str, ...] = ("ROUGE-L",)
    """Name of the score."""
    signature: Mapping[str, str] = MappingProxyType({"beta": f"{_BETA:g}"})
    """Weight of recall."""

    def statistics(self, captions: TokenizedCaptions) -> NDArray[np.float64]:
        """Statistics (images, 2): the F-score, and 1."""
        best = [
            _best_shares(words or _EMPTY, [reference or _EMPTY for reference in references])
            for words, references in zip(captions.hypotheses, captions.references, strict=True)
        ]
        precision, recall = np.array(best, np.float64).T
        below = recall + _BETA**2 * precision
        above = (1 + _BETA**2) * precision * recall
        return rows_of_values(np.divide(above, below, out=np.zeros_like(above), where=below > 0))


def _best_shares(words: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Best precision and best recall of a caption."""
    common = common_subsequences(words, references)
    shares = (found / len(each) for found, each in zip(common, references, strict=True))
    return max(common) / len(words), max(shares)


def common_subsequences(words: Sequence[str], references: Sequence[Sequence[str]]) -> list[int]:
    """Lengths of the longest common subsequence of a caption with each of its references.

    All references are processed at once: each word of a reference is a bit of one large integer,
    and a bit that is always 0 stops carries between references. A bit that turns 0 stands for a
    column where the usual table of lengths grows by one.

    Args:
        words: The caption, of any length.
        references: The references, of any length.

    Returns:
        One length per reference.
    """
    places = dict.fromkeys(words, 0)  # word of the caption -> its bits in the references
    bit = 1
    inside = 0  # the bits of all words
    for reference in references:
        first = bit
        for word in reference:
            if word in places:
                places[word] |= bit
            bit <<= 1
        inside |= bit - first
        bit <<= 1
    state = inside
    for word in words:
        here = state & places[word]
        if here:
            state = ((state + here) | (state - here)) & inside
    lengths = []
    grown = inside & ~state
    for reference in references:
        lengths.append((grown & ((1 << len(reference)) - 1)).bit_count())
        grown >>= len(reference) + 1
    return lengths
