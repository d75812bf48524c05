"""CIDEr and its relatives, and which is which.

Three things are called CIDEr. All compare a caption with each of its references by the cosine of
their n-gram counts, each count weighed by how few images have the n-gram, for n = 1 to 4; take the
mean over n and over references; and multiply by 10. They differ in the rest:

======================  ==========  ==============  =================================
here                    clipped,    frequencies     elsewhere
                        penalised   taken from
======================  ==========  ==============  =================================
`Cider`: "CIDEr"        yes         the references  what papers and the COCO server
                                                    report as CIDEr; pycocoevalcap
`CiderD`: "CIDEr-D"     yes         as given, or    the reward of self-critical
                                    the references  training ("CIDEr-D" of the paper
                                                    of CIDEr)
`CiderPlain`:           no          as given, or    the first formula of the paper;
"CIDEr-plain"                       the references  ``cider`` of its authors' program
======================  ==========  ==============  =================================

Clipped: an n-gram counts in the product at most as often as the reference has it. Penalised: the
cosine is multiplied by exp(-d² / (2 sigma²)), where d is the difference in length and sigma is 6.
So the score that everybody calls CIDEr is CIDEr-D in truth, and `CiderD` without document
frequencies equals `Cider`.

Self-critical training adds one more difference that often goes unsaid: whether the end of the
sentence counts as a word (`end`). Such numbers cannot be compared with published ones, and their
signature says ``end:yes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.frequencies import DocumentFrequencies
from ngsan.metrics.metric import mean_of_rows, rows_of_values
from ngsan.metrics.ngrams import ORDERS, Entries, Ints, NgramTable, Order, distinct

__all__ = ["Cider", "CiderD", "CiderPlain", "ConsensusMetric", "DocumentFrequencies"]

_SIGMA = 6.0
_SCALE = 10.0

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ConsensusMetric:
    """The formula behind `Cider`, `CiderD` and `CiderPlain`, with all that they differ in.

    Note: the length in the penalty is the number of bigrams, as in the COCO tools: captions of no
        word and of one word have the same length.
    """

    name: str
    """Name of the score."""

    document_frequencies: DocumentFrequencies | None
    """Frequencies of n-grams; None takes those of the references that are scored."""

    end: bool
    """Whether the end of the sentence counts as a word of every caption."""

    clip: bool
    """Whether an n-gram's weight in the product is limited to its weight in the reference."""

    sigma: float | None
    """Width of the penalty for a difference in length; None for no penalty."""

    def __post_init__(self) -> None:
        """Refuses frequencies that were counted in another way."""
        given = self.document_frequencies
        if given is not None and given.end != self.end:
            raise ValueError(
                f"the document frequencies were counted with end={given.end} and the metric has "
                f"end={self.end}; count them again or give the metric end={given.end}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the score."""
        return (self.name,)

    @property
    def signature(self) -> Mapping[str, str]:
        """Source of the frequencies, end of sentence, clipping, penalty and longest n-gram."""
        given = self.document_frequencies
        return {
            "df": "references" if given is None else given.signature,
            "end": "yes" if self.end else "no",
            "clip": "yes" if self.clip else "no",
            "sigma": "none" if self.sigma is None else f"{self.sigma:g}",
            "n": str(ORDERS),
        }

    def statistics(self, captions: TokenizedCaptions) -> Floats:
        """Statistics (images, 2): the score of the image, and 1."""
        table = captions.ngrams(end=self.end)
        if self.document_frequencies is None:
            images = table.images
            frequencies = [_own_frequencies(order, table) for order in table.orders]
        else:
            images = self.document_frequencies.images
            frequencies = self.document_frequencies.of_table(table)
        similarity = np.zeros(len(table.reference_lengths))
        for order, frequency in zip(table.orders, frequencies, strict=True):
            similarity += self._cosines(order, _rarity(frequency, images), table)
        if self.sigma is not None:
            bigrams = np.maximum(0, table.lengths - 1)[table.reference_image]
            distance = bigrams - np.maximum(0, table.reference_lengths - 1)
            similarity *= np.exp(-(distance**2) / (2 * self.sigma**2))
        sums = _sums(table.reference_image, similarity, table.images)
        counts = np.bincount(table.reference_image, minlength=table.images)
        return rows_of_values(_SCALE * sums / (ORDERS * counts))

    def score(self, totals: Floats) -> Floats:
        """The score (..., 1) from sums of statistics (..., 2)."""
        return mean_of_rows(totals)

    def _cosines(self, order: Order, rarity: Floats, table: NgramTable) -> Floats:
        """(references,) Cosine of each reference and its image's caption for one n."""
        hypothesis = order.hypotheses.count * rarity[order.hypotheses.code]
        reference = order.references.count * rarity[order.references.code]
        theirs = reference[order.in_reference]
        ours = hypothesis[order.in_hypothesis]
        product = (np.minimum(ours, theirs) if self.clip else ours) * theirs
        references = len(table.reference_lengths)
        dots = _sums(order.references.caption[order.in_reference], product, references)
        norms = _norms(order.hypotheses, hypothesis, table.images)[table.reference_image]
        norms = norms * _norms(order.references, reference, references)
        # Without a norm all weights are zero, and so is the product.
        return np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)


class Cider(ConsensusMetric):
    """CIDEr as everybody reports it: with the document frequencies of the scored references."""

    def __init__(self) -> None:
        """Takes no options, so that the name has one meaning."""
        super().__init__("CIDEr", None, end=False, clip=True, sigma=_SIGMA)


class CiderD(ConsensusMetric):
    """CIDEr-D: the formula of `Cider` with document frequencies of your own, as in training."""

    def __init__(
        self, document_frequencies: DocumentFrequencies | None = None, *, end: bool = False
    ) -> None:
        """Makes the metric.

        Args:
            document_frequencies: Of a training split; without them, those of the scored references.
            end: Whether the end of the sentence counts as a word of every caption, also in the
                document frequencies.
        """
        super().__init__("CIDEr-D", document_frequencies, end=end, clip=True, sigma=_SIGMA)


class CiderPlain(ConsensusMetric):
    """CIDEr before it became CIDEr-D: the cosine without clipping and penalty for length."""

    def __init__(self, document_frequencies: DocumentFrequencies | None = None) -> None:
        """Makes the metric.

        Args:
            document_frequencies: Of a training split; without them, those of the scored references.
        """
        super().__init__("CIDEr-plain", document_frequencies, end=False, clip=False, sigma=None)


def _own_frequencies(order: Order, table: NgramTable) -> Floats:
    """(codes,) Number of images whose references have each n-gram."""
    codes = max(1, len(order.last))
    image = table.reference_image[order.references.caption]
    once, _ = distinct(image * codes + order.references.code)  # several references, one image
    return np.bincount(once % codes, minlength=codes).astype(np.float64)


def _rarity(frequency: Floats, images: int) -> Floats:
    """(codes,) Logarithm of the number of images for each one that has the n-gram."""
    rarity: Floats = np.log(images) - np.log(np.maximum(1.0, frequency))
    # Exactly zero, else rounding could leave a caption of such n-grams with a direction.
    rarity[frequency >= images] = 0.0
    return rarity


def _norms(entries: Entries, weights: Floats, captions: int) -> Floats:
    """(captions,) Length of each caption's vector of weights."""
    return np.sqrt(_sums(entries.caption, weights**2, captions))


def _sums(index: Ints, weights: Floats, size: int) -> Floats:
    """(size,) Sum of the weights of each index."""
    # Without any index the sums would be integers.
    return np.bincount(index, weights, size).astype(np.float64, copy=False)
