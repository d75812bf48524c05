"""Batches of about equally many words, in few fixed shapes.

Pairs are put into buckets by their longer side, and a batch takes pairs of one bucket: `rows` pairs
padded to `width` words on both sides. There are few buckets, so that a step which is compiled and
captured for a shape serves very many batches. Their widths are chosen such that the padding of
the whole data is least. What does not fill a batch of its bucket goes up to the next wider one,
so that only the last batch of an epoch is not full.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngsan.data.sampler import random_keys

_ALIGNED = 8
"""Rows of a batch are a multiple of this if they are as many: processes share them evenly."""


@dataclass(frozen=True)
class Shape:
    """The shape of the batches of a bucket."""

    rows: int
    """Pairs, of all processes together."""

    width: int
    """Words of either side, boundary included."""


@dataclass(frozen=True)
class Share:
    """One process's part of a batch."""

    indices: NDArray[np.int64]
    """(rows,) pairs; -1 for no pair, which fills the shape."""

    width: int
    """Words of either side, boundary included."""


class TokenBatches:
    """Batches of pairs.

    The order of an epoch depends on seed and epoch only, the batches on neither rank nor number of
    processes: process r takes pairs r, r + world_size, ... of each. Every pair occurs once in an
    epoch, and all epochs have equally many batches.

    Attributes:
        shapes: The shapes of batches, the narrowest first.
        padding: Share of the target words of all batches that are none.
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
        """Chooses the shapes.

        Args:
            source_lengths: (n,) words of each source sentence, boundary included.
            target_lengths: (n,) words of each target sentence, boundary included.
            tokens: Most words of a side in a batch of all processes together, padding included.
            shapes: Most shapes.
            multiple: Widths are multiples of this.
            seed: Seed of the order.
            rank: This process, from 0.
            world_size: Number of processes.

        Raises:
            ValueError: There is no pair, or one that does not fit into a batch.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} processes")
        if shapes < 1 or multiple < 1:
            raise ValueError(f"{shapes} shapes of multiples of {multiple}: both are at least 1")
        longest = np.maximum(source_lengths, target_lengths).astype(np.int64)
        if not len(longest):
            raise ValueError("there are no pairs to make batches of")
        if tokens < int(longest.max()):
            raise ValueError(
                f"tokens: a batch of {tokens} words cannot hold the longest sentence, of "
                f"{int(longest.max())}: raise it, or leave out longer pairs when preparing the data"
            )
        self.seed, self.rank, self.world_size = seed, rank, world_size
        rounded = -(-longest // multiple) * multiple
        widths = _best_widths(rounded, shapes)
        # Rounding up must not make the widest too wide for a batch.
        widths[-1] = min(int(widths[-1]), tokens)
        self.shapes = tuple(Shape(_rows(tokens, int(width)), int(width)) for width in widths)
        self._bucket = np.searchsorted(widths, longest)
        self._targets = np.asarray(target_lengths, np.int64)
        plan = self._plan(0)
        self._count = len(plan)
        words = sum(shape.rows * shape.width for shape, _ in plan)
        self.padding = 1 - int(self._targets.sum()) / words

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self._count

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Share]:
        """This process's shares of the batches of an epoch, from a place on.

        Args:
            epoch: The pass over the data, from 0.
            start: Batches of the pass that are done.
        """
        for shape, members in self._shuffled(epoch)[start:]:
            mine = members[self.rank :: self.world_size]
            rows = -(-shape.rows // self.world_size)
            filled = np.pad(mine, (0, rows - len(mine)), constant_values=-1)
            yield Share(filled, shape.width)

    def targets(self, epoch: int) -> NDArray[np.int64]:
        """(batches,) real target words in each batch of an epoch, of all processes together."""
        return np.array([self._targets[members].sum() for _, members in self._shuffled(epoch)])

    def most_targets(self, epochs: int) -> dict[int, int]:
        """Most real target words of a batch in some epochs, by its width."""
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
            # Those that have come up go first: what is left over is random among the widest.
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
    """At most so many of the lengths to which all are padded with the least padding.

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
