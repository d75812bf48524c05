"""The order in which images are seen: seeded, resumable, shared by several processes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

POOL = 64
"""Batches whose images are sorted together when lengths are grouped."""


def random_keys(count: int, *seeds: int) -> NDArray[np.uint64]:
    """`count` random numbers to sort by; the seeds alone decide them.

    They are the raw output of a bit generator, which numpy promises never to change, unlike that
    of `shuffle` and `permutation`: an order outlives an upgrade.

    Args:
        count: How many.
        *seeds: Integers of at least 0.
    """
    return np.random.PCG64(np.random.SeedSequence(seeds)).random_raw(count)


@dataclass(frozen=True)
class SamplerState:
    """Where a run stands: all that a checkpoint needs to keep of the data's order.

    Attributes:
        seed: Seed of the order.
        epoch: The pass over the data, from 0.
        position: Batches of this pass that are done.
    """

    seed: int
    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        """Checks the values; raises a `ValueError` that names the bad one."""
        for name in ("seed", "epoch", "position"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be an integer of at least 0, not {value!r}")


@dataclass(frozen=True)
class Draw:
    """A batch to be made.

    Attributes:
        indices: Positions in the dataset.
        epoch: The pass that it belongs to; it turns the wheel of captions.
    """

    indices: NDArray[np.int64]
    epoch: int


class BatchSampler:
    """Batches of indices.

    The order of an epoch depends on seed and epoch only. Iterating goes from the present position
    to the end of the epoch and does not move the position, because a loader's workers draw ahead
    of the training; `advance` moves it when a batch is done:

        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
        while sampler.state().epoch < epochs:
            for batch in loader:
                step(batch)
                sampler.advance()  # sampler.state() is now what a checkpoint needs

    Several processes cut the same batches: process r takes images r, r + world_size, ... of each,
    so together they see what one process sees. Resuming with another number of processes is fine.
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
        """Makes the sampler.

        Args:
            size: Images in the dataset.
            batch_size: Images in a batch, those of all processes together.
            seed: Seed of the order.
            shuffle: Whether the order is random. If not, it is that of the dataset.
            drop_last: Whether a last, smaller batch is left out.
            lengths: Of each image, such as its number of regions: batches are then made of images
                of similar length, which saves padding. Needs `shuffle`.
            rank: This process, from 0.
            world_size: Number of processes.
            empty_shares: Whether processes may get no image of a batch that is too small for all
                of them, rather than that such batches are refused.
        """
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
        """The sampler that goes on with the batch after the last one done.

        Args:
            state: What `state` gave.
            size: As it was.
            batch_size: As it was.
            **options: Those of the constructor, as they were; `rank` and `world_size` may change.
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
            raise ValueError("lengths are grouped in a random order only: shuffle must be true")
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
        """Batches in a whole epoch."""
        full, rest = divmod(self.size, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Draw]:
        """The batches of this process from the present position to the end of the epoch."""
        return self._draws(self._state)

    def _draws(self, state: SamplerState) -> Iterator[Draw]:
        order = self.order(state.epoch)
        for position in range(state.position, len(self)):
            batch = order[position * self.batch_size : (position + 1) * self.batch_size]
            yield Draw(batch[self.rank :: self.world_size], state.epoch)

    def advance(self) -> None:
        """Takes note that the batch at the present position is done."""
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
        # What fills no batch stays as it fell and comes last, so no length is dropped more often.
        grouped, rest = np.split(order, [full * self.batch_size])
        for start in range(0, len(grouped), POOL * self.batch_size):
            pool = grouped[start : start + POOL * self.batch_size]
            pool[:] = pool[np.argsort(self._lengths[pool], kind="stable")]
        batches = grouped.reshape(full, self.batch_size)
        shuffled = np.argsort(random_keys(full, self._state.seed, epoch, 1), kind="stable")
        return np.concatenate((batches[shuffled].ravel(), rest))
