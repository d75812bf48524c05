"""Greedy search and sampling: every caption goes its own way, word by word.

Shapes: `B` images, `S` samples an image, `T` most words, `V` vocabulary.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ngsan.decoding.constraints import Constraints
from ngsan.decoding.protocol import StepModel
from ngsan.decoding.randomness import uniforms
from ngsan.decoding.result import Written
from ngsan.decoding.search import Search

_FREE = Constraints()

_BLOCK = 128
"""Words whose probabilities are summed together, so that most of them are looked at only once."""

_SIDE_BY_SIDE = 32
"""Most samples of an image at a time; see `ngsan.nn.cache` for why many side by side cost more."""


class _Walk(Search):
    """Captions that never meet: each chooses its next word for itself."""

    def __init__(self, model: StepModel, *, rows: int, **settings: Any) -> None:
        """Takes what `Search` takes."""
        super().__init__(model, rows=rows, **settings)
        self.ended = torch.zeros(model.images, rows, dtype=torch.bool, device=model.device)

    def begin(self) -> None:
        """See `Search.begin`."""
        super().begin()
        self.ended.zero_()

    def advance(self) -> None:
        """See `Search.advance`."""
        log_probs = self.next_log_probs()
        words = self.choose(log_probs).masked_fill(self.ended, self.boundary)
        # Where nothing is allowed, minus infinity makes the whole caption worthless.
        chosen = log_probs.gather(2, words.unsqueeze(2)).squeeze(2).masked_fill(self.ended, 0.0)
        self.write(words, chosen)
        self.ended |= words == self.boundary

    @abstractmethod
    def choose(self, log_probs: Tensor) -> Tensor:
        """Chooses the next words: (B, R, V) to (B, R)."""

    def finished(self) -> Tensor:
        """See `Search.finished`."""
        return self.ended.all()

    def result(self) -> Written:
        """See `Search.result`."""
        return Written.of(self.words, self.word_log_probs, self.boundary)


class Greedy(_Walk):
    """The most probable word after each other; of equals, the one with the lowest id."""

    def __init__(
        self,
        model: StepModel,
        *,
        longest: int = 20,
        boundary: int = 0,
        constraints: Constraints = _FREE,
    ) -> None:
        """Takes the model; the arguments are those of `Search`."""
        super().__init__(model, rows=1, longest=longest, boundary=boundary, constraints=constraints)

    def choose(self, log_probs: Tensor) -> Tensor:
        """See above."""
        return log_probs.argmax(-1)


class Sampling(_Walk):
    """Words drawn by their probability.

    Every number drawn belongs to (seed, key of the image, sample, position), so a caption depends
    on nothing else in the batch.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        samples: int = 1,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        keys: Tensor | Sequence[int] | None = None,
        longest: int = 20,
        boundary: int = 0,
        constraints: Constraints = _FREE,
        look: bool = True,
    ) -> None:
        """Takes the model and how to draw.

        Args:
            model: The model with its images.
            samples: S, captions an image.
            temperature: Divides the log-probabilities: above 1 flattens them, below sharpens.
            top_k: Draw among so many most probable words; 0 for all.
            top_p: Draw among the fewest most probable words that hold this share, in (0, 1].
            seed: Of the random numbers.
            keys: (B,) an integer for each image; None for 0, 1, 2, ...
            longest: T.
            boundary: The id that begins and ends a caption.
            constraints: Conditions on captions.
            look: See `Search`.
        """
        if samples < 1:
            raise ValueError(f"samples: {samples} must be at least 1")
        super().__init__(
            model,
            rows=min(samples, _SIDE_BY_SIDE),
            longest=longest,
            boundary=boundary,
            constraints=constraints,
            look=look,
        )
        self.samples = samples
        if not temperature > 0 or math.isinf(temperature):
            raise ValueError(f"temperature: {temperature} must be above 0; greedy is its limit")
        if top_k < 0:
            raise ValueError(f"top_k: {top_k} must be at least 0")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p: {top_p} must be above 0 and at most 1")
        self.temperature, self.top_p = temperature, top_p
        self.top_k = top_k if top_k < model.vocab_size else 0
        device = model.device
        self._samples = torch.arange(self.rows, device=device)
        self._seed = torch.zeros((), dtype=torch.long, device=device)
        self._keys = torch.zeros(model.images, 1, dtype=torch.long, device=device)
        self.reseed(seed, keys)

    def reseed(self, seed: int, keys: Tensor | Sequence[int] | None = None) -> None:
        """Makes the next run draw other numbers; the arguments are those of the beginning."""
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed: {seed} does not fit into 64 bits")
        if keys is None:
            keys = torch.arange(self.model.images)
        keys = torch.as_tensor(keys, dtype=torch.long)
        if keys.shape != (self.model.images,):
            raise ValueError(f"keys: {tuple(keys.shape)} for {self.model.images} images")
        with torch.inference_mode():
            self._seed.fill_(seed)
            self._keys.copy_(keys.unsqueeze(1))

    def run(self) -> Written:
        """See `Search.run`; many samples are written some at a time."""
        parts = []
        for first in range(0, self.samples, self.rows):
            with torch.inference_mode():
                # On the device: a copy from the host would wait for all that it has to do.
                torch.arange(first, first + self.rows, out=self._samples)
            parts.append(super().run())
        words = torch.cat([part.words for part in parts], 1)[:, : self.samples]
        log_probs = torch.cat([part.word_log_probs for part in parts], 1)[:, : self.samples]
        return Written.of(words, log_probs, self.boundary)

    def choose(self, log_probs: Tensor) -> Tensor:
        """Draws the next words: (B, R, V) to (B, R)."""
        # The best word becomes 0, so that no temperature makes it overflow or vanish.
        kept = log_probs - log_probs.amax(-1, keepdim=True).clamp(min=-1e30)
        if self.temperature != 1:
            kept = kept / self.temperature
        drawn = uniforms(self._seed, self._keys, self._samples, self.position)
        words = draw(self._truncate(kept).exp(), drawn)
        # Where nothing is allowed the search ends up past the last word.
        return words.clamp(max=log_probs.shape[-1] - 1)

    def _truncate(self, log_probs: Tensor) -> Tensor:
        if self.top_k:
            values, places = log_probs.topk(self.top_k, dim=-1)
            log_probs = torch.full_like(log_probs, -math.inf).scatter(-1, places, values)
        if self.top_p < 1:
            ranked, places = log_probs.sort(dim=-1, descending=True, stable=True)
            shares = ranked.softmax(-1)
            before = shares.cumsum(-1) - shares  # the most probable word always stays
            ranked = ranked.masked_fill(before >= self.top_p, -math.inf)
            log_probs = torch.full_like(log_probs, -math.inf).scatter(-1, places, ranked)
        return log_probs


def draw(masses: Tensor, drawn: Tensor) -> Tensor:
    """Draws words by their probability mass: the first whose cumulated mass exceeds a number.

    First a block of words is found and then a word in it, as cumulating all of a vocabulary takes
    longer than all else about a draw. A word without mass is never drawn.

    Args:
        masses: (..., V) of at least 0; they need not sum to one.
        drawn: (...) numbers in [0, 1).

    Returns:
        (...) words; V or above where there is no mass at all.
    """
    blocks = F.pad(masses, (0, -masses.shape[-1] % _BLOCK))
    blocks = blocks.view(*masses.shape[:-1], blocks.shape[-1] // _BLOCK, _BLOCK)
    ends = blocks.sum(-1).cumsum(-1)  # (..., blocks)
    number = _below(drawn.unsqueeze(-1) * ends[..., -1:], ends[..., -1:])
    block = torch.searchsorted(ends, number, right=True).clamp(max=ends.shape[-1] - 1)
    start = F.pad(ends, (1, 0)).gather(-1, block)
    inside = blocks.gather(-2, block.unsqueeze(-1).expand(*block.shape, _BLOCK)).squeeze(-2)
    cumulated = inside.cumsum(-1)
    rest = _below((number - start).clamp(min=0), cumulated[..., -1:])
    word = block * _BLOCK + torch.searchsorted(cumulated, rest, right=True)
    return word.squeeze(-1)


def _below(number: Tensor, bound: Tensor) -> Tensor:
    """A number that is below the bound, also after rounding."""
    return torch.minimum(number, torch.nextafter(bound, torch.zeros_like(bound)))
