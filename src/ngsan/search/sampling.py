"""Greedy search and sampling: every caption chooses its own words, one after the other.

Shapes: `B` images, `R` captions an image that are written side by side, `T` max_length,
`V` vocabulary.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.search.constraints import Constraints
from ngsan.search.numpy_ops import Array
from ngsan.search.search import Search, StepModel, Written, check_words
from ngsan.text.vocabulary import BOUNDARY

_FREE = Constraints()

_BLOCK = 128
"""Words whose probabilities are summed together, so that most of them are looked at only once."""

_COLDEST = 1e-30
"""Lowest temperature, which single precision can still divide by; its inverse is the highest."""

_SIDE_BY_SIDE = 32
"""Most samples of an image at a time; see `ngsan.nn.cache` for why many side by side cost more."""


class _Separate(Search):
    """Captions that do not compete: each chooses its next word for itself."""

    def __init__(self, steps: StepModel, *, rows: int, **settings: Any) -> None:
        super().__init__(steps, rows=rows, **settings)
        self.ended = self.ops.full((steps.images, rows), False)
        self.totals = self.ops.full((steps.images, rows), 0.0)

    def begin(self) -> None:
        super().begin()
        self.ended[...] = False
        self.totals[...] = 0.0

    def advance(self) -> None:
        log_probs = self.next_log_probs()
        ranked = self.ranked(log_probs)
        words = self.ops.where(self.ended, BOUNDARY, self.choose(ranked))
        # Where nothing is allowed, minus infinity makes the whole caption worthless.
        chosen, worth = (
            self.ops.where(self.ended, 0.0, self.ops.take(values, words[..., None])[..., 0])
            for values in (log_probs, ranked)
        )
        self.write(words, chosen)
        self.totals += worth
        self.ended |= words == BOUNDARY

    @abstractmethod
    def choose(self, ranked: Array) -> Array:
        """Chooses the next words: (B, R, V) to (B, R)."""

    def finished(self) -> Array:
        return self.ended.all()

    def result(self) -> Written:
        scores = None if self.evidence is None else self.totals
        return Written.of(self.words, self.word_log_probs, scores)


class Greedy(_Separate):
    """The most probable word after each other; of equals, the one with the lowest id."""

    def __init__(
        self,
        steps: StepModel,
        *,
        max_length: int = 20,
        constraints: Constraints = _FREE,
        evidence: NDArray[np.floating[Any]] | None = None,
    ) -> None:
        super().__init__(
            steps, rows=1, max_length=max_length, constraints=constraints, evidence=evidence
        )

    def choose(self, ranked: Array) -> Array:
        return ranked.argmax(-1)


class Sampling(_Separate):
    """Words drawn by their probability.

    Every number drawn belongs to (seed, key of the image, sample, position), so a caption depends
    on nothing else in the batch.
    """

    def __init__(
        self,
        steps: StepModel,
        *,
        samples: int = 1,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        keys: Sequence[int] | Array | None = None,
        max_length: int = 20,
        constraints: Constraints = _FREE,
        evidence: NDArray[np.floating[Any]] | None = None,
        look: bool = True,
    ) -> None:
        """Checks the settings and allocates the state.

        Args:
            steps: The model with its images.
            samples: Captions of each image.
            temperature: Divides the log-probabilities: above 1 flattens them, below sharpens.
            top_k: Draw among the `top_k` most probable words; 0 for all.
            top_p: Draw among the fewest most probable words that hold this share, in (0, 1].
            seed: Of the random numbers.
            keys: (B,) an integer for each image; None for 0, 1, 2, ...
            max_length: T.
            constraints: Conditions on captions.
            evidence: See `Search`.
            look: See `Search`.
        """
        if samples < 1:
            raise ValueError(f"samples: {samples} must be at least 1")
        check_words(samples, max_length)
        if not temperature > 0 or math.isinf(temperature):
            raise ValueError(f"temperature: {temperature} must be above 0; greedy is its limit")
        if top_k < 0:
            raise ValueError(f"top_k: {top_k} must be at least 0")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p: {top_p} must be above 0 and at most 1")
        super().__init__(
            steps,
            rows=min(samples, _SIDE_BY_SIDE),
            max_length=max_length,
            constraints=constraints,
            evidence=evidence,
            look=look,
        )
        self.samples, self.temperature, self.top_p = samples, temperature, top_p
        self.top_k = top_k if top_k < steps.vocab_size else 0
        self._numbers = self.ops.arange(0, self.rows)
        self._seed = self.ops.full((1,), 0)
        self._keys = self.ops.full((steps.images, 1), 0)
        self.reseed(seed, keys)

    def reseed(self, seed: int, keys: Sequence[int] | Array | None = None) -> None:
        """Makes the next run draw other numbers; the arguments are those of the beginning."""
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed: {seed} does not fit into 64 bits")
        with self.ops.session():
            if keys is None:
                keys = range(self.steps.images)
            keys = self.ops.array(keys)
            if keys.shape != (self.steps.images,):
                raise ValueError(f"keys: {tuple(keys.shape)} for {self.steps.images} images")
            self._seed[...] = seed
            self._keys[...] = keys[:, None]

    def run(self) -> Written:
        """See `Search.run`; many samples are written some at a time."""
        parts = []
        for first in range(0, self.samples, self.rows):
            with self.ops.session():
                self._numbers[...] = self.ops.arange(first, first + self.rows)
            parts.append(super().run())
        if len(parts) == 1:
            return parts[0]
        columns = ([getattr(part, field.name) for part in parts] for field in fields(Written))
        return Written(*(self.ops.cat(column, 1)[:, : self.samples] for column in columns))

    def choose(self, ranked: Array) -> Array:
        """Draws the next words: (B, R, V) to (B, R)."""
        # The best word becomes 0, so that no temperature makes it overflow or vanish.
        kept = ranked - self.ops.largest(ranked)[..., None].clip(min=-1e30)
        if self.temperature != 1:
            kept = kept / min(max(self.temperature, _COLDEST), 1 / _COLDEST)
        bits = random_bits(self._seed, self._keys, self._numbers, self.position.reshape(1))
        drawn = self.ops.floats(bits) * 2.0**-24
        words = draw(self.ops, self.ops.exp(self._truncated(kept)), drawn)
        # Where nothing is allowed the search ends up past the last word.
        return words.clip(max=ranked.shape[-1] - 1)

    def _truncated(self, scores: Array) -> Array:
        """Minus infinity for words that top_k and top_p exclude; of equals the last leave first."""
        if self.top_k:
            lowest = self.ops.kth(scores, self.top_k)
            scores = self._keep(scores, lowest, self.top_k)
        if self.top_p < 1:
            ranked = self.ops.sort(scores)
            masses = self.ops.exp(ranked)
            shares = masses / masses.sum(-1)[..., None].clip(min=1.0)
            before = self.ops.cumsum(shares) - shares  # the most probable word always stays
            # Always one, also where top_p is too small for single precision.
            counts = (before < self.top_p).sum(-1)[..., None].clip(min=1)
            scores = self._keep(scores, self.ops.take(ranked, counts - 1), counts)
        return scores

    def _keep(self, scores: Array, lowest: Array, counts: Array | int) -> Array:
        """Keeps the best scores, `counts` in number, of which (..., 1) `lowest` is the least."""
        above, equal = scores > lowest, scores == lowest
        room = counts - above.sum(-1)[..., None]
        return self.ops.where(above | (equal & (equal.cumsum(-1) <= room)), scores, -math.inf)


def draw(ops: Any, masses: Array, drawn: Array) -> Array:
    """Draws words by their probability mass: the first whose cumulated mass exceeds a number.

    First a block of words is found and then a word in it, as cumulating all of a vocabulary takes
    longer than all else about a draw. A word without mass is never drawn.

    Args:
        ops: `NumpyOps` or `TorchOps`.
        masses: (B, R, V) of at least 0; they need not sum to one.
        drawn: (B, R) numbers in [0, 1).

    Returns:
        (B, R) words; V or above where all mass is zero.
    """
    blocks = ops.blocks(masses, _BLOCK)  # (B, R, blocks, words of a block)
    images, rows, count, _ = blocks.shape
    ends = ops.cumsum(blocks.sum(-1))

    def below(number: Array, bound: Array) -> Array:
        """A number that is below the bound, also after rounding."""
        return ops.where(number < bound, number, ops.just_below(bound))

    number = below(drawn[..., None] * ends[..., -1:], ends[..., -1:])
    block = (ends <= number).sum(-1).clip(max=count - 1)  # (B, R)
    before = ops.take(ends, (block - 1).clip(min=0)[..., None])
    start = ops.where(block[..., None] > 0, before, 0.0)
    own = ops.arange(0, images * rows) * count + block.reshape(-1)
    inside = blocks.reshape(-1, _BLOCK)[own].reshape(images, rows, _BLOCK)
    cumulated = ops.cumsum(inside)
    rest = below((number - start).clip(min=0.0), cumulated[..., -1:])
    return block * _BLOCK + (cumulated <= rest).sum(-1)


# Odd constants of the splitmix64 generator (Steele, Lea and Flood 2014), as signed 64-bit integers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def random_bits(*numbers: Array) -> Array:
    """24 evenly spread bits for each combination of the integers given.

    A sampled caption is thus the same whatever other images are in the batch and however batches
    are cut, on every device, and a captured step needs no state but the numbers themselves.

    Args:
        *numbers: Arrays of 64-bit integers with at least one axis, of shapes that broadcast.

    Returns:
        Integers from 0 to 2^24 - 1, of the broadcast shape.
    """
    mixed: Array = 0
    for number in numbers:
        bits = mixed + number * _STEP + _STEP
        bits = (bits ^ _shift(bits, 30)) * _FIRST
        bits = (bits ^ _shift(bits, 27)) * _SECOND
        mixed = bits ^ _shift(bits, 31)
    return _shift(mixed, 40)


def _shift(bits: Array, by: int) -> Array:
    """Moves the bits to the right and fills with zeros; `>>` alone would fill with the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
