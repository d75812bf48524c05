"""Tokenized captions and references, and the interface of a metric on them.

A metric gives statistics per image that add up, and a formula on their sum. With
``rows = metric.statistics(captions)``:

- the score of the whole set is ``metric.score(rows.sum(axis=0))``,
- the scores of the single images are ``metric.score(rows)``,
- the scores of resampled sets, image ``i`` drawn ``counts[:, i]`` times, are
  ``metric.score(counts @ rows)``, so a bootstrap does not read the captions again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ngsan.metrics.ngrams import NgramTable
from ngsan.text.ptb import TOKENIZER_VERSION, tokenize_lines

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TokenizedCaptions:
    """One caption and at least one reference per image, as words.

    Words come from `tokenize`, or from the caller. A word must not be empty or contain a space. It
    may contain a no-break space, as the PTB tokenizer writes "1 1/2". The COCO tools treat those
    in different ways, and each metric does what its original does: BLEU and CIDEr split the word,
    ROUGE-L and METEOR do not.
    """

    ids: tuple[str, ...]
    """The image ids."""
    hypotheses: tuple[tuple[str, ...], ...]
    """Words of each image's caption; empty for an empty caption."""
    references: tuple[tuple[tuple[str, ...], ...], ...]
    """Words of each reference of each image."""
    tokenizer: str = "given"
    """Version of the tokenizer; "given" if the caller supplied the words."""
    _tables: dict[bool, NgramTable] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("no images to score; pass at least one caption")
        counts = len(self.ids), len(self.hypotheses), len(self.references)
        if len(set(counts)) > 1:
            raise ValueError(
                "got {} ids, {} captions and references for {} images; pass one caption and one "
                "list of references per id".format(*counts)
            )
        if len(set(self.ids)) < len(self.ids):
            twice = next(name for i, name in enumerate(self.ids) if name in self.ids[:i])
            raise ValueError(f"image {twice!r} occurs twice; pass one caption per image")
        for name, words, references in zip(self.ids, self.hypotheses, self.references, strict=True):
            if isinstance(words, str) or any(isinstance(text, str) for text in references):
                raise ValueError(
                    f"image {name!r} has a caption that is not tokenized; use "
                    "TokenizedCaptions.tokenize"
                )
            if not references:
                raise ValueError(f"image {name!r} has no reference; pass one or omit the image")

    @classmethod
    def tokenize(
        cls, hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]]
    ) -> TokenizedCaptions:
        """Splits captions into the words that the COCO tools count.

        Args:
            hypotheses: The caption of each image; may be empty.
            references: The references of each image, for the same images as `hypotheses`. Their
                order is the order of the result. It also matters a little for the words: the
                tokenizer looks at the next caption, too (see `ngsan.text.ptb.tokenize`).

        Returns:
            The words, equal to those of pycocoevalcap for images and references in this order.

        Raises:
            ValueError: A caption without references, references without a caption, or no images.
        """
        _check_same_ids(hypotheses, references)
        for name, captions in references.items():
            if isinstance(captions, str):
                raise ValueError(
                    f"the references of image {name!r} are one string; pass a list of strings"
                )
        ids = tuple(references)
        words = iter(tokenize_lines(text for name in ids for text in references[name]))
        return cls(
            ids=ids,
            hypotheses=tuple(map(tuple, tokenize_lines(hypotheses[name] for name in ids))),
            references=tuple(tuple(tuple(next(words)) for _ in references[name]) for name in ids),
            tokenizer=TOKENIZER_VERSION,
        )

    def with_hypotheses(self, hypotheses: Mapping[str, str]) -> TokenizedCaptions:
        """The same references with other captions; equal to calling `tokenize` again."""
        _check_same_ids(hypotheses, self.ids)
        words = tuple(map(tuple, tokenize_lines(hypotheses[name] for name in self.ids)))
        return TokenizedCaptions(self.ids, words, self.references, TOKENIZER_VERSION)

    def ngrams(self, *, end: bool = False) -> NgramTable:
        """The n-grams of all captions, counted on first use and cached.

        Args:
            end: Whether the end of the sentence counts as one more word of every caption.
        """
        if end not in self._tables:
            self._tables[end] = NgramTable.count(self.hypotheses, self.references, end=end)
        return self._tables[end]


class Metric(Protocol):
    """Scores captions against references; may give several scores, as BLEU does."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the scores, in the order of the last axis of `score`."""

    @property
    def signature(self) -> Mapping[str, str]:
        """Every setting that affects the score: short keys and values without ``|`` and ``:``."""

    def statistics(self, captions: TokenizedCaptions) -> Floats:
        """Statistics per image, (images, K); their sum over images determines the score."""

    def score(self, totals: Floats) -> Floats:
        """Scores in the metric's natural unit, (..., scores), from sums of statistics (..., K).

        CIDEr is from 0 to 10, the other metrics are from 0 to 1.
        """


class MeanMetric:
    """Base of metrics that average one value per image; statistics from `rows_of_values`."""

    def score(self, totals: Floats) -> Floats:
        """The mean (..., 1) from sums of statistics (..., 2)."""
        return totals[..., :-1] / totals[..., -1:]


def rows_of_values(values: Floats) -> Floats:
    """Statistics (images, 2) of a `MeanMetric` from one value per image (images,)."""
    return np.stack((values, np.ones_like(values)), axis=-1)


def _check_same_ids(hypotheses: Collection[str], references: Collection[str]) -> None:
    """Raises for images that are on one side only."""
    sides = (
        (set(hypotheses) - set(references), "a caption but no references"),
        (set(references) - set(hypotheses), "references but no caption"),
    )
    for ids, what in sides:
        if ids:
            some = ", ".join(repr(name) for name in sorted(ids, key=str)[:3])
            more = ", ..." if len(ids) > 3 else ""
            raise ValueError(
                f"{len(ids):,} image(s) have {what}: {some}{more}; pass both or omit the images"
            )
