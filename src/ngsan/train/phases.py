"""The two phases of training, as the loop sees them.

Shapes: `B` images.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ngsan.config import CrossEntropyConfig, PhaseConfig, SelfCriticalConfig
from ngsan.data.batch import CaptionBatch
from ngsan.models.captioner import Captioner
from ngsan.train.cross_entropy import CrossEntropyLoss
from ngsan.train.feed import Feed
from ngsan.train.self_critical import SelfCritical, SelfCriticalLoss
from ngsan.train.step import Inputs

GREEDY_STEPS = 50
"""Steps from one reward of greedy captions to the next, if the baseline does not need it."""

CROSS_ENTROPY = "cross-entropy"
SELF_CRITICAL = "self-critical"


class Phase(Protocol):
    """What the loop needs to know of a phase."""

    name: str
    config: PhaseConfig
    feed: Feed
    """What it learns from."""

    module: nn.Module
    """What is trained: its result is summed over the batch, see `Step`."""

    uses_writer: bool
    """Whether the writer's weights must be those of the moment in every step."""

    def prepare(self, batch: CaptionBatch, places: Tensor, step: int) -> tuple[Inputs, Tensor]:
        """What the module takes of a batch, and further sums to be reported, (k,).

        Args:
            batch: The batch.
            places: (B,) of its images in the dataset.
            step: Steps of the run that are done.
        """

    def numbers(self, sums: Sequence[float]) -> dict[str, float]:
        """What sums of the module, followed by those of `prepare`, say."""


class CrossEntropyPhase:
    """Learning what people said."""

    name = CROSS_ENTROPY
    uses_writer = False

    def __init__(
        self,
        captioner: Captioner,
        config: CrossEntropyConfig,
        feed: Feed,
        *,
        capacity: int | None,
    ) -> None:
        """Takes the parts.

        Args:
            captioner: The model.
            config: The phase.
            feed: What it learns from.
            capacity: See `CrossEntropyLoss`.
        """
        self.config: PhaseConfig = config
        self.module: nn.Module = CrossEntropyLoss(
            captioner, label_smoothing=config.label_smoothing, capacity=capacity
        )
        self.feed = feed

    def prepare(self, batch: CaptionBatch, places: Tensor, step: int) -> tuple[Inputs, Tensor]:
        """See `Phase.prepare`."""
        inputs = {
            "features": batch.features,
            "boxes": batch.boxes,
            "mask": None if self.feed.full else batch.mask,
            "words": batch.words,
            "targets": batch.targets,
            "target_mask": batch.target_mask,
        }
        return inputs, torch.zeros(0, dtype=torch.double, device=batch.words.device)

    def numbers(self, sums: Sequence[float]) -> dict[str, float]:
        """See `Phase.numbers`."""
        total, count = sums
        return {"loss": total / max(1.0, count)}


class SelfCriticalPhase:
    """Learning to be rewarded."""

    name = SELF_CRITICAL
    uses_writer = True

    def __init__(
        self, captioner: Captioner, config: SelfCriticalConfig, feed: Feed, method: SelfCritical
    ) -> None:
        """Takes the parts.

        Args:
            captioner: The model.
            config: The phase.
            feed: What it learns from.
            method: What samples and rewards.
        """
        self.config: PhaseConfig = config
        self.module: nn.Module = SelfCriticalLoss(captioner, method)
        self.feed, self._method = feed, method

    def prepare(self, batch: CaptionBatch, places: Tensor, step: int) -> tuple[Inputs, Tensor]:
        """See `Phase.prepare`; now and then greedy captions are rewarded, too."""
        greedy = step % GREEDY_STEPS == 0
        sampled = self._method.prepare(batch, places, step, greedy=greedy)
        real = batch.caption_mask.any(1)  # images without references have no reward
        inputs = {
            "features": batch.features,
            "boxes": batch.boxes,
            "mask": None if self.feed.full else batch.mask,
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
