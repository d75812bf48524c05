"""What a search needs of a model. A search never sees a model class.

Shapes: `B` images, `W` captions an image, `V` vocabulary.
"""

from typing import Protocol

import torch
from torch import Tensor


class StepModel(Protocol):
    """A model that writes captions word by word for the B images it holds.

    It remembers the words it was given, in buffers whose shapes do not change from step to step
    and without waiting for the device.
    """

    @property
    def images(self) -> int:
        """B."""

    @property
    def vocab_size(self) -> int:
        """V."""

    @property
    def device(self) -> torch.device:
        """Where words go and logits come from."""

    def start(self, width: int, longest: int) -> None:
        """Forgets all words and begins `width` captions of at most `longest` words an image.

        Called again with the same numbers it uses the same buffers.
        """

    def step(self, words: Tensor) -> Tensor:
        """Takes one more word of each caption and scores the word after it.

        Args:
            words: (B, W); the boundary at the first step.

        Returns:
            (B, W, V) logits.
        """

    def reorder(self, parents: Tensor) -> None:
        """Lets caption w of each image go on from the words of caption `parents[w]`.

        Args:
            parents: (B, W), from 0 to W - 1.
        """
