"""The phase of learning what people answered: binary cross-entropy over all answers.

Shapes: `B` questions, `N` regions, `T` words, `A` answers.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ngsan.config import PhaseConfig
from ngsan.config.answering import AnswerPhaseConfig
from ngsan.config.phases import ANSWERING
from ngsan.data.question_set import QuestionBatch
from ngsan.data.resident_questions import HeldQuestions
from ngsan.models.answerer import Answerer
from ngsan.train.phases import Shuffle
from ngsan.train.step import Inputs


class AnswerLoss(nn.Module):
    """The model that is trained, and its loss on what people answered."""

    def __init__(self, answerer: Answerer) -> None:
        """Takes the model."""
        super().__init__()
        self.answerer = answerer

    def forward(
        self,
        words: Tensor,
        word_mask: Tensor,
        features: Tensor | None,
        boxes: Tensor | None,
        mask: Tensor | None,
        targets: Tensor,
        real: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch; arguments as in `QuestionBatch`.

        Returns:
            The sum over the real questions and over all answers, and the number of questions.
        """
        logits = self.answerer(words, word_mask, features, boxes, mask).float()
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
        return losses.masked_fill(~real, 0.0).sum(), real.sum()


class AnsweringPhase:
    """Learning what people answered."""

    name = ANSWERING
    uses_writer = False
    unit = "questions"

    def __init__(
        self,
        answerer: Answerer,
        config: AnswerPhaseConfig,
        held: HeldQuestions,
        count: int,
        shuffle: Shuffle,
        device: torch.device,
        *,
        static: bool,
    ) -> None:
        """Takes the parts.

        Args:
            answerer: The model.
            config: The phase.
            held: What it learns from.
            count: How many questions that are.
            shuffle: In what order.
            device: Where batches are wanted.
            static: Whether all batches have one shape.
        """
        self.config: PhaseConfig = config
        self.module: nn.Module = AnswerLoss(answerer)
        self.parts: Sequence[nn.Module] = [self.module]
        self.steps = math.ceil(count / config.batch_size)
        self._held, self._count, self._shuffle, self._device = held, count, shuffle, device
        self._size = -(-config.batch_size // shuffle.world_size) if static else None

    def batches(self, epoch: int, position: int) -> Iterator[QuestionBatch]:
        """See `Phase.batches`."""
        for draw in self._shuffle.sampler(self._count, self.config.batch_size, epoch, position):
            yield self._held.batch(draw.indices, size=self._size)

    def done(self, position: int) -> int:
        """See `Phase.done`."""
        return min(self._count, position * self.config.batch_size)

    def prepare(self, batch: QuestionBatch, step: int) -> tuple[Inputs, Tensor]:
        """See `Phase.prepare`."""
        sums = torch.zeros(0, dtype=torch.double, device=self._device)
        batch = batch.to(self._device, non_blocking=True)
        inputs = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return inputs, sums

    def numbers(self, sums: Sequence[float]) -> dict[str, float]:
        """See `Phase.numbers`."""
        total, count = sums
        return {"loss": total / max(1.0, count)}
