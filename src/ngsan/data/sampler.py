"""The order of training images: seeded, resumable, shared by several processes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

POOL = 64
"""Number of batches whose images are sorted together when lengths are grouped."""


def random_keys(count: int, *seeds: int) -> NDArray[np.uint64]:
    """`count` random numbers to sort by; the seeds alone decide them.

    They are the raw output of a bit generator, which NumPy promises never to change, unlike that
    of `shuffle` and `permutation`.
    """
    return np.random.PCG64(np.random.SeedSequence(seeds)).random_raw(count)


@dataclass(frozen=True)
class SamplerState:
    """The position in the data, for checkpoints.

    Attributes:
        seed: Seed of the order.
        epoch: The pass over the data, from 0.
        position: Completed batches of this pass.
    """

    seed: int
    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "position"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be an integer of at least 0, not {value!r}")


@dataclass(frozen=True)
class Draw:
    """A batch to load.

    Attributes:
        indices: Positions in the dataset.
        epoch: Its pass over the data, which decides whose turn among the captions it is.
    """

    indices: NDArray[np.int64]
    epoch: int


class BatchSampler:
    """Batches of indices.

    The order of an epoch depends only on seed and epoch. Iterating starts at the current position
    and does not move it, because a loader's workers draw ahead of the training; `advance` moves it
    when a batch is done:

        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
        while sampler.state().epoch < epochs:
            for batch in loader:
                step(batch)
                sampler.advance()  # sampler.state() is now what a checkpoint needs

    Process r gets images r, r + world_size, ... of each batch. A run may be resumed with another
    number of processes.

    Args:
        size: Images in the dataset.
        batch_size: Images in a batch of all processes.
        seed: Seed of the order.
        shuffle: Whether the order is random.
        drop_last: Whether to drop a last, smaller batch.
        lengths: Of each image, such as its number of regions; batches then hold images of similar
            length, which saves padding. Needs `shuffle`.
        rank: This process, from 0.
        world_size: Number of processes.
        empty_shares: Whether a process may get no image of a small batch, which is an error
            otherwise.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        lengths: Sequence[int] | NDArray[Any] | None = None,
        rank: int = 0,
        world_size: int = 1,
        empty_shares: bool = False,
    ) -> None:
        self._empty_shares = empty_shares
        self.size, self.batch_size = size, batch_size
        self.shuffle, self.drop_last = shuffle, drop_last
        self.rank, self.world_size = rank, world_size
        self._lengths = None if lengths is None else np.asarray(lengths)
        self._check()
        self._state = SamplerState(seed)

    @classmethod
    def from_state(
        cls, state: SamplerState, size: int, batch_size: int, **options: Any
    ) -> "BatchSampler":
        """Resumes after the last completed batch.

        Size, batch size and options must be those of before, except `rank` and `world_size`.
        """
        sampler = cls(size, batch_size, seed=state.seed, **options)
        if state.position >= len(sampler):
            raise ValueError(
                f"position {state.position} does not exist in an epoch of {len(sampler)} batches: "
                f"the state is not that of {size} images in batches of {batch_size}"
            )
        sampler._state = state
        return sampler

    def _check(self) -> None:
        if self.size < 1 or self.batch_size < 1:
            raise ValueError(f"cannot draw batches of {self.batch_size} from {self.size} images")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not one of {self.world_size} processes")
        if self._lengths is not None and self._lengths.shape != (self.size,):
            raise ValueError(f"lengths of {self._lengths.shape} do not fit {self.size} images")
        if self._lengths is not None and not self.shuffle:
            raise ValueError("lengths need a random order: shuffle must be true")
        if self.drop_last and self.size < self.batch_size:
            raise ValueError(
                f"{self.size} images do not fill a batch of {self.batch_size} and drop_last leaves "
                "none: make batch_size smaller"
            )
        rest = 0 if self.drop_last else self.size % self.batch_size
        too_small = self.batch_size < self.world_size or 0 < rest < self.world_size
        if too_small and not self._empty_shares:
            raise ValueError(
                f"{self.world_size} processes cannot share a batch of "
                f"{min(self.batch_size, rest or self.batch_size)} images ({self.size} images in "
                f"batches of {self.batch_size}): change batch_size or set drop_last"
            )

    def state(self) -> SamplerState:
        """Seed, epoch and position, the same in every process."""
        return self._state

    def __len__(self) -> int:
        """Batches per epoch."""
        full, rest = divmod(self.size, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Draw]:
        """The batches of this process from the current position to the end of the epoch."""
        return self._draws(self._state)

    def _draws(self, state: SamplerState) -> Iterator[Draw]:
        order = self.order(state.epoch)
        for position in range(state.position, len(self)):
            batch = order[position * self.batch_size : (position + 1) * self.batch_size]
            yield Draw(batch[self.rank :: self.world_size], state.epoch)

    def advance(self) -> None:
        """Marks the batch at the current position as done."""
        seed, epoch, position = self._state.seed, self._state.epoch, self._state.position + 1
        last = position == len(self)
        self._state = SamplerState(seed, epoch + last, 0 if last else position)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """All images in the order of an epoch; consecutive ones make a batch."""
        if not self.shuffle:
            return np.arange(self.size)
        order = np.argsort(random_keys(self.size, self._state.seed, epoch), kind="stable")
        if self._lengths is None:
            return order
        full = self.size // self.batch_size
        # The rest comes last, unsorted, so that no length is dropped more often.
        grouped, rest = np.split(order, [full * self.batch_size])
        for start in range(0, len(grouped), POOL * self.batch_size):
            pool = grouped[start : start + POOL * self.batch_size]
            pool[:] = pool[np.argsort(self._lengths[pool], kind="stable")]
        batches = grouped.reshape(full, self.batch_size)
        shuffled = np.argsort(random_keys(full, self._state.seed, epoch, 1), kind="stable")
        return np.concatenate((batches[shuffled].ravel(), rest))
