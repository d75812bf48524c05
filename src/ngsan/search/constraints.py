"""What captions may and must say: a word that is forbidden has a score of minus infinity.

Shapes: `B` images, `R` captions an image, `T` max_length, `V` vocabulary, `C` required words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ngsan.config import DecodingConfig
from ngsan.search.numpy_ops import Array
from ngsan.text.vocabulary import BAD_ENDINGS, BOUNDARY, UNKNOWN, Vocabulary


@dataclass(frozen=True)
class Constraints:
    """Conditions on captions, in word ids. The defaults allow everything."""

    min_length: int = 0
    """Fewest words of a caption."""

    forbidden: Sequence[int] = ()
    """Words that may not occur, such as the unknown word."""

    required: Sequence[int] = ()
    """Words that must all occur."""

    prefix: Sequence[int] = ()
    """Words that every caption begins with; they may break the other conditions."""

    bad_endings: Sequence[int] = ()
    """Words that may not be a caption's last."""

    no_repeat_ngram: int = 0
    """Length of word sequences that may occur only once: 1 for words, 3 for triples; 0 for none."""

    @classmethod
    def of(cls, decoding: DecodingConfig, vocabulary: Vocabulary) -> "Constraints":
        """The conditions of a configuration.

        Raises:
            ValueError: A word is not in the vocabulary; names it and the key.
        """

        def ids(key: str, text: str) -> list[int]:
            words = text.split()
            for word in words:
                if word not in vocabulary:
                    raise ValueError(f"{key}: {word!r} is not a word of the model")
                if word == UNKNOWN and key != "forbid" and not decoding.allow_unknown:
                    raise ValueError(f"{key}: {word!r} is not allowed unless allow_unknown is true")
            return vocabulary.encode(words)

        both = set(decoding.forbid.split()) & set(decoding.require.split())
        if both:
            raise ValueError(f"{min(both)!r} is in both forbid and require")
        unknown = [] if decoding.allow_unknown or UNKNOWN not in vocabulary else [UNKNOWN]
        endings = [word for word in sorted(BAD_ENDINGS) if word in vocabulary]
        return cls(
            min_length=decoding.min_length,
            forbidden=[*vocabulary.encode(unknown), *ids("forbid", decoding.forbid)],
            required=ids("require", decoding.require),
            prefix=ids("prefix", decoding.prefix),
            bad_endings=vocabulary.encode(endings) if decoding.no_bad_ending else [],
            no_repeat_ngram=decoding.no_repeat_ngram,
        )

    def check(self, *, vocab_size: int, max_length: int) -> None:
        """Raises a `ValueError` if no caption at all could meet the conditions."""
        if not 0 <= self.min_length <= max_length:
            raise ValueError(
                f"min_length: {self.min_length} words is not within 0 and max_length: {max_length}"
            )
        if self.no_repeat_ngram < 0:
            raise ValueError(f"no_repeat_ngram: {self.no_repeat_ngram} must be at least 0")
        for name in ("forbidden", "required", "prefix", "bad_endings"):
            for word in getattr(self, name):
                if not 0 <= word < vocab_size:
                    raise ValueError(f"{name}: word {word} is not within 0 and {vocab_size - 1}")
                if word == BOUNDARY:
                    raise ValueError(f"{name}: {word} is the boundary, which is not a word")
        if len(self.prefix) > max_length:
            raise ValueError(
                f"prefix: {len(self.prefix)} words do not fit into captions of at most {max_length}"
            )
        both = set(self.forbidden) & set(self.required)
        if both:
            raise ValueError(f"word {min(both)} is both forbidden and required")
        missing = set(self.required) - set(self.prefix)
        no_end = bool(missing) and missing <= set(self.bad_endings)  # another word comes after them
        if len(self.prefix) + len(missing) + no_end > max_length:
            raise ValueError(
                f"required: {len(missing)} words do not fit into captions of at most {max_length}"
                + (f" that begin with a prefix of {len(self.prefix)}" if self.prefix else "")
            )
        free = vocab_size - 1 - len(set(self.forbidden))
        if not free and self.min_length > len(self.prefix):
            raise ValueError(
                f"every word is forbidden, so no caption has min_length: {self.min_length} words"
            )


class Rules:
    """Constraints prepared for the arrays of a search."""

    def __init__(
        self, constraints: Constraints, ops: Any, *, vocab_size: int, max_length: int
    ) -> None:
        """Checks the constraints and builds the tables that they need.

        Args:
            constraints: The conditions; see `Constraints.check` for the errors.
            ops: `NumpyOps` or `TorchOps`.
            vocab_size: V.
            max_length: T.
        """
        constraints.check(vocab_size=vocab_size, max_length=max_length)
        self.constraints, self.max_length, self.ops = constraints, max_length, ops
        self.required = ops.array(sorted(set(constraints.required)))
        self._forbidden = ops.array(constraints.forbidden)
        if constraints.bad_endings:
            self._bad = ops.full((vocab_size,), False)
            self._bad[ops.array(constraints.bad_endings)] = True
        if constraints.prefix:
            self._ids = ops.arange(0, vocab_size)
            rest = [-1] * (max_length - len(constraints.prefix))
            self._prefix = ops.array([*constraints.prefix, *rest])

    def met(self, words: Array) -> Array:
        """Which required words occur: (B, R, T) words to (B, R, C)."""
        return (words[..., None] == self.required).any(-2)

    def apply(self, scores: Array, words: Array, position: Array) -> Array:
        """Forbids what may not come next.

        Args:
            scores: (B, R, V) of the next word; changed in place.
            words: (B, R, T) the words so far, the boundary from `position` on.
            position: () the number of words so far.

        Returns:
            (B, R, V)
        """
        rules, ops = self.constraints, self.ops
        prescribed = None
        within = position < len(rules.prefix)
        if rules.prefix and ops.maybe(within):
            word = ops.at(self._prefix, position)
            prescribed = ops.where(self._ids == word, scores, -math.inf)
        if rules.forbidden:
            ops.fill(scores, self._forbidden, -math.inf)
        size = rules.no_repeat_ngram
        if size and self.max_length >= size and ops.maybe(position >= size):
            self._forbid_repeats(scores, words, position)
        if rules.required:
            self._demand_required(scores, words, position)
        self._forbid_end(scores, words, position)
        return scores if prescribed is None else ops.where(within, prescribed, scores)

    def _forbid_end(self, scores: Array, words: Array, position: Array) -> None:
        rules, ops = self.constraints, self.ops
        early = position < rules.min_length
        if rules.bad_endings:
            last = ops.at(words, (position - 1).clip(min=0))  # (B, R)
            early = early | (self._bad[last] & (position > 0))
            cut_off = position == self.max_length - 1  # which is an ending, too
            if ops.maybe(cut_off):
                scores[...] = ops.where(self._bad & cut_off, -math.inf, scores)
        if rules.min_length or rules.bad_endings:
            end = scores[..., BOUNDARY]
            end[...] = ops.where(early, -math.inf, end)

    def _demand_required(self, scores: Array, words: Array, position: Array) -> None:
        """No end before all have come; only they, while there is just enough room for them.

        When none of those that are missing may stand last, one more place is needed after them;
        when one may, it is kept for the last place.
        """
        ops = self.ops
        met = self.met(words)  # (B, R, C)
        missing = len(self.required) - met.sum(-1)
        end = scores[..., BOUNDARY]
        end[...] = ops.where(missing > 0, -math.inf, end)
        room = self.max_length - position
        unusable = met
        if self.constraints.bad_endings:
            good = ~met & ~self._bad[self.required]
            count = good.sum(-1)
            room = room - ops.where((count == 0) & (missing > 0), 1, count * 0)
            unusable = met | (good & ((count == 1) & (missing > 1))[..., None])
        urgent = ((missing >= room) & (missing > 0))[..., None]
        if ops.maybe(urgent):
            values = scores[..., self.required]
            scores[...] = ops.where(urgent, -math.inf, scores)
            scores[..., self.required] = ops.where(urgent & unusable, -math.inf, values)

    def _forbid_repeats(self, scores: Array, words: Array, position: Array) -> None:
        """Forbids each word that, after the last n - 1, would repeat a sequence of n."""
        size = self.constraints.no_repeat_ngram
        starts = self.ops.arange(0, self.max_length - size + 1)
        follows = words[..., size - 1 :]  # (B, R, T - n + 1)
        # Such a sequence lies within the words so far.
        same = (starts + size <= position) & (follows == follows)
        for offset in range(size - 1):
            latest = self.ops.at(words, (position - size + 1 + offset).clip(min=0))
            same = same & (words[..., offset : offset + len(starts)] == latest[..., None])
        # Adding 0 or minus infinity, in any order, gives the same.
        zeros = self.ops.floats(same) * 0.0
        self.ops.add_at(scores, follows, self.ops.where(same, -math.inf, zeros))
