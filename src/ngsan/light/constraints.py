"""What captions may say: a word that is forbidden has a score of minus infinity.

Shapes: `B` images, `R` captions an image, `T` most words, `V` vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngsan.config import DecodingConfig
from ngsan.text.endings import BAD_ENDINGS
from ngsan.text.vocabulary import BOUNDARY, UNKNOWN, Vocabulary


@dataclass(frozen=True)
class Constraints:
    """Conditions on captions, in word ids. The defaults allow everything."""

    fewest: int = 0
    """Fewest words of a caption."""

    forbidden: Sequence[int] = ()
    """Words that may not occur, the unknown word for one."""

    prefix: Sequence[int] = ()
    """Words that every caption begins with; they may break the other conditions."""

    bad_endings: Sequence[int] = ()
    """Words that may not be a caption's last."""

    no_repeat: int = 0
    """Length of word sequences that may occur only once: 1 for words, 3 for triples; 0 for none."""

    @classmethod
    def of(cls, decoding: DecodingConfig, vocabulary: Vocabulary) -> "Constraints":
        """The conditions of a configuration.

        Raises:
            ValueError: A word is not in the vocabulary, or words are required.
        """
        if decoding.require:
            raise ValueError(
                f"require: {decoding.require!r} is not known to the search without torch; "
                "use the torch search (ngsan.predict)"
            )

        def ids(key: str, text: str) -> list[int]:
            words = text.split()
            for word in words:
                if word not in vocabulary:
                    raise ValueError(f"{key}: {word!r} is not a word of the model")
                if word == UNKNOWN and key != "forbid" and not decoding.unknown:
                    raise ValueError(f"{key}: {word!r} may not be written unless unknown is true")
            return vocabulary.encode(words)

        unknown = [] if decoding.unknown or UNKNOWN not in vocabulary else [UNKNOWN]
        endings = [word for word in sorted(BAD_ENDINGS) if word in vocabulary]
        return cls(
            fewest=decoding.fewest,
            forbidden=[*vocabulary.encode(unknown), *ids("forbid", decoding.forbid)],
            prefix=ids("prefix", decoding.prefix),
            bad_endings=vocabulary.encode(endings) if decoding.no_bad_ending else [],
            no_repeat=decoding.no_repeat,
        )


class Rules:
    """Constraints made ready for a search."""

    def __init__(self, constraints: Constraints, *, vocab_size: int, longest: int) -> None:
        """Checks the constraints.

        Args:
            constraints: The conditions.
            vocab_size: V.
            longest: T.

        Raises:
            ValueError: No caption at all could meet them.
        """
        if constraints.fewest > longest:
            raise ValueError(
                f"fewest: {constraints.fewest} words is not within 0 and longest: {longest}"
            )
        if len(constraints.prefix) > longest:
            raise ValueError(
                f"prefix: {len(constraints.prefix)} words do not fit into captions of at most "
                f"{longest}"
            )
        free = vocab_size - 1 - len(set(constraints.forbidden))
        if not free and constraints.fewest > len(constraints.prefix):
            raise ValueError(
                f"every word is forbidden, so no caption has fewest: {constraints.fewest} words"
            )
        self.constraints, self.longest = constraints, longest
        self._forbidden = np.array(constraints.forbidden, np.int64)
        self._bad = np.array(constraints.bad_endings, np.int64)
        self._is_bad = np.zeros(vocab_size, np.bool_)
        self._is_bad[self._bad] = True

    def apply(self, scores: NDArray[np.float32], words: NDArray[np.int64], position: int) -> None:
        """Forbids what may not come next.

        Args:
            scores: (B, R, V) of the next word; changed in place.
            words: (B, R, T) the words so far, the boundary from `position` on.
            position: How many words there are so far.
        """
        rules = self.constraints
        if position < len(rules.prefix):
            prescribed = scores[..., rules.prefix[position]].copy()
            scores.fill(-math.inf)
            scores[..., rules.prefix[position]] = prescribed
            return
        if rules.forbidden:
            scores[..., self._forbidden] = -math.inf
        if rules.no_repeat and position >= rules.no_repeat:
            self._forbid_repeats(scores, words[..., :position])
        if position < rules.fewest:
            scores[..., BOUNDARY] = -math.inf
        if rules.bad_endings:
            if position:
                scores[..., BOUNDARY][self._is_bad[words[..., position - 1]]] = -math.inf
            if position == self.longest - 1:  # a caption that is cut off ends, too
                scores[..., self._bad] = -math.inf

    def _forbid_repeats(self, scores: NDArray[np.float32], words: NDArray[np.int64]) -> None:
        """Forbids each word that, after the last n - 1, would make a sequence of n again."""
        size = self.constraints.no_repeat
        runs = np.lib.stride_tricks.sliding_window_view(words, size, axis=2)  # (B, R, runs, n)
        latest = words[:, :, words.shape[2] - size + 1 :]
        same = (runs[..., :-1] == latest[:, :, None]).all(-1)
        image, caption, run = np.nonzero(same)
        scores[image, caption, runs[image, caption, run, -1]] = -math.inf
