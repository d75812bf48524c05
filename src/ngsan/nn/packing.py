"""The real words of a batch side by side, so that no work is done on padding.

Nearly half of the places in a batch of captions are padding. What a decoder does to each word by
itself (projections, feed-forward networks, norms, scores over the vocabulary) is done to packed
words; attention, in which words meet, spreads them out again.

Shapes: `P` places in a batch, `M` packed words, `D` model width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MOST_REAL = 0.75
"""Share of the places up to which real words are few enough for `Packing.saves_much`."""


@dataclass(frozen=True)
class Packing:
    """Which places of a batch are real, and where each is when they stand side by side.

    Real places are the first of each caption: a causal attention sees nothing else from them.
    """

    places: Tensor
    """(M,) positions in the flattened batch; 0 where there are no more."""

    real: Tensor
    """(M,) boolean, True = such a place."""

    slots: Tensor
    """(P,) where each place of the batch is packed; 0 for padding."""

    mask: Tensor
    """(..., T) boolean, True = a real place."""

    @classmethod
    def of(cls, mask: Tensor, capacity: int | None = None) -> "Packing":
        """Finds the places.

        Args:
            mask: (..., T) boolean, True = real: the first words of each caption, or none.
            capacity: M, at least as many as are real, and one; with it, shapes do not depend on
                values and the device is not waited for. None for just as many.
        """
        flat = mask.flatten()
        if capacity is None:
            capacity = max(1, int(flat.sum()))
        rank = flat.cumsum(0)
        slots = torch.where(flat, rank - 1, 0)
        found = torch.zeros(capacity + 1, dtype=torch.long, device=mask.device)
        numbers = torch.arange(flat.numel(), device=mask.device)
        # What is not real goes to a spare place.
        found.scatter_(0, torch.where(flat, slots, capacity), numbers)
        real = torch.arange(capacity, device=mask.device) < rank[-1]
        return cls(torch.where(real, found[:-1], 0), real, slots, mask)

    @property
    def captions(self) -> int:
        """How many captions there are, empty ones included."""
        return self.mask.shape[:-1].numel()

    @property
    def saves_much(self) -> bool:
        """Whether it pays to spread words out for every attention; shapes alone decide."""
        return len(self.places) <= _MOST_REAL * self.mask.numel()

    def pack(self, x: Tensor) -> Tensor:
        """(..., D) of P places to (M, D); what is in spare rows does not matter to any gradient."""
        moved: Tensor = _Moved.apply(  # type: ignore[no-untyped-call]
            x.reshape(-1, x.shape[-1]), self.places, self.slots, self.mask.flatten()
        )
        return moved

    def spread(self, x: Tensor, rows: int) -> Tensor:
        """(M, D) to (rows, P / rows, D); what stands in padding is no number to be relied on."""
        moved: Tensor = _Moved.apply(  # type: ignore[no-untyped-call]
            x, self.slots, self.places, self.real
        )
        return moved.view(rows, -1, x.shape[-1])


class _Moved(torch.autograd.Function):
    """Rows by their numbers, where it is known which numbers lead back.

    Without that knowledge the gradient adds up rows one by one, in an order that is not fixed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor, known: Tensor) -> Tensor:
        ctx.save_for_backward(back, known)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        back, known = ctx.saved_tensors
        moved = gradients[0].index_select(0, back)
        return moved.masked_fill(~known.unsqueeze(-1), 0.0), None, None, None
