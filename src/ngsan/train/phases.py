"""The two phases of learning captions.

Shapes: `B` images.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ngsan.config import CrossEntropyConfig, PhaseConfig, SelfCriticalConfig
from ngsan.config.phases import CROSS_ENTROPY, SELF_CRITICAL
from ngsan.data.batch import CaptionBatch
from ngsan.data.sampler import BatchSampler, SamplerState
from ngsan.models.captioner import Captioner
from ngsan.train.cross_entropy import CrossEntropyLoss
from ngsan.train.feed import Feed
from ngsan.train.self_critical import SelfCritical, SelfCriticalLoss
from ngsan.train.step import Inputs

GREEDY_STEPS = 50
"""Steps from one reward of greedy captions to the next, if the baseline does not need it."""


@dataclass(frozen=True)
class Shuffle:
    """The order of the images, and this process's share of it."""

    seed: int
    rank: int = 0
    world_size: int = 1

    def sampler(
        self, images: int, batch_size: int, epoch: int = 0, position: int = 0
    ) -> BatchSampler:
        """The batches of an epoch from a position on."""
        return BatchSampler.from_state(
            SamplerState(self.seed, epoch, position),
            images,
            batch_size,
            rank=self.rank,
            world_size=self.world_size,
            empty_shares=True,
        )


class ImagePhase:
    """What the phases of learning captions of images share."""

    unit = "images"
    module: nn.Module

    def __init__(self, config: PhaseConfig, feed: Feed, shuffle: Shuffle) -> None:
        """Takes the parts.

        Args:
            config: The phase.
            feed: What it learns from.
            shuffle: In what order.
        """
        self.config, self.feed, self._shuffle = config, feed, shuffle
        self.steps = math.ceil(len(feed.dataset) / config.batch_size)

    @property
    def parts(self) -> Sequence[nn.Module]:
        """See `Phase.parts`."""
        return [self.module]

    def batches(self, epoch: int, position: int) -> Iterator[tuple[CaptionBatch, Tensor]]:
        """See `Phase.batches`; with each batch the places of its images in the dataset, (B,)."""
        images, size = len(self.feed.dataset), self.config.batch_size
        return self.feed.batches(self._shuffle.sampler(images, size, epoch, position))

    def done(self, position: int) -> int:
        """See `Phase.done`."""
        return min(len(self.feed.dataset), position * self.config.batch_size)


class CrossEntropyPhase(ImagePhase):
    """Learning what people said."""

    name = CROSS_ENTROPY
    uses_writer = False

    def __init__(
        self,
        captioner: Captioner,
        config: CrossEntropyConfig,
        feed: Feed,
        shuffle: Shuffle,
        *,
        capacity: int | None,
    ) -> None:
        """Takes the parts.

        Args:
            captioner: The model.
            config: The phase.
            feed: What it learns from.
            shuffle: In what order.
            capacity: See `CrossEntropyLoss`.
        """
        super().__init__(config, feed, shuffle)
        self.module = CrossEntropyLoss(
            captioner, label_smoothing=config.label_smoothing, capacity=capacity
        )

    def prepare(self, batch: tuple[CaptionBatch, Tensor], step: int) -> tuple[Inputs, Tensor]:
        """See `Phase.prepare`."""
        given, _ = batch
        inputs = {
            "features": given.features,
            "boxes": given.boxes,
            "mask": None if self.feed.full else given.mask,
            "words": given.words,
            "targets": given.targets,
            "target_mask": given.target_mask,
        }
        return inputs, torch.zeros(0, dtype=torch.double, device=given.words.device)

    def numbers(self, sums: Sequence[float]) -> dict[str, float]:
        """See `Phase.numbers`."""
        total, count = sums
        return {"loss": total / max(1.0, count)}


class SelfCriticalPhase(ImagePhase):
    """Learning to be rewarded."""

    name = SELF_CRITICAL
    uses_writer = True

    def __init__(
        self,
        captioner: Captioner,
        config: SelfCriticalConfig,
        feed: Feed,
        shuffle: Shuffle,
        method: SelfCritical,
        *,
        static: bool,
    ) -> None:
        """Takes the parts.

        Args:
            captioner: The model.
            config: The phase.
            feed: What it learns from.
            shuffle: In what order.
            method: What samples and rewards.
            static: See `SelfCriticalLoss`.
        """
        super().__init__(config, feed, shuffle)
        self.module = SelfCriticalLoss(captioner, method, static=static)
        self._method = method

    def prepare(self, batch: tuple[CaptionBatch, Tensor], step: int) -> tuple[Inputs, Tensor]:
        """See `Phase.prepare`; now and then greedy captions are rewarded, too."""
        given, places = batch
        greedy = step % GREEDY_STEPS == 0
        sampled = self._method.prepare(given, places, step, greedy=greedy)
        real = given.caption_mask.any(1)  # images without references have no reward
        inputs = {
            "features": given.features,
            "boxes": given.boxes,
            "mask": None if self.feed.full else given.mask,
            "words": sampled.words,
            "targets": sampled.targets,
            "target_mask": sampled.target_mask & real[:, None, None],
            "advantages": sampled.advantages.masked_fill(~real.unsqueeze(1), 0.0),
        }
        zero = torch.zeros((), device=real.device)
        found = sampled.greedy_rewards
        sums = (
            sampled.rewards.masked_fill(~real.unsqueeze(1), 0.0).sum(),
            sampled.lengths.masked_fill(~real.unsqueeze(1), 0).sum(),
            real.sum() * self._method.samples,
            zero if found is None else found.masked_fill(~real, 0.0).sum(),
            zero if found is None else real.sum(),
        )
        return inputs, torch.stack([part.double() for part in sums])

    def numbers(self, sums: Sequence[float]) -> dict[str, float]:
        """See `Phase.numbers`."""
        total, count, entropy, reward, length, captions, greedy, images = sums
        numbers = {
            "loss": total / max(1.0, count),
            "reward": reward / max(1.0, captions),
            "length": length / max(1.0, captions),
            "entropy": entropy / max(1.0, count),
        }
        return numbers | ({"greedy_reward": greedy / images} if images else {})
