"""What a search returns.

Shapes: `B` images, `M` captions an image, `T` most words.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngsan.light.caption import Caption
from ngsan.text.vocabulary import BOUNDARY, Vocabulary


@dataclass(frozen=True)
class Written:
    """The captions that a search has written, the best first or in the order of sampling."""

    words: NDArray[np.int64]
    """(B, M, T) word ids; after its end a caption goes on with the boundary."""

    word_log_probs: NDArray[np.float32]
    """(B, M, T) the model's log-probability of each word and of the end, 0 after that."""

    scores: NDArray[np.float32]
    """(B, M) what the captions were ranked by; minus infinity for a caption that does not exist,
    no number where the model's probabilities are none."""

    def check(self) -> None:
        """Raises a `ValueError` if there is an image without any caption."""
        odd = np.flatnonzero(np.isnan(self.scores).any(1))
        if odd.size:
            raise ValueError(
                f"the model's probabilities for {odd.size} of {len(self.scores)} images (the first "
                f"is number {odd[0]}) are no numbers; are its features?"
            )
        lost = np.flatnonzero(np.isneginf(self.scores).all(1))
        if lost.size:
            raise ValueError(
                f"no caption was found that meets the constraints for {lost.size} of "
                f"{len(self.scores)} images (the first is number {lost[0]}); "
                "loosen them, allow more words, widen the beam, or look for inputs that are no "
                "numbers"
            )

    def captions(
        self, vocabulary: Vocabulary, attention: NDArray[np.float32] | None = None
    ) -> list[list[Caption]]:
        """For each image its captions, without those that do not exist.

        Args:
            vocabulary: The model's words.
            attention: (B, M, T, N) of the words, or None.
        """
        lengths = (self.words != BOUNDARY).cumprod(-1).sum(-1)
        totals = self.word_log_probs.sum(-1)
        found: list[list[Caption]] = []
        for image, scores in enumerate(self.scores.tolist()):
            found.append([])
            for rank, score in enumerate(scores):
                if score == -float("inf"):
                    continue  # fewer captions than asked for meet the constraints
                length = int(lengths[image, rank])
                ids = self.words[image, rank, :length].tolist()
                found[-1].append(
                    Caption(
                        text=" ".join(vocabulary.decode(ids)),
                        words=tuple(ids),
                        log_probability=float(totals[image, rank]),
                        word_log_probabilities=tuple(
                            self.word_log_probs[image, rank, : length + 1].tolist()
                        ),
                        score=score,
                        attention=None if attention is None else attention[image, rank, :length],
                    )
                )
        return found
