"""Masks of real elements, True = real, and batches packed to the real words.

Nearly half of the places in a batch of captions are padding. Whatever a decoder does to each word
alone (projections, feed-forward networks, norms, scores over the vocabulary) is done on packed
words; only attention, in which words meet, unpacks them.

Shapes: `B` images, `N` regions, `C` channels; `P` places in a batch, `M` packed words, `D` model
width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MAX_REAL_SHARE = 0.75
"""Share of real places up to which `Packing.saves_much`."""


def check_mask(mask: Tensor | None, elements: Tensor) -> None:
    """Raises a `ValueError` unless `mask` is boolean and matches the first axes of `elements`.

    Only shapes and types are read, so it never synchronises with a device.

    Args:
        mask: (B, N) boolean, True = real, or None when all elements are real.
        elements: (B, N, ...) the masked elements.
    """
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean with True = real, not {mask.dtype}")
    if mask.shape != elements.shape[:2]:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not match elements of shape "
            f"{tuple(elements.shape)}: expected {tuple(elements.shape[:2])}"
        )


def zero_padding(elements: Tensor, mask: Tensor | None) -> Tensor:
    """Sets padded elements to zero, also NaN and infinity.

    Args:
        elements: (B, N, C).
        mask: (B, N) boolean, True = real, or None.
    """
    return elements if mask is None else elements.masked_fill(~mask.unsqueeze(-1), 0.0)


@dataclass(frozen=True)
class Packing:
    """Maps the real places of a batch to packed words and back.

    The real places of each caption come first, so causal attention from a real place never sees
    padding.
    """

    places: Tensor
    """(M,) places in the flattened batch; 0 for spare rows."""
    real: Tensor
    """(M,) boolean, True = a real place, False = a spare row."""
    slots: Tensor
    """(P,) packed row of each place in the batch; 0 for padding."""
    mask: Tensor
    """(..., T) boolean, True = a real place."""

    @classmethod
    def of(cls, mask: Tensor, capacity: int | None = None) -> "Packing":
        """Packs the real places of a mask.

        Args:
            mask: (..., T) boolean, True = real: the first words of each caption, or none.
            capacity: M, at least 1 and the number of real places. With it, shapes do not depend on
                values, so the host does not wait for the device. None: the number of real places.
        """
        flat = mask.flatten()
        if capacity is None:
            capacity = max(1, int(flat.sum()))
        rank = flat.cumsum(0)
        slots = torch.where(flat, rank - 1, 0)
        found = torch.zeros(capacity + 1, dtype=torch.long, device=mask.device)
        numbers = torch.arange(flat.numel(), device=mask.device)
        # Padding goes to an extra row.
        found.scatter_(0, torch.where(flat, slots, capacity), numbers)
        real = torch.arange(capacity, device=mask.device) < rank[-1]
        return cls(torch.where(real, found[:-1], 0), real, slots, mask)

    @property
    def captions(self) -> int:
        """Number of captions, including empty ones."""
        return self.mask.shape[:-1].numel()

    @property
    def saves_much(self) -> bool:
        """Whether packing is faster although every attention unpacks; depends on shapes only."""
        return len(self.places) <= _MAX_REAL_SHARE * self.mask.numel()

    def pack(self, x: Tensor) -> Tensor:
        """(..., D) of P places to (M, D); spare rows get no gradient."""
        moved: Tensor = _Moved.apply(  # type: ignore[no-untyped-call]
            x.reshape(-1, x.shape[-1]), self.places, self.slots, self.mask.flatten()
        )
        return moved

    def spread(self, x: Tensor, rows: int) -> Tensor:
        """(M, D) to (rows, P / rows, D); the values at padding are arbitrary."""
        moved: Tensor = _Moved.apply(  # type: ignore[no-untyped-call]
            x, self.slots, self.places, self.real
        )
        return moved.view(rows, -1, x.shape[-1])


class _Moved(torch.autograd.Function):
    """Selects rows by index, with the inverse index known for the backward pass.

    Otherwise the gradient would be a scatter-add, which is slow and not deterministic.
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
