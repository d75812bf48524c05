"""The searches of `ngsan.decoding` in numpy: the loop that they share, and beam search.

For one image, a step over a vocabulary of ten thousand words takes a fraction of a millisecond; the
rest is the model's. Of equal candidates the one comes first whose caption comes first, and then the
one with the lowest id.

Shapes: `B` images, `R` captions an image that are written side by side, `T` most words,
`V` vocabulary, `Q` candidates looked at.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ngsan.light.constraints import Constraints, Rules
from ngsan.light.result import Written
from ngsan.text.vocabulary import BOUNDARY

Reals = NDArray[np.float32]
Words = NDArray[np.int64]

_FREE = Constraints()

_MOST_WORDS = 1_000_000
"""Words of an image's captions beyond which a search is surely a mistake."""

_COMB = 64
"""Numbers of which only the largest is looked at to find out how large the best are."""

_LOWEST = np.finfo(np.float32).min


class Steps(Protocol):
    """What a search needs of a model that holds B images; see `ngsan.light.model.LightSteps`."""

    images: int
    vocab_size: int

    def first(self, captions: int) -> Reals:
        """Forgets all words; (B, R, V) logits of the first words of R captions, all alike."""

    def step(self, words: Words, parents: Words) -> Reals:
        """(B, R, V) logits after `words`, (B, R), which go on from the captions `parents`."""


class Pick(NamedTuple):
    """What captions go on with, (B, R) each."""

    parents: Words
    """Which of the captions so far."""

    words: Words
    """The next word."""

    log_probs: Reals
    """Its log-probability."""

    def at(self, places: Words) -> "Pick":
        """Some of them, by their places, (B, ...)."""
        return Pick(
            np.take_along_axis(self.parents, places, 1),
            np.take_along_axis(self.words, places, 1),
            np.take_along_axis(self.log_probs, places, 1),
        )

    def first(self, count: int) -> "Pick":
        """The first of them."""
        return Pick(self.parents[:, :count], self.words[:, :count], self.log_probs[:, :count])


class Search(ABC):
    """What all searches share: words so far, their log-probabilities, and the loop."""

    def __init__(
        self, steps: Steps, *, rows: int, longest: int = 20, constraints: Constraints = _FREE
    ) -> None:
        """Takes the model and what all searches are told.

        Args:
            steps: The model with its images.
            rows: R.
            longest: T, most words of a caption.
            constraints: Conditions on captions.

        Raises:
            ValueError: The constraints cannot be met, or captions are too many and too long.
        """
        if rows * longest > _MOST_WORDS:
            raise ValueError(
                f"{rows} captions of {longest} words are followed for each image, which is more "
                f"than {_MOST_WORDS:,} words: lower longest or the beam"
            )
        self.steps, self.rows, self.longest = steps, rows, longest
        self.rules = Rules(constraints, vocab_size=steps.vocab_size, longest=longest)
        self.begin()

    def begin(self) -> None:
        """Puts the state back to no words at all."""
        shape = (self.steps.images, self.rows, self.longest)
        self.words = np.full(shape, BOUNDARY, np.int64)
        self.word_log_probs = np.zeros(shape, np.float32)
        self.odd = np.zeros(self.steps.images, np.bool_)  # whose probabilities are no numbers

    def run(self) -> Written:
        """Writes captions for the images."""
        self.begin()
        if self.steps.images:
            logits = self.steps.first(self.rows)
            for position in range(self.longest):
                log_probs = self._log_probs(logits)
                self.rules.apply(log_probs, self.words, position)
                pick = self.advance(log_probs, position)
                self._write(pick, position)
                if position + 1 == self.longest or self.finished():
                    break
                logits = self.steps.step(pick.words, pick.parents)
        found = self.result()
        found.scores[self.odd] = math.nan
        return found

    @abstractmethod
    def advance(self, log_probs: Reals, position: int) -> Pick:
        """Chooses the next words, after `position` others, by (B, R, V) log-probabilities."""

    @abstractmethod
    def finished(self) -> bool:
        """Whether more words would change nothing."""

    @abstractmethod
    def result(self) -> Written:
        """The captions."""

    def _log_probs(self, logits: Reals) -> Reals:
        """(B, R, V) a copy that may be changed."""
        with np.errstate(invalid="ignore"):  # what is no number is reported in the end
            log_probs: Reals = logits - logits.max(-1, keepdims=True)
            total = np.exp(log_probs).sum(-1, keepdims=True)
            log_probs -= np.log(total)
        self.odd |= np.isnan(total).any((1, 2))
        return log_probs

    def _write(self, pick: Pick, position: int) -> None:
        """Appends a word to every caption."""
        self.words, self.word_log_probs = self._extended(pick, position)

    def _extended(self, pick: Pick, position: int) -> tuple[Words, Reals]:
        """Words and log-probabilities, (B, ..., T), of captions that go on with what was picked."""
        parents = pick.parents[:, :, None]
        words = np.take_along_axis(self.words, parents, 1)
        words[:, :, position] = pick.words
        log_probs = np.take_along_axis(self.word_log_probs, parents, 1)
        log_probs[:, :, position] = pick.log_probs
        return words, log_probs


class Beam(Search):
    """Beam search; see `ngsan.decoding.beam`, of which this is the part without groups and banks.

    The score of a caption is its log-probability divided by its length to the power of
    `length_penalty`; the end counts as a word.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        beam: int = 3,
        best: int = 1,
        length_penalty: float = 0.0,
        early_stopping: bool = False,
        longest: int = 20,
        constraints: Constraints = _FREE,
    ) -> None:
        """Takes the model and how to search.

        Args:
            steps: The model with its images.
            beam: Captions that are followed.
            best: How many captions to return, at most `beam`.
            length_penalty: 0 ranks by log-probability, 1 by its mean over the words.
            early_stopping: Whether an image is done as soon as `beam` captions have ended. If not,
                it is when no open caption could still come to a better score.
            longest: T.
            constraints: Conditions on captions.
        """
        if not math.isfinite(length_penalty):
            raise ValueError(f"length_penalty: {length_penalty} is not finite")
        # The divisor of a caption of so many words, the end among them; nothing has length 0.
        lengths = np.maximum(np.arange(longest + 2, dtype=np.float64), 1)
        with np.errstate(over="ignore", under="ignore"):
            self._divisors = np.power(lengths, length_penalty).astype(np.float32)
        if not (np.isfinite(self._divisors) & (self._divisors > 1e-30)).all():
            raise ValueError(
                f"length_penalty: {length_penalty} is too extreme for captions of {longest} words"
            )
        # An open caption's score is at best its log-probability divided by this.
        self._patience = self._divisors.copy()
        if length_penalty > 0:
            self._patience.fill(self._divisors[longest])
        self.best, self.early_stopping = best, early_stopping
        super().__init__(steps, rows=beam, longest=longest, constraints=constraints)

    def begin(self) -> None:
        """See `Search.begin`."""
        super().begin()
        images = self.steps.images
        # All captions begin alike: one of them stands for all.
        self.totals = np.full((images, self.rows), -math.inf, np.float32)
        self.totals[:, 0] = 0
        self.done = np.zeros(images, np.bool_)
        # The finished captions, the best first.
        self.shelf_scores = np.full((images, self.rows), -math.inf, np.float32)
        self.shelf_words = np.full((images, self.rows, self.longest), BOUNDARY, np.int64)
        self.shelf_log_probs = np.zeros((images, self.rows, self.longest), np.float32)

    def advance(self, log_probs: Reals, position: int) -> Pick:
        """See `Search.advance`."""
        images, vocabulary = len(log_probs), log_probs.shape[2]
        ranked = (log_probs + self.totals[:, :, None]).reshape(images, -1)
        places, totals = best_of(ranked, 2 * self.rows)  # (B, Q)
        chosen = np.take_along_axis(log_probs.reshape(images, -1), places, 1)
        found = Pick(*np.divmod(places, vocabulary), chosen)
        ends = found.words == BOUNDARY
        self._end(found, totals, ends, position)

        # The candidates stand in order, so the best that go on are the first that go on.
        order = np.argsort(ends, axis=1, kind="stable")[:, : self.rows]
        totals[ends] = -math.inf
        self.totals = np.take_along_axis(totals, order, 1)
        self._settle(position)
        return found.at(order)

    def finished(self) -> bool:
        """See `Search.finished`."""
        return bool(self.done.all())

    def result(self) -> Written:
        """See `Search.result`."""
        if not self.done.all():  # what is open still was cut off at T words
            scores = self.totals / self._divisors[self.longest]
            scores[self.done] = -math.inf
            self._shelve(scores, self.words, self.word_log_probs)
        best = slice(None, self.best)
        return Written(
            self.shelf_words[:, best], self.shelf_log_probs[:, best], self.shelf_scores[:, best]
        )

    def _end(self, found: Pick, totals: Reals, ends: NDArray[np.bool_], position: int) -> None:
        """Shelves the captions that end, if they are among the R best of the candidates."""
        first = slice(None, self.rows)
        closing = ends[:, first] & ~np.isneginf(totals[:, first]) & ~self.done[:, None]
        if not closing.any():
            return
        scores = np.where(closing, totals[:, first] / self._divisors[position + 1], -math.inf)
        self._shelve(scores.astype(np.float32), *self._extended(found.first(self.rows), position))

    def _settle(self, position: int) -> None:
        """Finds out for which images the search is over."""
        highest, worst = self.totals.max(1), self.shelf_scores[:, -1]
        full = ~np.isneginf(worst)
        if self.early_stopping:  # but captions that are cut off now may still be better
            full &= position + 1 < self.longest
        else:
            full &= worst >= highest / self._patience[position + 1]
        self.done |= full | np.isneginf(highest)

    def _shelve(self, scores: Reals, words: Words, log_probs: Reals) -> None:
        """Keeps the R best of the shelf and of more captions, (B, R) and (B, R, T)."""
        scores = np.concatenate((self.shelf_scores, scores), 1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self.rows]
        self.shelf_scores = np.take_along_axis(scores, order, 1)
        index = order[:, :, None]
        words = np.concatenate((self.shelf_words, words), 1)
        self.shelf_words = np.take_along_axis(words, index, 1)
        log_probs = np.concatenate((self.shelf_log_probs, log_probs), 1)
        self.shelf_log_probs = np.take_along_axis(log_probs, index, 1)


def best_of(values: Reals, count: int) -> tuple[Words, Reals]:
    """The largest numbers of each row, the largest first and of equal ones the first.

    Args:
        values: (B, X).
        count: Q; may be more than there are.

    Returns:
        places: (B, Q) where they stand; 0 where there is none.
        values: (B, Q) the numbers; minus infinity where there is none.
    """
    rows, size = values.shape
    places = np.zeros((rows, count), np.int64)
    best = np.full((rows, count), -math.inf, np.float32)
    flat = np.flatnonzero(values >= _lower_bound(values, count))
    found, row = values.reshape(-1)[flat], flat // size
    order = np.lexsort((-found, row))
    row = row[order]
    rank = np.arange(len(row)) - np.searchsorted(row, np.arange(rows))[row]
    kept = rank < count
    row, rank, order = row[kept], rank[kept], order[kept]
    places[row, rank], best[row, rank] = flat[order] % size, found[order]
    return places, best


def _lower_bound(values: Reals, count: int) -> Reals:
    """(B, 1) a finite number that the `count` largest of a row reach, if they are, and few others.

    It is the largest number of some part of the row, of which `count` parts have none that is less.
    """
    rows, size = values.shape
    parts = size // _COMB
    if parts < count:
        return np.full((rows, 1), _LOWEST, np.float32)
    # Part p consists of every place that is p in steps of `parts`: long rows are compared at once.
    largest = values[:, : parts * _COMB].reshape(rows, _COMB, parts).max(1)
    bound = np.partition(largest, parts - count, axis=1)[:, parts - count, None]
    return np.maximum(bound, _LOWEST)
