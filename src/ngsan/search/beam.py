"""Beam search, with groups that keep apart (diverse beam search) and banks for required words.

At each step the 2 W best continuations of the W open captions are looked at. Those that end, if
they are among the W best, are put on the shelf of finished captions, which keeps the W best by
score; the W best of the others stay open. (fairseq and the Transformers library do the same.) Of
equally good continuations the one comes first whose caption comes first, and then the one with the
lowest word id.

Diverse beam search (Vijayakumar et al. 2018): the beam is cut into G groups that search one after
the other within a step; a word costs a group `diversity` for every caption of the groups before it
that chose the same word at this step. The cost decides what is chosen; scores are the model's
alone.

Required words (grid beam search, Hokamp and Liu 2017): captions with k of the C required words
compete only with each other, in bank k of W captions, so that one which has just spent probability
on a required word is not pushed out by others that have put it off. A caption ends in the last
bank.

Shapes: `B` images, `G` groups, `K` banks (C + 1), `W` captions of a group, `R` = G K W, `T`
max_length, `V` vocabulary, `Q` candidates looked at.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngsan.search.constraints import Constraints
from ngsan.search.numpy_ops import Array
from ngsan.search.search import Search, StepModel, Written
from ngsan.text.vocabulary import BOUNDARY

_FREE = Constraints()


class Beam(Search):
    """Beam search.

    The score of a caption is its log-probability and the evidence of its words, divided by its
    length to the power of `length_penalty`; the end counts as a word.

    Note:
        An open caption is given up as if no evidence were to come. With evidence above 0 it might
        still have overtaken those that have ended, but the search would seldom stop early.
    """

    def __init__(
        self,
        steps: StepModel,
        *,
        beam: int = 3,
        num_return: int = 1,
        length_penalty: float = 0.0,
        early_stopping: bool = False,
        groups: int = 1,
        diversity: float = 0.5,
        max_length: int = 20,
        constraints: Constraints = _FREE,
        evidence: NDArray[np.floating[Any]] | None = None,
        must_end: bool = False,
    ) -> None:
        """Checks the settings and allocates the state.

        Args:
            steps: The model with its images.
            beam: Captions that are followed, of all groups together.
            num_return: How many captions to return, at most `beam`.
            length_penalty: 0 ranks by log-probability, 1 by its mean over the words; the higher,
                the longer the captions.
            early_stopping: Whether an image is done as soon as `beam` captions have ended. If not,
                it is when no open caption could still come to a better score.
            groups: G, a divisor of `beam`; 1 for plain beam search.
            diversity: What a word costs for each earlier group's caption that chose it.
            max_length: T, most words of a caption.
            constraints: Conditions on captions.
            evidence: See `Search`.
            must_end: Whether only the end may stand in the last place, as in fairseq: a caption
                then has T - 1 words at most, and its end counts. If not, one of T words is cut off
                there, and scored without an end.
        """
        if must_end and constraints != _FREE:
            raise ValueError("must_end: captions under constraints cannot be made to end")
        if beam < 1:
            raise ValueError(f"beam: {beam} must be at least 1")
        if not 1 <= num_return <= beam:
            raise ValueError(f"num_return: {num_return} captions cannot come from a beam of {beam}")
        if groups < 1 or beam % groups:
            raise ValueError(f"groups: {groups} does not divide beam: {beam}")
        if not math.isfinite(length_penalty):
            raise ValueError(f"length_penalty: {length_penalty} is not finite")
        if not 0 <= diversity < math.inf:
            raise ValueError(f"diversity: {diversity} must be at least 0")
        self.groups, self.banks = groups, len(set(constraints.required)) + 1
        self.width = beam // groups
        super().__init__(
            steps,
            rows=groups * self.banks * self.width,
            max_length=max_length,
            constraints=constraints,
            evidence=evidence,
        )
        self.num_return, self.early_stopping, self.diversity = num_return, early_stopping, diversity
        self.length_penalty = length_penalty
        ops = self.ops
        self._no_end = ops.arange(0, steps.vocab_size) != BOUNDARY if must_end else None
        divisors = _divisors(length_penalty, max_length)
        self._divisors = ops.array(divisors, float)
        # The score of an open caption is at best its log-probability divided by this.
        best = np.full_like(divisors, divisors[max_length]) if length_penalty > 0 else divisors
        self._best_divisors = ops.array(best, float)
        self.parents = ops.full((steps.images, self.rows), 0)
        self.totals = ops.full((steps.images, groups, self.banks, self.width), 0.0)
        self.done = ops.full((steps.images, groups), False)
        # The finished captions of each group, the best first.
        shelf = (steps.images, groups, self.width)
        self.shelf_scores = ops.full(shelf, 0.0)
        self.shelf_words = ops.full((*shelf, max_length), BOUNDARY)
        self.shelf_log_probs = ops.full((*shelf, max_length), 0.0)

    def begin(self) -> None:
        super().begin()
        self.parents[...] = self.ops.arange(0, self.rows)
        # All captions begin alike: one of them, in the first bank, stands for all.
        self.totals[...] = -math.inf
        self.totals[:, :, 0, 0] = 0.0
        self.done[...] = False
        self.shelf_scores[...] = -math.inf
        self.shelf_words[...] = BOUNDARY
        self.shelf_log_probs[...] = 0.0

    def advance(self) -> None:
        log_probs = self.next_log_probs()
        last = self.position == self.max_length - 1
        if self._no_end is not None and self.ops.maybe(last):
            log_probs = self.ops.where(self._no_end & last, -math.inf, log_probs)
        shape = (*self.totals.shape, log_probs.shape[-1])  # (B, G, K, W, V)
        ranked, log_probs = self.ranked(log_probs).reshape(shape), log_probs.reshape(shape)
        picks: list[_Continuations] = []
        for group in range(self.groups):
            cost = self._cost(picks, log_probs)
            found = self._candidates(group, log_probs[:, group], ranked[:, group], cost)
            picks.append(self._settle(group, found))
        self._continue(picks)

    def finished(self) -> Array:
        return self.done.all()

    def result(self) -> Written:
        """See `Search.result`. A caption whose score is minus infinity does not exist."""
        for group in range(self.groups):  # what is open still was cut off at T words
            unfinished = ~self.done[:, group, None]
            if self.ops.maybe(unfinished):
                end = (group + 1) * self.banks * self.width
                rows = slice(end - self.width, end)  # the group's last bank
                scores = self.totals[:, group, -1] / self._divisors[self.max_length]
                scores = self.ops.where(unfinished, scores, -math.inf)
                self._shelve(group, scores, self.words[:, rows], self.word_log_probs[:, rows])
        scores, places = self.ops.top(self._distinct_scores(), self.num_return)
        size = (len(scores), self.groups * self.width)
        shelves = (self.shelf_words, self.shelf_log_probs)
        words, log_probs = (
            self.ops.rows(shelf.reshape(*size, self.max_length), places) for shelf in shelves
        )
        return Written.of(words, log_probs, scores)

    def _distinct_scores(self) -> Array:
        """(B, G W) the scores on all shelves, minus infinity for what an earlier group has, too."""
        count = self.groups * self.width
        scores = self.shelf_scores.reshape(len(self.done), count)
        if self.groups == 1:
            return scores
        words = self.shelf_words.reshape(*scores.shape, self.max_length)
        same = (words[:, None] == words[:, :, None]).all(-1)  # (B, G W, G W)
        same = same & (scores > -math.inf)[:, None]  # an empty place is not an empty caption
        number = self.ops.arange(0, count)
        earlier = number[:, None] > number
        return self.ops.where((same & earlier).any(-1), -math.inf, scores)

    def _cost(self, picks: list["_Continuations"], log_probs: Array) -> Array | None:
        """(B, 1, 1, V) what each word costs because earlier groups chose it; None for nothing."""
        if not picks or not self.diversity:
            return None
        images, vocabulary = log_probs.shape[0], log_probs.shape[-1]
        cost = self.ops.full((images, vocabulary), 0.0)
        for pick in picks:
            price = (pick.totals > -math.inf) * self.diversity
            count = self.banks * self.width
            self.ops.add_at(cost, pick.words.reshape(-1, count), price.reshape(-1, count))
        return cost[:, None, None, :]

    def _candidates(
        self, group: int, log_probs: Array, gains: Array, cost: Array | None
    ) -> "_Continuations":
        """(B, K, Q) the best continuations in each bank of a group, the best first.

        Args:
            group: Which.
            log_probs: (B, K, W, V) of each caption's next word.
            gains: (B, K, W, V) the same with evidence.
            cost: (B, 1, 1, V) or None.
        """
        ops, totals = self.ops, self.totals[:, group]
        _, banks, width, vocabulary = log_probs.shape
        count = min(2 * width, width * vocabulary)
        ranked = (gains if cost is None else gains - cost) + totals[..., None]
        gaining = None
        if banks > 1:
            ranked, gaining = self._split(group, ranked)
        ranks, places = ops.top(ranked.reshape(-1, banks, width * vocabulary), count)
        parents, words = places // vocabulary, places % vocabulary
        if gaining is not None:
            bank_starts = ops.arange(0, banks)[:, None] * width
            parents = parents + bank_starts
            # Those from bank k - 1 to bank k; none come to the first.
            required, own = self.rules.required, ops.arange(0, gaining.shape[-1])
            blank = ops.full((len(ranks), banks, len(own)), 0)
            none = ops.full((len(ranks), 1, len(own)), -math.inf)
            parents_below = (bank_starts - width).clip(min=0) + own // len(required)
            gaining = ops.cat((none, gaining[:, :-1]), 1)
            ranks = ops.cat((ranks, gaining), 2)
            parents = ops.cat((parents, blank + parents_below), 2)
            words = ops.cat((words, blank + required[own % len(required)]), 2)
            ranks, order = ops.top(ranks, count)
            parents, words = ops.take(parents, order), ops.take(words, order)
        flat = (parents * vocabulary + words).reshape(-1, banks * count)
        size = banks * width
        chosen = ops.take(log_probs.reshape(-1, size * vocabulary), flat).reshape(words.shape)
        values = ranks
        if cost is not None:  # it decides what is chosen, not what that is worth
            gained = ops.take(gains.reshape(-1, size * vocabulary), flat).reshape(words.shape)
            flat = parents.reshape(-1, banks * count)
            worth = ops.take(totals.reshape(-1, size), flat).reshape(words.shape)
            values = ops.where(ranks > -math.inf, worth + gained, -math.inf)
        return _Continuations(parents, words, values, chosen)

    def _split(self, group: int, ranked: Array) -> tuple[Array, Array]:
        """Separates words that stay in a bank, (B, K, W, V), from those that leave it, (B, K, W C).

        Args:
            group: Which.
            ranked: (B, K, W, V); changed in place.
        """
        size, required = self.banks * self.width, self.rules.required
        met = self.rules.met(self.words[:, group * size : (group + 1) * size])
        met = met.reshape(*ranked.shape[:3], len(required))
        values = ranked[..., required]
        ranked[..., required] = self.ops.where(met, values, -math.inf)
        gaining = self.ops.where(met, -math.inf, values)
        return ranked, gaining.reshape(*ranked.shape[:2], self.width * len(required))

    def _settle(self, group: int, found: "_Continuations") -> "_Continuations":
        """(B, K, W) the continuations that stay open, after those that end were shelved."""
        ops = self.ops
        ends = found.words == BOUNDARY
        # Only captions of the last bank may end; only the W best of the candidates count.
        best = _Continuations(*(part[:, -1, : self.width] for part in found))
        ending = ends[:, -1, : self.width] & (best.totals > -math.inf) & ~self.done[:, group, None]
        if ops.maybe(ending):
            scores = ops.where(ending, self._divided(best.totals, self._divisors), -math.inf)
            rows = best.parents + group * self.banks * self.width
            log_probs = ops.rows(self.word_log_probs, rows)
            ops.put(log_probs, self.position, best.log_probs)
            self._shelve(group, scores, ops.rows(self.words, rows), log_probs)

        # The candidates stand in order, so the best that stay open are the first that do.
        order = ops.falses_first(ends, self.width)
        found = found._replace(totals=ops.where(ends, -math.inf, found.totals))
        found = _Continuations(*(ops.take(part, order) for part in found))
        highest = ops.largest(found.totals.reshape(-1, self.banks * self.width))
        worst = self.shelf_scores[:, group, -1]
        full = worst > -math.inf
        if self.early_stopping:  # but captions that are cut off now may still be better
            full = full & (self.position + 1 < self.max_length)
        else:
            full = full & (worst >= self._divided(highest, self._best_divisors))
        self.done[:, group] |= full | (highest == -math.inf)
        return found

    def _divided(self, totals: Array, divisors: Array) -> Array:
        """The scores of captions after the word that is being written."""
        if not self.length_penalty:
            return totals
        return totals / self.ops.at(divisors, self.position + 1)

    def _shelve(self, group: int, scores: Array, words: Array, log_probs: Array) -> None:
        """Keeps the W best of a group's shelf and of more captions, (B, W) and (B, W, T)."""
        ops = self.ops
        scores, places = ops.top(ops.cat((self.shelf_scores[:, group], scores), 1), self.width)
        self.shelf_scores[:, group] = scores
        for shelf, more in ((self.shelf_words, words), (self.shelf_log_probs, log_probs)):
            shelf[:, group] = ops.rows(ops.cat((shelf[:, group], more), 1), places)

    def _continue(self, picks: list["_Continuations"]) -> None:
        """Writes the continuations that stay open, (B, K, W) of each group."""
        if len(picks) == 1:
            pick = picks[0]
        else:
            pick = _Continuations(*(self.ops.stack(parts, 1) for parts in zip(*picks, strict=True)))
            starts = self.ops.arange(0, self.groups) * (self.banks * self.width)
            pick = pick._replace(parents=pick.parents + starts[:, None, None])
        self.totals[...] = pick.totals.reshape(self.totals.shape)
        shape = self.latest.shape
        self.parents[...] = pick.parents.reshape(shape)
        self.words[...] = self.ops.rows(self.words, self.parents)
        self.word_log_probs[...] = self.ops.rows(self.word_log_probs, self.parents)
        self.write(pick.words.reshape(shape), pick.log_probs.reshape(shape))


class _Continuations(NamedTuple):
    """Captions with one more word, of one shape; the best first within a bank."""

    parents: Array
    """Which caption each continues, among the K W of its group."""

    words: Array

    totals: Array
    """What the captions are worth before division: log-probabilities and evidence; minus infinity
    where there is none."""

    log_probs: Array
    """Of the words alone."""


def _divisors(length_penalty: float, max_length: int) -> Array:
    """(T + 2,) what the log-probability of a caption of each length is divided by."""
    lengths = np.maximum(np.arange(max_length + 2, dtype=np.float64), 1)  # no caption has length 0
    with np.errstate(over="ignore", under="ignore"):
        divisors = np.power(lengths, length_penalty).astype(np.float32)
    if not (np.isfinite(divisors) & (divisors > 1e-30)).all():
        raise ValueError(
            f"length_penalty: {length_penalty} is too extreme for captions of {max_length} words"
        )
    return divisors
