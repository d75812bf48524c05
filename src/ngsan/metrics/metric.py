"""What a metric is: statistics of each image that add up, and a formula on their sum.

The split serves three callers with one definition. With ``rows = metric.statistics(captions)``:

- the score of the whole set is ``metric.score(rows.sum(axis=0))``,
- the scores of the single images are ``metric.score(rows)``,
- the scores of resampled sets, image ``i`` drawn ``counts[:, i]`` times, are
  ``metric.score(counts @ rows)``: a bootstrap never looks at a caption again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ngsan.metrics.captions import TokenizedCaptions

__all__ = ["Metric", "mean_of_rows", "rows_of_values"]


class Metric(Protocol):
    """A way to score captions against references; it may give several scores, as BLEU does."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the scores, in the order of the last axis of `score`."""
        ...

    @property
    def signature(self) -> Mapping[str, str]:
        """Everything about the metric, beyond its name, that a change of would change a score.

        Short keys and values without ``|``; values also without ``:``.
        """
        ...

    def statistics(self, captions: TokenizedCaptions) -> NDArray[np.float64]:
        """Statistics of every image, (images, K), whose sum over images decides the score."""
        ...

    def score(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores in the metric's natural unit from sums of statistics.

        Args:
            totals: (..., K)

        Returns:
            (..., scores). CIDEr is between 0 and 10, the others are between 0 and 1.
        """
        ...


def rows_of_values(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Statistics (images, 2) of a metric that is the mean of a value of each image (images,)."""
    return np.stack((values, np.ones_like(values)), axis=-1)


def mean_of_rows(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """The score (..., 1) that belongs to `rows_of_values`, from totals (..., 2)."""
    return totals[..., :-1] / totals[..., -1:]
