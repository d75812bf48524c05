"""BLEU of 1 to 4 words, as the COCO tools compute it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.ngrams import ORDERS, NgramTable

__all__ = ["Bleu"]

# The COCO tools add these to numerator and denominator where others would smooth or give up.
_ABOVE, _BELOW = 1e-15, 1e-9


class Bleu:
    """BLEU-1 to BLEU-4: geometric means of clipped n-gram precisions with a brevity penalty.

    An n-gram of the caption counts as often as the reference that has it most often has it. The
    reference length is the one closest to the caption's, the shorter of two as close. The
    score of a set comes from the sums of all counts, so it is no mean over images.

    Note: a precision is (matches + 1e-15) / (n-grams + 1e-9), as in the COCO tools. That is no
        smoothing that matters for a set, but decides the score of an image without 4-gram matches.
    """

    names: tuple[str, ...] = tuple(f"BLEU-{n}" for n in range(1, ORDERS + 1))
    """The names of the scores."""

    signature: Mapping[str, str] = MappingProxyType({"length": "closest", "smooth": "1e-15-1e-9"})
    """How the reference length is chosen, and what is added to matches and to n-grams."""

    def statistics(self, captions: TokenizedCaptions) -> NDArray[np.float64]:
        """Statistics (images, 10).

        Length of the caption, length of the closest reference, the matches of 1 to 4 words, and
        the n-grams of 1 to 4 words in the caption.
        """
        table = captions.ngrams()
        matches = np.zeros((table.images, ORDERS))
        for n, order in enumerate(table.orders):
            most = np.zeros(len(order.hypotheses.count), np.int64)  # in any one reference
            np.maximum.at(most, order.in_hypothesis, order.references.count[order.in_reference])
            clipped = np.minimum(most, order.hypotheses.count)
            matches[:, n] = np.bincount(order.hypotheses.caption, clipped, table.images)
        ngrams = np.maximum(0, table.lengths[:, None] - np.arange(ORDERS))
        return np.column_stack((table.lengths, _closest_lengths(table), matches, ngrams)).astype(
            np.float64
        )

    def score(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """BLEU-1 to BLEU-4 (..., 4) from sums of statistics (..., 10)."""
        length, reference = totals[..., :1], totals[..., 1:2]
        matches, ngrams = totals[..., 2 : 2 + ORDERS], totals[..., 2 + ORDERS :]
        products = np.cumprod((matches + _ABOVE) / (ngrams + _BELOW), axis=-1)
        ratio = (length + _ABOVE) / (reference + _BELOW)
        penalty = np.exp(np.minimum(0.0, 1.0 - 1.0 / ratio))
        means: NDArray[np.float64] = products ** (1.0 / np.arange(1, ORDERS + 1))
        return means * penalty


def _closest_lengths(table: NgramTable) -> NDArray[np.int64]:
    """(images,) Length of the reference that is closest to the caption's length."""
    distance = np.abs(table.reference_lengths - table.lengths[table.reference_image])
    # Sorted by image, then distance, then length: the first of each image is the one.
    order = np.lexsort((table.reference_lengths, distance, table.reference_image))
    first = np.searchsorted(table.reference_image, np.arange(table.images))
    return table.reference_lengths[order[first]]
