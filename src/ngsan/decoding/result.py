"""What a search returns.

Shapes: `B` images, `M` captions an image, `T` most words.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Written:
    """The captions that a search has written, the best first or in the order of sampling.

    Attributes:
        words: (B, M, T) word ids; after its end a caption goes on with the boundary.
        lengths: (B, M) words before the boundary.
        ended: (B, M) boolean, False = cut off at T words.
        word_log_probs: (B, M, T) the model's log-probability of each word and of the end, 0 after
            that. Temperature and constraints decide what is written, never what it is worth.
        log_probs: (B, M) their sum.
        scores: (B, M) what the captions were ranked by.
    """

    words: Tensor
    lengths: Tensor
    ended: Tensor
    word_log_probs: Tensor
    log_probs: Tensor
    scores: Tensor

    @classmethod
    def of(
        cls, words: Tensor, word_log_probs: Tensor, boundary: int, scores: Tensor | None = None
    ) -> "Written":
        """Fills in what follows from words and log-probabilities.

        Args:
            words: (B, M, T).
            word_log_probs: (B, M, T).
            boundary: The id that ends a caption.
            scores: (B, M); None for the log-probabilities.
        """
        real = (words != boundary).long().cumprod(-1)
        lengths = real.sum(-1)
        totals = word_log_probs.sum(-1)
        return cls(
            words=words,
            lengths=lengths,
            ended=lengths < words.shape[-1],
            word_log_probs=word_log_probs,
            log_probs=totals,
            scores=totals if scores is None else scores,
        )

    def clone(self) -> "Written":
        """A copy."""
        return Written(*(getattr(self, field.name).clone() for field in fields(self)))

    def to(self, device: torch.device | str) -> "Written":
        """The captions on a device."""
        parts = (getattr(self, field.name).to(device) for field in fields(self))
        return Written(*parts)

    def check(self) -> "Written":
        """Returns these captions; raises a `ValueError` if there is an image without any.

        To look, it waits for the device.
        """
        odd = self.scores.isnan().any(1).nonzero().flatten().tolist()
        if odd:
            raise ValueError(
                f"the model's probabilities for {len(odd)} of {len(self.scores)} images (the first "
                f"is number {odd[0]}) are no numbers; are its features?"
            )
        lost = torch.isneginf(self.scores).all(1).nonzero().flatten().tolist()
        if lost:
            raise ValueError(
                f"no caption was found that meets the constraints for {len(lost)} of "
                f"{len(self.scores)} images (the first is number {lost[0]}); "
                "loosen them, allow more words, widen the beam, or look for inputs that are no "
                "numbers"
            )
        return self
