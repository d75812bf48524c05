"""Batches of sentence pairs with about equally many words, in few fixed shapes.

Pairs are put into buckets by their longer side. A batch takes `rows` pairs of one bucket, padded to
`width` words on both sides. There are few buckets, so that a compiled and captured step serves many
batches; their widths minimise the padding. Pairs that do not fill a batch of their bucket go to the
next wider one, so only the last batch of an epoch is not full.

Shapes: `B` pairs, `S` words of a source, `T` words of a target, boundaries included.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.data.parallel.dataset import SIDES, ParallelSplit
from ngsan.data.sampler import random_keys
from ngsan.text.vocabulary import BOUNDARY

_ALIGNED = 8
"""Larger numbers of rows are a multiple of this, so that processes share them evenly."""


@dataclass(frozen=True)
class Shape:
    """The shape of the batches of a bucket: pairs of all processes, and words of either side."""

    rows: int
    width: int


@dataclass(frozen=True)
class Share:
    """One process's part of a batch: (rows,) pairs, -1 for padding, and words of either side."""

    indices: NDArray[np.int64]
    width: int


class TokenBatches:
    """Batches of pairs.

    The order of an epoch depends only on seed and epoch. Process r gets pairs r, r + world_size,
    ... of each batch. Every pair occurs once per epoch, and all epochs have equally many batches.

    Args:
        source_lengths: (n,) words of each source sentence, boundary included.
        target_lengths: (n,) words of each target sentence, boundary included.
        tokens: Maximum words of a side in a batch of all processes, padding included.
        shapes: Maximum number of shapes.
        multiple: Widths are multiples of this.
        seed: Seed of the order.
        rank: This process, from 0.
        world_size: Number of processes.

    Attributes:
        shapes: The shapes of batches, the narrowest first.
        padding: Share of padding among the target words of all batches.
    """

    def __init__(
        self,
        source_lengths: NDArray[np.integer],
        target_lengths: NDArray[np.integer],
        tokens: int,
        *,
        shapes: int = 8,
        multiple: int = 4,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} processes")
        if shapes < 1 or multiple < 1:
            raise ValueError(f"{shapes} shapes of multiples of {multiple}: both are at least 1")
        lengths = np.maximum(source_lengths, target_lengths).astype(np.int64)
        if not len(lengths):
            raise ValueError("no pairs to make batches of")
        if tokens < int(lengths.max()):
            raise ValueError(
                f"tokens: a batch of {tokens} words cannot hold the longest sentence, of "
                f"{int(lengths.max())}: raise it, or prepare the data with a lower max_length"
            )
        self.seed, self.rank, self.world_size = seed, rank, world_size
        widths = _best_widths(-(-lengths // multiple) * multiple, shapes)
        # Rounding up must not make the widest too wide for a batch.
        widths[-1] = min(int(widths[-1]), tokens)
        self.shapes = tuple(Shape(_rows(tokens, int(width)), int(width)) for width in widths)
        self._bucket = np.searchsorted(widths, lengths)
        self._targets = np.asarray(target_lengths, np.int64)
        plan = self._plan(0)
        self._count = len(plan)
        words = sum(shape.rows * shape.width for shape, _ in plan)
        self.padding = 1 - int(self._targets.sum()) / words

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._count

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Share]:
        """This process's shares of the batches of an epoch.

        Args:
            epoch: The pass over the data, from 0.
            start: Number of batches to skip.
        """
        for shape, members in self._shuffled(epoch)[start:]:
            mine = members[self.rank :: self.world_size]
            rows = -(-shape.rows // self.world_size)
            yield Share(np.pad(mine, (0, rows - len(mine)), constant_values=-1), shape.width)

    def targets(self, epoch: int) -> NDArray[np.int64]:
        """(batches,) real target words in each batch of an epoch, of all processes together."""
        return np.array([self._targets[members].sum() for _, members in self._shuffled(epoch)])

    def max_targets(self, epochs: int) -> dict[int, int]:
        """Maximum of real target words of a batch in some epochs, by its width."""
        most = {shape.width: 0 for shape in self.shapes}
        for epoch in range(epochs):
            for shape, members in self._plan(epoch):
                count = int(self._targets[members].sum())
                most[shape.width] = max(most[shape.width], count)
        return most

    def _shuffled(self, epoch: int) -> list[tuple[Shape, NDArray[np.int64]]]:
        """The batches of an epoch in their order."""
        plan = self._plan(epoch)
        order = np.argsort(random_keys(len(plan), self.seed, epoch, 1), kind="stable")
        return [plan[place] for place in order]

    def _plan(self, epoch: int) -> list[tuple[Shape, NDArray[np.int64]]]:
        """The batches of an epoch, bucket by bucket."""
        shuffled = np.argsort(random_keys(len(self._bucket), self.seed, epoch), kind="stable")
        members = shuffled[np.argsort(self._bucket[shuffled], kind="stable")]
        ends = np.cumsum(np.bincount(self._bucket, minlength=len(self.shapes)))
        batches = []
        left = members[:0]
        for shape, bucket in zip(self.shapes, np.split(members, ends[:-1]), strict=True):
            # Narrower pairs go first, so that the rest is a random choice of the widest.
            bucket = np.concatenate((left, bucket))
            full = len(bucket) - len(bucket) % shape.rows
            batches += [(shape, part) for part in bucket[:full].reshape(-1, shape.rows)]
            left = bucket[full:]
        if len(left):
            batches.append((self.shapes[-1], left))
        return batches


def _rows(tokens: int, width: int) -> int:
    rows = tokens // width
    return rows - rows % _ALIGNED if rows >= _ALIGNED else rows


def _best_widths(lengths: NDArray[np.int64], shapes: int) -> NDArray[np.int64]:
    """Up to `shapes` of the lengths that need the least padding if all are padded to them.

    Dynamic programming: `cost[k, j]` is the least sum of padded lengths of the j shortest distinct
    lengths in k buckets, and the last of these begins at `begins[k, j]`.
    """
    values, counts = np.unique(lengths, return_counts=True)
    total = np.concatenate(([0], np.cumsum(counts)))
    count = len(values)
    shapes = min(shapes, count)
    cost = np.full((shapes + 1, count + 1), np.inf)
    cost[0, 0] = 0.0
    begins = np.zeros((shapes + 1, count + 1), np.int64)
    for k in range(1, shapes + 1):
        for j in range(k, count + 1):
            tried = cost[k - 1, :j] + (total[j] - total[:j]) * values[j - 1]
            begins[k, j] = int(tried.argmin())
            cost[k, j] = tried[begins[k, j]]
    chosen = []
    j = count
    for k in range(shapes, 0, -1):
        chosen.append(values[j - 1])
        j = begins[k, j]
    return np.array(chosen[::-1], np.int64)


@dataclass(frozen=True)
class TranslationBatch:
    """Sentences and their translations.

    Attributes:
        source: (B, S) word ids, the boundary after the last; the boundary also pads.
        source_mask: (B, S) boolean, True = a word or its sentence's boundary.
        words: (B, T) input of the decoder: the boundary, then the target's words.
        targets: (B, T) the target's words, then the boundary.
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
    """Makes batches of the subwords of a split.

    Args:
        split: The split.
        device: The device of the batches.
        resident: Whether all subwords are held on the device; otherwise they are read from the
            disk batch by batch.
    """

    def __init__(
        self, split: ParallelSplit, device: torch.device | str = "cpu", *, resident: bool = True
    ) -> None:
        self.device = torch.device(device)
        self._place = self.device if resident else torch.device("cpu")
        self._ids, self._offsets = (
            {side: torch.from_numpy(arrays[side]).to(self._place) for side in SIDES}
            for arrays in (split.ids, split.offsets)
        )

    def batch(self, indices: NDArray[np.int64], width: int) -> TranslationBatch:
        """Some pairs as a batch.

        Args:
            indices: (B,) pairs; -1 for a row of padding.
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
        """(B, width) ids with the boundary after each sentence, and a mask of real ones."""
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
