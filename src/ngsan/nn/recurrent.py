"""What recurrent decoders are made of.

Shapes: `B` images, `N` regions, `W` captions an image, `D` model width.
"""

from abc import abstractmethod

from torch import Tensor, nn

from ngsan.nn.masks import zero_padding

Kept = tuple[Tensor | None, ...]
"""What a cell needs of the regions over and over."""

State = tuple[Tensor, ...]
"""Vectors of a caption's state, (B, W, D) each."""


class Cell(nn.Module):
    """From one word and state to the next, with the regions in view."""

    state_vectors: int
    """How many vectors a state has; they are zero before the first word."""

    @abstractmethod
    def remember(self, memory: Tensor, mask: Tensor | None = None) -> Kept:
        """What is needed of the regions at every word.

        Args:
            memory: (B, N, D) the encoded regions.
            mask: (B, N) boolean, True = a real region, or None.
        """

    @abstractmethod
    def forward(self, word: Tensor, state: State, kept: Kept) -> tuple[Tensor, State]:
        """Takes in one more word of each caption.

        Args:
            word: (B, W, D) its vector.
            state: Before it.
            kept: Of `remember`.

        Returns:
            (B, W, D) what the word after it is told by, and the state.
        """


def mean_region(memory: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the real regions, (B, N, D) to (B, D); zeros if there are none."""
    total = zero_padding(memory, mask).sum(1)
    if mask is None:
        return total / max(1, memory.shape[1])
    return total / mask.sum(1, keepdim=True).clamp(min=1)


def lstm_step(cell: nn.LSTMCell, x: Tensor, hidden: Tensor, memory: Tensor) -> State:
    """A step of an LSTM for every caption: (B, W, ...) and twice (B, W, D) to twice (B, W, D)."""
    shape = hidden.shape
    new = cell(x.flatten(0, 1), (hidden.flatten(0, 1), memory.flatten(0, 1)))
    return new[0].view(shape), new[1].view(shape)
