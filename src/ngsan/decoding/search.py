"""The loop of a search: the same step again and again, captured once on a GPU.

A search keeps all it knows in tensors whose shapes never change and writes them in place. So its
step can be captured as a CUDA graph and replayed: neither Python nor the device waits for the
other. Whether all captions have ended is looked at every few steps only, or never.

Shapes: `B` images, `R` captions an image that are written side by side, `T` most words.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ngsan.capture import Captured
from ngsan.decoding.constraints import Constraints, Rules
from ngsan.decoding.protocol import StepModel
from ngsan.decoding.result import Written

_BETWEEN_LOOKS = 5

_MOST_WORDS = 1_000_000
"""Words of an image's captions beyond which a search is surely a mistake."""


class Search(ABC):
    """What all searches share: words so far, their log-probabilities, and the loop."""

    def __init__(
        self,
        model: StepModel,
        *,
        rows: int,
        longest: int,
        boundary: int,
        constraints: Constraints,
        look: bool = True,
    ) -> None:
        """Allocates the state.

        Args:
            model: The model with its images.
            rows: R.
            longest: T, most words of a caption.
            boundary: The id that begins and ends a caption.
            constraints: Conditions on captions.
            look: Whether to look every few steps if all captions have ended, which waits for the
                device; among very many there is always one that has not.
        """
        if longest < 1:
            raise ValueError(f"longest: {longest} must be at least 1 word")
        if rows < 1:
            raise ValueError(f"{rows} captions an image: there must be at least 1")
        if rows * longest > _MOST_WORDS:
            raise ValueError(
                f"{rows} captions of {longest} words are followed for each image, which is more "
                f"than {_MOST_WORDS:,} words: lower longest, the beam or the number of words that "
                "must occur"
            )
        self._look = look
        self.model, self.rows, self.longest, self.boundary = model, rows, longest, boundary
        self.rules = Rules(
            constraints,
            vocab_size=model.vocab_size,
            longest=longest,
            boundary=boundary,
            device=model.device,
        )
        device, shape = model.device, (model.images, rows, longest)
        self.position = torch.zeros((), dtype=torch.long, device=device)
        self.latest = torch.zeros(shape[:2], dtype=torch.long, device=device)
        self.words = torch.zeros(shape, dtype=torch.long, device=device)
        self.word_log_probs = torch.zeros(shape, device=device)
        self._block = min(_BETWEEN_LOOKS, longest)
        self._steps = Captured(self._several, device, self._warm_up)

    def run(self) -> Written:
        """Writes captions for the images that the model holds now."""
        with torch.inference_mode():
            if self.model.images:
                self._steps.prepare()
                self.begin()
                for left in range(self.longest, 0, -self._block):
                    if left < self._block:
                        self._several(left)
                    else:
                        self._steps()
                    if self._look and left > self._block and bool(self.finished()):
                        break
            found = self.result()
        with torch.inference_mode(mode=False):  # so that a loss may be taken of what was written
            return found.clone()

    def _several(self, steps: int | None = None) -> None:
        for _ in range(self._block if steps is None else steps):
            self.advance()

    def _warm_up(self) -> None:
        self.begin()
        self.advance()
        self.begin()

    def begin(self) -> None:
        """Puts the state back to no words at all."""
        self.model.start(self.rows, self.longest)
        self.position.zero_()
        self.latest.fill_(self.boundary)
        self.words.fill_(self.boundary)
        self.word_log_probs.zero_()

    @abstractmethod
    def advance(self) -> None:
        """Writes one more word of every caption, in place and without waiting for the device."""

    @abstractmethod
    def finished(self) -> Tensor:
        """() boolean: whether more words would change nothing."""

    @abstractmethod
    def result(self) -> Written:
        """The captions."""

    def next_log_probs(self) -> Tensor:
        """(B, R, V) the model's log-probabilities of the next word, minus infinity if forbidden.

        They are not spread anew over the words that are allowed.
        """
        log_probs = self.model.step(self.latest).log_softmax(-1, dtype=torch.float32)
        return self.rules.apply(log_probs, self.words, self.position)

    def write(self, words: Tensor, log_probs: Tensor) -> None:
        """Appends a word, (B, R), and its log-probability to every caption."""
        place = self.position.unsqueeze(0)
        self.words.index_copy_(2, place, words.unsqueeze(2))
        self.word_log_probs.index_copy_(2, place, log_probs.unsqueeze(2))
        self.latest.copy_(words)
        self.position.add_(1)
