"""A batch of sentences and their translations, cut where the word pieces lie.

Shapes: `B` pairs, `S` words of a source, `T` words of a target, boundaries included.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.data.parallel.dataset import SIDES, ParallelSplit
from ngsan.text.vocabulary import BOUNDARY


@dataclass(frozen=True)
class TranslationBatch:
    """Sentences and their translations.

    Attributes:
        source: (B, S) word ids, the boundary after the last; the boundary also pads.
        source_mask: (B, S) boolean, True = a word or its sentence's boundary.
        words: (B, T) what the decoder is given: the boundary, then the target's words.
        targets: (B, T) what it is to say: the target's words, then the boundary.
        target_mask: (B, T) boolean, True = a real target.
    """

    source: Tensor
    source_mask: Tensor
    words: Tensor
    targets: Tensor
    target_mask: Tensor

    def __len__(self) -> int:
        """B."""
        return len(self.source)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TranslationBatch":
        """The batch on a device."""
        parts = (getattr(self, field.name) for field in fields(self))
        return TranslationBatch(*(part.to(device, non_blocking=non_blocking) for part in parts))


class PairTable:
    """The word pieces of a split, in the memory of a device or mapped from the disk."""

    def __init__(
        self, split: ParallelSplit, device: torch.device | str = "cpu", *, resident: bool = True
    ) -> None:
        """Takes the split.

        Args:
            split: The split.
            device: Where batches are wanted.
            resident: Whether all word pieces are held there; otherwise they are read from the
                disk batch by batch.
        """
        self.device = torch.device(device)
        self._place = self.device if resident else torch.device("cpu")
        self._ids = {side: torch.from_numpy(split.ids[side]).to(self._place) for side in SIDES}
        self._offsets = {
            side: torch.from_numpy(split.offsets[side]).to(self._place) for side in SIDES
        }

    def batch(self, indices: NDArray[np.int64], width: int) -> TranslationBatch:
        """Some pairs as a batch.

        Args:
            indices: (B,) pairs; -1 for none, whose row is padding alone.
            width: S and T.
        """
        rows = torch.from_numpy(np.ascontiguousarray(indices))
        if self._place.type == "cuda":
            rows = rows.pin_memory().to(self._place, non_blocking=True)
        source, source_mask = self._sentences("source", rows, width)
        targets, target_mask = self._sentences("target", rows, width)
        words = torch.nn.functional.pad(targets[:, :-1], (1, 0), value=BOUNDARY)
        batch = TranslationBatch(source, source_mask, words, targets, target_mask)
        if self._place == self.device:
            return batch
        return batch.to(self.device, non_blocking=True)

    def _sentences(self, side: str, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """(B, width) ids with the boundary after each sentence, and where they are real."""
        ids, offsets = self._ids[side], self._offsets[side]
        real = rows >= 0
        known = rows.clamp(min=0)
        start = offsets[known].unsqueeze(1)
        length = (offsets[known + 1].unsqueeze(1) - start).masked_fill(~real.unsqueeze(1), -1)
        places = torch.arange(width, device=self._place)
        inside = places < length
        if not ids.numel():  # all sentences are empty
            found = torch.full(inside.shape, BOUNDARY, device=self._place)
        else:
            found = ids[torch.where(inside, start + places, 0)].long()
            found = found.masked_fill(~inside, BOUNDARY)
        return found, places <= length
