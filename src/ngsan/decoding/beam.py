"""Beam search, with groups that keep apart (diverse beam search) and banks for required words.

At each step the 2 W best continuations of the W open captions are looked at. Those that end, if
they are among the W best, are put on the shelf of finished captions, which keeps the W best by
score; the W best of the others stay open. (So do fairseq and the Transformers library.)

Diverse beam search (Vijayakumar et al. 2018): the beam is cut into G groups that search one after
the other within a step; a word costs a group `diversity` for every caption of the groups before it
that chose the same word at this step. The cost decides what is chosen; scores are the model's
alone.

Required words (grid beam search, Hokamp and Liu 2017): captions with k of the C required words
compete only with each other, in bank k of W captions, so that one which has just spent probability
on a required word is not pushed out by others that have put it off. A caption ends in the last
bank.

Shapes: `B` images, `G` groups, `K` banks (C + 1), `W` captions of a group, `R` = G K W, `T` most
words, `V` vocabulary, `Q` candidates looked at.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ngsan.decoding.constraints import Constraints
from ngsan.decoding.protocol import StepModel
from ngsan.decoding.result import Written
from ngsan.decoding.search import Search

_FREE = Constraints()

_FEW = 64
"""Captions of all images together up to which rows of the vocabulary are cut up on a GPU."""


class Beam(Search):
    """Beam search.

    The score of a caption is its log-probability divided by its length to the power of
    `length_penalty`; the end counts as a word.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        beam: int = 3,
        best: int = 1,
        length_penalty: float = 0.0,
        early_stopping: bool = False,
        groups: int = 1,
        diversity: float = 0.5,
        longest: int = 20,
        boundary: int = 0,
        constraints: Constraints = _FREE,
        must_end: bool = False,
    ) -> None:
        """Takes the model and how to search.

        Args:
            model: The model with its images.
            beam: Captions that are followed, of all groups together.
            best: How many captions to return, at most `beam`.
            length_penalty: 0 ranks by log-probability, 1 by its mean over the words; the higher,
                the longer the captions.
            early_stopping: Whether an image is done as soon as `beam` captions have ended. If not,
                it is when no open caption could still come to a better score.
            groups: G, a divisor of `beam`; 1 for plain beam search.
            diversity: What a word costs for each earlier group's caption that chose it.
            longest: T, most words of a caption.
            boundary: The id that begins and ends a caption.
            constraints: Conditions on captions.
            must_end: Whether the end is all that may stand in the last place, as in fairseq: a
                caption then has T - 1 words at most, and its end counts. If not, one of T words is
                cut off there, and scored without an end.
        """
        if must_end and constraints != _FREE:
            raise ValueError("must_end: captions under constraints cannot be made to end")
        if beam < 1:
            raise ValueError(f"beam: {beam} must be at least 1")
        if not 1 <= best <= beam:
            raise ValueError(f"best: {best} captions cannot come from a beam of {beam}")
        if groups < 1 or beam % groups:
            raise ValueError(f"groups: {groups} does not divide beam: {beam}")
        if not math.isfinite(length_penalty):
            raise ValueError(f"length_penalty: {length_penalty} is not finite")
        if not 0 <= diversity < math.inf:
            raise ValueError(f"diversity: {diversity} must be at least 0")
        self.groups, self.banks = groups, len(set(constraints.required)) + 1
        self.width = beam // groups
        super().__init__(
            model,
            rows=groups * self.banks * self.width,
            longest=longest,
            boundary=boundary,
            constraints=constraints,
        )
        self.best, self.early_stopping, self.diversity = best, early_stopping, diversity
        self.length_penalty = length_penalty
        device = model.device
        self._no_ends = None
        if must_end:
            self._no_ends = torch.arange(model.vocab_size, device=device) != boundary
        lengths = torch.arange(longest + 2, device=device, dtype=torch.float64)
        # The divisor of a caption of so many words, the end among them; nothing has length 0.
        self._divisors = lengths.clamp(min=1).pow(length_penalty).float()
        if not (torch.isfinite(self._divisors) & (self._divisors > 1e-30)).all():
            raise ValueError(
                f"length_penalty: {length_penalty} is too extreme for captions of {longest} words"
            )
        # An open caption's score is at best its log-probability divided by this.
        self._patience = self._divisors.clone()
        if length_penalty > 0:
            self._patience.fill_(float(self._divisors[longest]))
        shape = (model.images, groups, self.banks, self.width)
        self.totals = torch.zeros(shape, device=device)
        self.done = torch.zeros(shape[:2], dtype=torch.bool, device=device)
        shelf = (model.images, groups, self.width)
        self.shelf_scores = torch.zeros(shelf, device=device)
        self.shelf_words = torch.zeros((*shelf, longest), dtype=torch.long, device=device)
        self.shelf_log_probs = torch.zeros((*shelf, longest), device=device)

    def begin(self) -> None:
        """See `Search.begin`."""
        super().begin()
        # All captions begin alike: one of them, in the first bank, stands for all.
        self.totals.fill_(-math.inf)
        self.totals[:, :, 0, 0] = 0.0
        self.done.zero_()
        self.shelf_scores.fill_(-math.inf)
        self.shelf_words.fill_(self.boundary)
        self.shelf_log_probs.zero_()

    def advance(self) -> None:
        """See `Search.advance`."""
        log_probs = self.next_log_probs().view(*self.totals.shape, -1)  # (B, G, K, W, V)
        if self._no_ends is not None:
            last = self.position == self.longest - 1
            log_probs = log_probs.masked_fill(self._no_ends & last, -math.inf)
        picks: list[_Pick] = []
        for group in range(self.groups):
            cost = self._cost(picks, log_probs)
            picks.append(self._settle(group, self._candidates(group, log_probs[:, group], cost)))
        if len(picks) == 1:
            self._continue(_Pick(*(part.unsqueeze(1) for part in picks[0])))
        else:
            self._continue(_Pick(*(torch.stack(part, 1) for part in zip(*picks, strict=True))))

    def finished(self) -> Tensor:
        """See `Search.finished`."""
        return self.done.all()

    def result(self) -> Written:
        """See `Search.result`. A caption whose score is minus infinity does not exist."""
        for group in range(self.groups):  # what is open still was cut off at T words
            end = (group + 1) * self.banks * self.width
            rows = slice(end - self.width, end)  # the group's last bank
            scores = self.totals[:, group, -1] / self._divisors[self.longest]
            scores = scores.masked_fill(self.done[:, group].unsqueeze(1), -math.inf)
            self._shelve(group, scores, self.words[:, rows], self.word_log_probs[:, rows])
        scores, places = self._distinct_scores().topk(self.best)
        index = places.unsqueeze(2).expand(-1, -1, self.longest)
        return Written.of(
            self.shelf_words.flatten(1, 2).gather(1, index),
            self.shelf_log_probs.flatten(1, 2).gather(1, index),
            self.boundary,
            scores,
        )

    def _distinct_scores(self) -> Tensor:
        """(B, G W) the scores on all shelves, minus infinity for what an earlier group has, too."""
        scores, words = self.shelf_scores.flatten(1), self.shelf_words.flatten(1, 2)
        if self.groups == 1:
            return scores
        same = (words.unsqueeze(1) == words.unsqueeze(2)).all(-1)  # (B, G W, G W)
        same = same & ~torch.isneginf(scores).unsqueeze(1)  # an empty place is no empty caption
        return scores.masked_fill(same.tril(-1).any(2), -math.inf)

    def _cost(self, picks: list["_Pick"], log_probs: Tensor) -> Tensor | None:
        """(B, 1, 1, V) what each word costs because earlier groups chose it; None for nothing."""
        if not picks or not self.diversity:
            return None
        cost = log_probs.new_zeros(log_probs.shape[0], log_probs.shape[-1])
        for pick in picks:
            price = torch.where(torch.isneginf(pick.totals), 0.0, self.diversity)
            cost.scatter_add_(1, pick.words.flatten(1), price.flatten(1))
        return cost[:, None, None, :]

    def _candidates(self, group: int, log_probs: Tensor, cost: Tensor | None) -> "_Candidates":
        """The best continuations in each bank of a group, the best first.

        The best of all are among the best of each caption, and many short rows are searched faster
        than few long ones.

        Args:
            group: Which.
            log_probs: (B, K, W, V) of each caption's next word.
            cost: (B, 1, 1, V) or None.
        """
        totals = self.totals[:, group].unsqueeze(-1)  # (B, K, W, 1)
        banks, width, vocabulary = log_probs.shape[1:]
        count = min(2 * width, width * vocabulary)
        ranked = log_probs if cost is None else log_probs - cost
        climb = None
        if banks > 1:
            ranked, climb = self._part(group, ranked)
        values, words = _best(ranked, min(count, vocabulary))
        values = (values + totals).flatten(2)
        own = torch.arange(banks * width, device=words.device).view(banks, width, 1)
        parents = own.expand_as(words).flatten(2)
        words = words.flatten(2)
        if climb is not None:  # from bank k to bank k + 1, and nothing to the first
            more = (climb + totals).flatten(2)[:, :-1]
            values = torch.cat((values, F.pad(more, (0, 0, 1, 0), value=-math.inf)), 2)
            below = (own - width).clamp(min=0).expand(-1, -1, climb.shape[3]).flatten(1)
            parents = torch.cat((parents, below.expand(len(words), -1, -1)), 2)
            gained = self.rules.required.repeat(width).expand(*words.shape[:2], -1)
            words = torch.cat((words, gained), 2)
        values, order = values.topk(count, dim=2)
        parents, words = parents.gather(2, order), words.gather(2, order)
        places = (parents * vocabulary + words).flatten(1)
        chosen = log_probs.flatten(1).gather(1, places).view_as(words)
        ranks = values
        if cost is not None:  # it decides what is chosen, not what that is worth
            worth = self.totals[:, group].flatten(1).gather(1, parents.flatten(1)).view_as(words)
            values = (worth + chosen).masked_fill(torch.isneginf(ranks), -math.inf)
        return _Candidates(parents, words, values, chosen, ranks)

    def _part(self, group: int, ranked: Tensor) -> tuple[Tensor, Tensor]:
        """Tells words that stay in a bank, (B, K, W, V), from those that leave it, (B, K, W, C)."""
        size, required = self.banks * self.width, self.rules.required
        met = self.rules.met(self.words[:, group * size : (group + 1) * size])
        met = met.view(*ranked.shape[:3], -1)
        values = ranked.index_select(3, required)
        stay = ranked.index_copy(3, required, values.masked_fill(~met, -math.inf))
        return stay, values.masked_fill(met, -math.inf)

    def _settle(self, group: int, candidates: "_Candidates") -> "_Pick":
        """Shelves the captions of a group that end and picks those that go on."""
        parents, words, totals, chosen, ranks = candidates
        ends = words == self.boundary
        # Only captions of the last bank may end; only the W best of the candidates are taken.
        first = slice(None, self.width)
        scores = self._divided(totals[:, -1, first], self._divisors)
        closed = ~ends[:, -1, first] | self.done[:, group].unsqueeze(1)
        index = parents[:, -1, first].unsqueeze(2)
        if group:
            index = index + group * self.banks * self.width
        index = index.expand(-1, -1, self.longest)
        spent = self.word_log_probs.gather(1, index)
        spent.index_copy_(2, self.position.unsqueeze(0), chosen[:, -1, first].unsqueeze(2))
        scores = scores.masked_fill(closed, -math.inf)
        self._shelve(group, scores, self.words.gather(1, index), spent)

        ranks, order = ranks.masked_fill(ends, -math.inf).topk(self.width, dim=2)
        if candidates.ranks is not candidates.totals:
            ranks = totals.gather(2, order).masked_fill(torch.isneginf(ranks), -math.inf)
        totals = ranks
        highest = totals.amax((1, 2))
        worst = self.shelf_scores[:, group].amin(1)
        full = ~torch.isneginf(worst)
        if self.early_stopping:  # but captions that are cut off now may still be better
            full = full & (self.position + 1 < self.longest)
        else:
            full = full & (worst >= self._divided(highest, self._patience))
        self.done[:, group] |= full | torch.isneginf(highest)
        return _Pick(
            parents.gather(2, order), words.gather(2, order), totals, chosen.gather(2, order)
        )

    def _divided(self, totals: Tensor, divisors: Tensor) -> Tensor:
        """The scores of captions that have one more word than there were."""
        if not self.length_penalty:
            return totals
        return totals / divisors.index_select(0, (self.position + 1).unsqueeze(0))

    def _shelve(self, group: int, scores: Tensor, words: Tensor, log_probs: Tensor) -> None:
        """Keeps the W best of a group's shelf and of more captions, (B, W) and (B, W, T)."""
        scores, places = torch.cat((self.shelf_scores[:, group], scores), 1).topk(self.width)
        self.shelf_scores[:, group] = scores
        index = places.unsqueeze(2).expand(-1, -1, self.longest)
        for shelf, more in ((self.shelf_words, words), (self.shelf_log_probs, log_probs)):
            shelf[:, group] = torch.cat((shelf[:, group], more), 1).gather(1, index)

    def _continue(self, pick: "_Pick") -> None:
        """Goes on with the captions picked, (B, G, K, W) each."""
        size = self.banks * self.width
        parents = pick.parents
        if self.groups > 1:
            offsets = torch.arange(0, self.rows, size, device=parents.device)
            parents = parents + offsets[:, None, None]
        parents = parents.flatten(1)  # (B, R)
        index = parents.unsqueeze(2).expand(-1, -1, self.longest)
        self.words.copy_(self.words.gather(1, index))
        self.word_log_probs.copy_(self.word_log_probs.gather(1, index))
        self.totals.copy_(pick.totals)
        self.model.reorder(parents)
        self.write(pick.words.flatten(1), pick.log_probs.flatten(1))


def _best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """At least the `count` highest of V values and their places: (B, K, W, V) to (B, K, W, ...).

    On a GPU, a few long rows would keep a few of its processors busy only; so they are cut up.
    """
    vocabulary = values.shape[3]
    pieces = 1
    if values.is_cuda and values.numel() <= _FEW * vocabulary:
        pieces = max(part for part in range(1, 17) if vocabulary % part == 0)
    if vocabulary // pieces < count:
        pieces = 1
    highest, places = values.reshape(*values.shape[:3], pieces, -1).topk(count, dim=4)
    if pieces > 1:
        starts = torch.arange(0, vocabulary, vocabulary // pieces, device=values.device)
        places = places + starts[:, None]
    return highest.flatten(3), places.flatten(3)


class _Candidates(NamedTuple):
    """Continuations, (B, K, Q) each, the best first."""

    parents: Tensor
    """Among the K W captions of the group."""

    words: Tensor

    totals: Tensor
    """Log-probabilities of the captions; minus infinity for what is none."""

    log_probs: Tensor
    """Of the words alone."""

    ranks: Tensor
    """What they are ranked by: the totals less what diversity costs."""


class _Pick(NamedTuple):
    """What goes on, (B, K, W) each; the fields are those of `_Candidates`."""

    parents: Tensor
    words: Tensor
    totals: Tensor
    log_probs: Tensor
