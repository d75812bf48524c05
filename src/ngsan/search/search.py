"""What all searches share: what they need of a model, the loop, and what they return.

A search keeps its state in arrays whose shapes never change, and writes them in place. With torch,
a step never waits for the device, so it can be captured as a CUDA graph and replayed; whether all
captions have ended is looked at every few steps only, or never.

Evidence says how much more or less than the model something else expects each word, such as an
object detector: it is added to the log-probabilities when continuations are ranked, once for every
word of a caption, however often that occurs. It decides what is written, never what that is worth.

Shapes: `B` images, `R` captions an image that are written side by side, `M` captions returned,
`T` max_length, `V` vocabulary.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ngsan.search.constraints import Constraints, Rules
from ngsan.search.numpy_ops import Array, NumpyOps
from ngsan.text.vocabulary import BOUNDARY

if TYPE_CHECKING:
    from ngsan.search.torch_ops import TorchOps

_MAX_WORDS = 1_000_000
"""Words of an image's captions beyond which a search is surely a mistake."""


class StepModel(Protocol):
    """A model that writes captions word by word for the B images it holds.

    Its arrays are NumPy's or torch's. With torch, it remembers words in buffers whose shapes do not
    change from step to step, and never waits for the device.
    """

    @property
    def images(self) -> int:
        """B."""

    @property
    def vocab_size(self) -> int:
        """V."""

    @property
    def device(self) -> Any:
        """The `torch.device` of words and logits; None if they are NumPy arrays."""

    def start(self, rows: int, max_length: int) -> None:
        """Forgets all words and begins `rows` captions of at most `max_length` words an image.

        Called again with the same numbers it uses the same buffers.
        """

    def step(self, words: Array, parents: Array | None) -> Array:
        """Appends one word to each caption and scores the word after it.

        Args:
            words: (B, R); at the first step the boundary, which begins every caption.
            parents: (B, R) from 0 to R - 1, which of the captions so far each word continues; None
                if each continues itself.

        Returns:
            (B, R, V) logits, which the search does not change.
        """


class Ensemble:
    """The mean of the word probabilities of several models, as a model of its own."""

    def __init__(self, models: Sequence[StepModel]) -> None:
        """Checks that the models, at least one, hold the same images and know the same words."""
        if not models:
            raise ValueError("an ensemble has at least one model")
        self.models = tuple(models)
        first = self.models[0]
        self.images, self.vocab_size, self.device = first.images, first.vocab_size, first.device
        self._ops = ops_for(self.device)
        for model in self.models:
            if model.vocab_size != self.vocab_size:
                raise ValueError(
                    "the models of an ensemble must share a vocabulary; these have "
                    f"{self.vocab_size} and {model.vocab_size} words"
                )
            if model.images != self.images or model.device != self.device:
                raise ValueError(
                    f"the models hold {self.images} images on {self.device} and {model.images} "
                    f"on {model.device}; they must hold the same"
                )

    def start(self, rows: int, max_length: int) -> None:
        """See `StepModel.start`."""
        for model in self.models:
            model.start(rows, max_length)

    def step(self, words: Array, parents: Array | None) -> Array:
        """See `StepModel.step`; the logits are log-probabilities."""
        total: Array = None
        for model in self.models:
            log_probs = self._ops.log_softmax(model.step(words, parents))
            total = log_probs if total is None else self._ops.logaddexp(total, log_probs)
        return total - math.log(len(self.models))


@dataclass(frozen=True)
class Written:
    """The captions that a search has written, the best first or in the order of sampling."""

    words: Array
    """(B, M, T) word ids; after its end a caption is filled with the boundary."""

    lengths: Array
    """(B, M) words before the boundary."""

    ended: Array
    """(B, M) boolean, False = cut off at T words."""

    word_log_probs: Array
    """(B, M, T) the model's log-probability of each word and of the end, 0 after that. Temperature,
    evidence and constraints decide what is written, never what it is worth."""

    log_probs: Array
    """(B, M) their sum."""

    scores: Array
    """(B, M) what the captions were ranked by, with the evidence. Minus infinity: no such
    caption."""

    @classmethod
    def of(cls, words: Array, word_log_probs: Array, scores: Array | None = None) -> "Written":
        """Computes the rest from words and log-probabilities; these are the scores by default."""
        lengths = (words != BOUNDARY).cumprod(-1).sum(-1)
        totals = word_log_probs.sum(-1)
        return cls(
            words=words,
            lengths=lengths,
            ended=lengths < words.shape[-1],
            word_log_probs=word_log_probs,
            log_probs=totals,
            scores=totals if scores is None else scores,
        )

    def to(self, device: Any) -> "Written":
        """Tensors on another device."""
        return Written(*(getattr(self, field.name).to(device) for field in fields(self)))

    def check(self) -> "Written":
        """Returns these captions; raises a `ValueError` if an image has none.

        It waits for the device.
        """
        total = len(self.scores)
        odd = _places((self.scores != self.scores).any(-1))
        if odd:
            raise ValueError(
                f"NaN in the scores of {len(odd)} of {total} images (the first is number {odd[0]})"
                "; check the features for NaN or inf"
            )
        lost = _places((self.scores == -math.inf).all(-1))
        if lost:
            raise ValueError(
                f"no caption was found that meets the constraints for {len(lost)} of {total} "
                f"images (the first is number {lost[0]}); loosen them, allow more words or widen "
                "the beam"
            )
        return self


def _places(flags: Array) -> list[int]:
    return [place for place, flag in enumerate(flags.tolist()) if flag]


def check_words(captions: int, max_length: int) -> None:
    """Rejects more words for an image than memory and time suffice for."""
    if captions * max_length > _MAX_WORDS:
        raise ValueError(
            f"{captions} captions of {max_length} words for each image are more than "
            f"{_MAX_WORDS:,} words: lower max_length, the beam, or the number of samples or of "
            "required words"
        )


class Search(ABC):
    """Words so far, their log-probabilities, and the loop."""

    def __init__(
        self,
        steps: StepModel,
        *,
        rows: int,
        max_length: int,
        constraints: Constraints,
        evidence: NDArray[np.floating[Any]] | None = None,
        look: bool = True,
    ) -> None:
        """Allocates the state.

        Args:
            steps: The model with its images.
            rows: R.
            max_length: T, most words of a caption.
            constraints: Conditions on captions.
            evidence: (B, V) finite, added to the log-probabilities in ranking; None for none. That
                of the boundary is ignored.
            look: Whether to look every few steps if all captions have ended. That waits for the
                device, and of very many captions there is always one that has not.
        """
        if max_length < 1:
            raise ValueError(f"max_length: {max_length} must be at least 1 word")
        if rows < 1:
            raise ValueError(f"{rows} captions an image: there must be at least 1")
        check_words(rows, max_length)
        self.steps, self.rows, self.max_length, self._look = steps, rows, max_length, look
        self.ops = ops = ops_for(steps.device)
        self.rules = Rules(constraints, ops, vocab_size=steps.vocab_size, max_length=max_length)
        shape = (steps.images, rows, max_length)
        self.position = ops.full((), 0)
        self.latest = ops.full(shape[:2], BOUNDARY)
        self.parents: Array = None
        self.words = ops.full(shape, BOUNDARY)
        self.word_log_probs = ops.full(shape, 0.0)
        self.evidence: Array = None
        if evidence is not None:
            self.evidence = ops.full((steps.images, steps.vocab_size), 0.0)
            self.see(evidence)
        self.nan_trace = ops.full(shape[:2], 0.0)  # NaN once a caption had NaN probabilities
        self._block_size = min(ops.steps_between_looks, max_length)
        self._block = ops.capture(self._advance_by, self._warm_up)

    def see(self, evidence: NDArray[np.floating[Any]]) -> None:
        """Replaces the evidence, (B, V), of a search that was built with some."""
        shape = tuple(self.evidence.shape)
        if evidence.shape != shape:
            raise ValueError(f"evidence of shape {evidence.shape} must be (images, words): {shape}")
        if not np.isfinite(evidence).all():
            raise ValueError("evidence must be finite; to exclude a word, forbid it")
        with self.ops.session():
            self.evidence[...] = self.ops.array(evidence, float)

    def run(self) -> Written:
        """Writes captions for the images that the model holds now."""
        with self.ops.session():
            if self.steps.images:
                if self._block is not None:
                    self._block.prepare()
                self.begin()
                for left in range(self.max_length, 0, -self._block_size):
                    if self._block is None or left < self._block_size:
                        self._advance_by(min(left, self._block_size))
                    else:
                        self._block()
                    if self._look and left > self._block_size and bool(self.finished()):
                        break
            found = self.result()
            odd = (self.nan_trace != self.nan_trace).any(-1)
            found = replace(found, scores=self.ops.where(odd[:, None], math.nan, found.scores))
            return Written(*(self.ops.copy(getattr(found, field.name)) for field in fields(found)))

    def _advance_by(self, steps: int | None = None) -> None:
        for _ in range(self._block_size if steps is None else steps):
            self.advance()

    def _warm_up(self) -> None:
        self.begin()
        self.advance()
        self.begin()

    def begin(self) -> None:
        """Resets the state to no words at all."""
        self.steps.start(self.rows, self.max_length)
        self.position[...] = 0
        self.latest[...] = BOUNDARY
        self.words[...] = BOUNDARY
        self.word_log_probs[...] = 0.0
        self.nan_trace[...] = 0.0

    @abstractmethod
    def advance(self) -> None:
        """Writes one more word of every caption, in place and without waiting for the device."""

    @abstractmethod
    def finished(self) -> Array:
        """() boolean: whether more words would change nothing."""

    @abstractmethod
    def result(self) -> Written:
        """The captions; they may share memory with the state."""

    def next_log_probs(self) -> Array:
        """(B, R, V) the model's log-probabilities of the next word, minus infinity if forbidden.

        The probability of forbidden words is not spread over the others.
        """
        log_probs = self.ops.log_softmax(self.steps.step(self.latest, self.parents))
        self.nan_trace += log_probs[..., 0]  # one NaN makes all of them NaN
        return self.rules.apply(log_probs, self.words, self.position)

    def ranked(self, log_probs: Array) -> Array:
        """(B, R, V) what the next words are ranked by: log-probabilities and new evidence."""
        if self.evidence is None:
            return log_probs
        gain = self.evidence[:, None] + self.ops.full((1, self.rows, 1), 0.0)
        self.ops.fill_at(gain, self.words, 0.0)  # also the boundary, which fills every caption
        return log_probs + gain

    def write(self, words: Array, log_probs: Array) -> None:
        """Appends a word, (B, R), and its log-probability to every caption."""
        self.ops.put(self.words, self.position, words)
        self.ops.put(self.word_log_probs, self.position, log_probs)
        self.latest[...] = words
        self.position += 1


def ops_for(device: Any) -> "NumpyOps | TorchOps":
    """The array operations of a device; None for NumPy's."""
    if device is None:
        return NumpyOps()
    from ngsan.search.torch_ops import TorchOps

    return TorchOps(device)
