"""BLEU-1 to BLEU-4 as the COCO tools compute them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.ngrams import ORDERS, NgramTable

# The COCO tools add these to the numerators and denominators instead of smoothing.
_NUMERATOR_EPS, _DENOMINATOR_EPS = 1e-15, 1e-9


class Bleu:
    """BLEU-1 to BLEU-4: geometric means of clipped n-gram precisions with a brevity penalty.

    The count of an n-gram is clipped at its largest count in any one reference. The reference
    length is the one closest to the caption's length; of two equally close ones, the shorter. The
    score of a set comes from the summed counts; it is not a mean over images.

    Note: a precision is (matches + 1e-15) / (n-grams + 1e-9), as in the COCO tools. This does not
        matter for a set, but it determines the score of an image without a 4-gram match.
    """

    names: tuple[str, ...] = tuple(f"BLEU-{n}" for n in range(1, ORDERS + 1))
    """Names of the scores."""
    signature: Mapping[str, str] = MappingProxyType({"length": "closest", "smooth": "1e-15-1e-9"})
    """How the reference length is chosen, and what is added to matches and to n-grams."""

    def statistics(self, captions: TokenizedCaptions) -> NDArray[np.float64]:
        """Statistics (images, 10).

        The columns are: caption length, closest reference length, clipped matches of orders 1 to
        4, and number of n-grams of orders 1 to 4.
        """
        table = captions.ngrams()
        matches = np.zeros((table.images, ORDERS))
        for n, order in enumerate(table.orders):
            limit = np.zeros(len(order.hypotheses.count), np.int64)
            np.maximum.at(limit, order.in_hypothesis, order.references.count[order.in_reference])
            clipped = np.minimum(limit, order.hypotheses.count)
            matches[:, n] = np.bincount(order.hypotheses.caption, clipped, table.images)
        ngrams = np.maximum(0, table.lengths[:, None] - np.arange(ORDERS))
        return np.column_stack((table.lengths, _closest_lengths(table), matches, ngrams)).astype(
            np.float64
        )

    def score(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """BLEU-1 to BLEU-4 (..., 4) from sums of statistics (..., 10)."""
        length, reference = totals[..., :1], totals[..., 1:2]
        matches, ngrams = totals[..., 2 : 2 + ORDERS], totals[..., 2 + ORDERS :]
        products = np.cumprod((matches + _NUMERATOR_EPS) / (ngrams + _DENOMINATOR_EPS), axis=-1)
        ratio = (length + _NUMERATOR_EPS) / (reference + _DENOMINATOR_EPS)
        penalty = np.exp(np.minimum(0.0, 1.0 - 1.0 / ratio))
        means: NDArray[np.float64] = products ** (1.0 / np.arange(1, ORDERS + 1))
        return means * penalty


def _closest_lengths(table: NgramTable) -> NDArray[np.int64]:
    """(images,) Reference length closest to the caption length."""
    distance = np.abs(table.reference_lengths - table.lengths[table.reference_image])
    # Sorted by image, distance and length: the first row of each image is the closest.
    order = np.lexsort((table.reference_lengths, distance, table.reference_image))
    first = np.searchsorted(table.reference_image, np.arange(table.images))
    return table.reference_lengths[order[first]]
