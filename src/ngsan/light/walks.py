"""Greedy search and sampling: every caption goes its own way, word by word.

Shapes: `B` images, `R` captions an image, `T` most words, `V` vocabulary.
"""

import math
from abc import abstractmethod

import numpy as np

from ngsan.light.constraints import Constraints
from ngsan.light.randomness import uniforms
from ngsan.light.result import Written
from ngsan.light.search import Pick, Reals, Search, Steps, Words
from ngsan.text.vocabulary import BOUNDARY

_FREE = Constraints()

_BLOCK = 128
"""Words whose probabilities are summed together, as in `ngsan.decoding.sampling`."""

_SIDE_BY_SIDE = 32
"""Most samples of an image at a time, as each looks at the keys of all words of all others."""


class _Walk(Search):
    """Captions that never meet: each chooses its next word for itself."""

    def begin(self) -> None:
        """See `Search.begin`."""
        super().begin()
        self.ended = np.zeros((self.steps.images, self.rows), np.bool_)

    def advance(self, log_probs: Reals, position: int) -> Pick:
        """See `Search.advance`."""
        own = np.broadcast_to(np.arange(self.rows), self.ended.shape)
        words = np.where(self.ended, BOUNDARY, self.choose(log_probs, position))
        # Where nothing is allowed, minus infinity makes the whole caption worthless.
        chosen = np.take_along_axis(log_probs, words[:, :, None], 2)[:, :, 0]
        chosen = np.where(self.ended, np.float32(0), chosen)
        self.ended = self.ended | (words == BOUNDARY)
        return Pick(own, words, chosen)

    @abstractmethod
    def choose(self, log_probs: Reals, position: int) -> Words:
        """Chooses the next words: (B, R, V) to (B, R)."""

    def finished(self) -> bool:
        """See `Search.finished`."""
        return bool(self.ended.all())

    def result(self) -> Written:
        """See `Search.result`."""
        return Written(self.words, self.word_log_probs, self.word_log_probs.sum(-1))


class Greedy(_Walk):
    """The most probable word after each other; of equals, the one with the lowest id."""

    def __init__(
        self, steps: Steps, *, longest: int = 20, constraints: Constraints = _FREE
    ) -> None:
        """Takes what `Search` takes."""
        super().__init__(steps, rows=1, longest=longest, constraints=constraints)

    def choose(self, log_probs: Reals, position: int) -> Words:
        """See above."""
        words: Words = log_probs.argmax(-1)
        return words


class Sampling(_Walk):
    """Words drawn by their probability.

    Every number drawn belongs to (seed, key of the image, sample, position), so a caption depends
    on nothing else in the batch.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        samples: int = 1,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        first: int = 0,
        longest: int = 20,
        constraints: Constraints = _FREE,
    ) -> None:
        """Takes the model and how to draw.

        Args:
            steps: The model with its images.
            samples: Captions of an image.
            temperature: Divides the log-probabilities: above 1 flattens them, below sharpens.
            top_k: Draw among so many most probable words; 0 for all.
            top_p: Draw among the fewest most probable words that hold this share, in (0, 1].
            seed: Of the random numbers.
            first: Key of the first image; the others follow.
            longest: T.
            constraints: Conditions on captions.
        """
        if math.isinf(temperature):
            raise ValueError(f"temperature: {temperature} must be a number above 0")
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed: {seed} does not fit into 64 bits")
        rows = min(samples, _SIDE_BY_SIDE)
        super().__init__(steps, rows=rows, longest=longest, constraints=constraints)
        self.samples, self.temperature = samples, temperature
        self.top_k, self.top_p, self.seed = top_k, top_p, seed
        self._keys = np.arange(first, first + steps.images)[:, None]
        self._numbers = np.arange(0)

    def run(self) -> Written:
        """See `Search.run`; many samples are written some at a time."""
        parts = []
        for start in range(0, self.samples, _SIDE_BY_SIDE):
            self._numbers = np.arange(start, min(start + _SIDE_BY_SIDE, self.samples))
            self.rows = len(self._numbers)
            parts.append(super().run())
        return Written(
            np.concatenate([part.words for part in parts], 1),
            np.concatenate([part.word_log_probs for part in parts], 1),
            np.concatenate([part.scores for part in parts], 1),
        )

    def choose(self, log_probs: Reals, position: int) -> Words:
        """Draws the next words: (B, R, V) to (B, R)."""
        # The best word becomes 0, so that no temperature makes it overflow or vanish.
        kept = log_probs - np.maximum(log_probs.max(-1, keepdims=True), np.float32(-1e30))
        if self.temperature != 1:
            with np.errstate(over="ignore"):  # to minus infinity, which is no chance at all
                kept /= np.float32(self.temperature)
        if 0 < self.top_k < kept.shape[-1]:
            _keep_best(kept, np.full(kept.shape[:-1], self.top_k))
        if self.top_p < 1:
            _keep_best(kept, _holding(kept, self.top_p))
        drawn = uniforms(self.seed, self._keys, self._numbers, position)
        # Where nothing is allowed the search ends up past the last word.
        words: Words = np.minimum(draw(np.exp(kept), drawn), log_probs.shape[-1] - 1)
        return words


def _holding(log_probs: Reals, share: float) -> Words:
    """How many of the most probable words hold a share of the probability.

    Args:
        log_probs: (..., V) up to a constant, with which the best is 0, or all minus infinity.
        share: Above 0 and below 1.

    Returns:
        (...) from 1 to V.
    """
    masses = np.exp(-np.sort(-log_probs, axis=-1))
    shares = masses / np.maximum(masses.sum(-1, keepdims=True), 1)
    before = _cumulated(shares) - shares  # the most probable word always stays
    counts: Words = (before < share).sum(-1)
    return counts


def _keep_best(scores: Reals, counts: Words) -> None:
    """Sets to minus infinity, in place, what is not among so many best; equals leave by the end.

    Args:
        scores: (..., V).
        counts: (...) from 1 to V.
    """
    ranked = -np.sort(-scores, axis=-1)
    last = np.take_along_axis(ranked, counts[..., None] - 1, -1)
    above, equal = scores > last, scores == last
    room = counts[..., None] - above.sum(-1, keepdims=True)
    scores[~(above | (equal & (equal.cumsum(-1) <= room)))] = -math.inf


def draw(masses: Reals, drawn: Reals) -> Words:
    """Draws words by their probability mass: the first whose cumulated mass exceeds a number.

    First a block of words is found and then a word in it, with the same sums as in
    `ngsan.decoding.sampling`, so that both draw the same.

    Args:
        masses: (..., V) of at least 0; they need not sum to one.
        drawn: (...) numbers in [0, 1).

    Returns:
        (...) words; V or above where there is no mass at all.
    """
    size = masses.shape[-1]
    padded = np.zeros((*masses.shape[:-1], size + -size % _BLOCK), np.float32)
    padded[..., :size] = masses
    blocks = padded.reshape(*masses.shape[:-1], -1, _BLOCK)
    ends = _cumulated(blocks.sum(-1))  # (..., blocks)
    number = _below(drawn[..., None] * ends[..., -1:], ends[..., -1:])
    block = np.minimum((ends <= number).sum(-1, keepdims=True), ends.shape[-1] - 1)
    before = np.take_along_axis(ends, np.maximum(block - 1, 0), -1)
    start = np.where(block > 0, before, np.float32(0))
    inside = np.take_along_axis(blocks, block[..., None], -2)[..., 0, :]
    cumulated = _cumulated(inside)
    rest = _below(np.maximum(number - start, 0), cumulated[..., -1:])
    word = block * _BLOCK + (cumulated <= rest).sum(-1, keepdims=True)
    words: Words = word[..., 0]
    return words


def _cumulated(numbers: Reals) -> Reals:
    """Sums up to each number of the last axis, rounded once only, as torch does on a CPU."""
    return np.cumsum(numbers, -1, dtype=np.float64).astype(np.float32)


def _below(number: Reals, bound: Reals) -> Reals:
    """A number that is below the bound, also after rounding."""
    return np.minimum(number, np.nextafter(bound, np.float32(0)))
