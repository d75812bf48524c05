"""Questions as rows of word ids.

Shapes: `Q` questions, `T` words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngsan.text.vocabulary import BOUNDARY, UNKNOWN, Vocabulary

LONGEST = 14
"""Words of a question that MCAN reads."""


@dataclass(frozen=True)
class AskedWords:
    """Encodes questions in a fixed number of words."""

    vocabulary: Vocabulary
    """The words."""

    longest: int = LONGEST
    """T; what comes after them is cut off."""

    def words(self, question: str) -> list[str]:
        """The words of a question that are read; one unknown word if it has none."""
        return self.vocabulary.tokenize(question)[: self.longest] or [UNKNOWN]

    def encode(self, questions: Sequence[str]) -> NDArray[np.int32]:
        """(Q, T) word ids, padded with `BOUNDARY`."""
        table = np.full((len(questions), self.longest), BOUNDARY, np.int32)
        for row, question in zip(table, questions, strict=True):
            ids = self.vocabulary.encode(self.words(question))
            row[: len(ids)] = ids
        return table
