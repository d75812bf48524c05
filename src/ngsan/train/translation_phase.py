"""The loss of translation, and its phase: cross-entropy with smoothed labels.

Shapes: `B` pairs, `S` words of a source, `T` words of a target, `M` places, `V` vocabulary.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from ngsan.config import PhaseConfig
from ngsan.config.phases import CROSS_ENTROPY
from ngsan.config.translation import TranslationPhase
from ngsan.data.parallel.batch import PairTable, TranslationBatch
from ngsan.data.parallel.batches import TokenBatches
from ngsan.models.translator import Translator
from ngsan.nn.losses import word_cross_entropy_sum
from ngsan.nn.packing import Packing
from ngsan.train.step import Inputs


class WordLoss(nn.Module):
    """`word_cross_entropy_sum` as a module, which can be compiled."""

    def __init__(self, label_smoothing: float) -> None:
        """Takes the share of the probability that is spread over the vocabulary."""
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, targets: Tensor, real: Tensor) -> Tensor:
        """The sum over the real ones of (M,) targets, whose logits are (M, V)."""
        return word_cross_entropy_sum(logits, targets, real, label_smoothing=self.label_smoothing)


class TranslationLoss(nn.Module):
    """The model that is trained, and its loss on given translations."""

    def __init__(
        self,
        translator: Translator,
        *,
        label_smoothing: float = 0.0,
        capacities: Mapping[int, int] | None = None,
    ) -> None:
        """Takes the model.

        Args:
            translator: The model.
            label_smoothing: Share of the probability spread over the vocabulary.
            capacities: Most real targets of a batch by its width T, so that shapes do not depend
                on values; None to count them, which waits for a device.
        """
        super().__init__()
        self.translator = translator
        self.score = WordLoss(label_smoothing)
        self.capacities = None if capacities is None else dict(capacities)

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        words: Tensor,
        targets: Tensor,
        target_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch; arguments as in `TranslationBatch`.

        Returns:
            The sum over the real targets, and their number.
        """
        capacity = None if self.capacities is None else self.capacities[words.shape[1]]
        packing = Packing.of(target_mask, capacity)
        logits = self.translator(source, source_mask, words, packing=packing)  # (M, V)
        chosen = targets.flatten().index_select(0, packing.places)
        return self.score(logits, chosen, packing.real), packing.real.sum()


class CrossEntropyOfPairs:
    """The only phase."""

    name = CROSS_ENTROPY
    uses_writer = False
    unit = "tokens"

    def __init__(
        self,
        module: TranslationLoss,
        config: TranslationPhase,
        batches: TokenBatches,
        table: PairTable,
    ) -> None:
        """Takes the parts.

        Args:
            module: The model and its loss.
            config: The phase.
            batches: Which pairs come when.
            table: The pairs.
        """
        self.module: nn.Module = module
        layers = (module.translator.encoder.layers, module.translator.decoder.layers)
        # A model of twelve layers takes the compiler a minute for each of the batches' shapes.
        self.parts: Sequence[nn.Module] = [*chain(*layers), module.score]
        self.config: PhaseConfig = config
        self._batches, self._table = batches, table
        self.steps = len(batches)
        self._done = np.zeros(self.steps + 1, np.int64)

    def batches(self, epoch: int, position: int) -> Iterator[TranslationBatch]:
        """See `Phase.batches`."""
        self._done[1:] = np.cumsum(self._batches.targets(epoch))
        for share in self._batches.epoch(epoch, position):
            yield self._table.batch(share.indices, share.width)

    def done(self, position: int) -> int:
        """See `Phase.done`: real target words, of the epoch whose batches were asked for last."""
        return int(self._done[position])

    def prepare(self, batch: TranslationBatch, step: int) -> tuple[Inputs, Tensor]:
        """See `Phase.prepare`."""
        inputs = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return inputs, torch.zeros(0, dtype=torch.double, device=batch.words.device)

    def numbers(self, sums: Sequence[float]) -> dict[str, float]:
        """See `Phase.numbers`."""
        total, count = sums
        return {"loss": total / max(1.0, count)}
