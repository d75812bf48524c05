"""The task of translation: cross-entropy with smoothed labels over batches of words.

Shapes: `B` pairs, `S` words of a source, `T` words of a target.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config import PhaseConfig
from ngsan.config.translation import TRANSLATORS, TranslationPhase, TranslationRun
from ngsan.data.parallel.batch import PairTable, TranslationBatch
from ngsan.data.parallel.batches import TokenBatches
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.models.translator import Translator, build_translator
from ngsan.models.translator_folder import load_translator, save_translator
from ngsan.nn.losses import real_places, word_cross_entropy_sum
from ngsan.train.log import Entry
from ngsan.train.machine import half_of, is_compiled
from ngsan.train.phases import CROSS_ENTROPY
from ngsan.train.step import Inputs
from ngsan.train.task import Lesson, Phase
from ngsan.train.translation_validation import TranslationScores

_MULTIPLE = 128


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
        self.label_smoothing = label_smoothing
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
        # The vocabulary costs most, so padding does not meet it.
        capacity = None if self.capacities is None else self.capacities[words.shape[1]]
        places, real = real_places(target_mask, capacity)
        logits = self.translator(source, source_mask, words, places=places)  # (M, V)
        chosen = targets.flatten().index_select(0, places)
        total = word_cross_entropy_sum(logits, chosen, real, label_smoothing=self.label_smoothing)
        return total, real.sum()


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


class TranslationTask:
    """Learning to translate."""

    free: Sequence[str] = ("data.folder", "validation.batch_size")

    def __init__(
        self,
        fabric: Fabric,
        config: TranslationRun,
        *,
        datasets: tuple[ParallelSplit, ParallelSplit] | None = None,
    ) -> None:
        """Opens what is learned from.

        Args:
            fabric: The processes.
            config: The run.
            datasets: To learn from and to validate on, in the place of those that are configured.

        Raises:
            ValueError: The settings do not fit each other, or there is no such data.
            OSError: It cannot be read.
        """
        if config.model.norm == "batch" and fabric.world_size > 1:
            raise ValueError(
                "model.norm: batch would take its statistics from the sentences of one of "
                f"{fabric.world_size} processes; take instance, or one process"
            )
        self._fabric = fabric
        self._learned, self._validated = datasets or _open(config)
        # The word pieces are the data's, however many were asked for.
        model = dataclasses.replace(config.model, vocab_size=self._learned.vocab_size)
        self._config = dataclasses.replace(config, model=model)
        self._subwords = self._learned.subwords()
        its_own = self._validated.subwords().signature
        if its_own != self._subwords.signature:
            raise ValueError(
                f"{self._validated.folder} was cut into other word pieces ({its_own}) than "
                f"{self._learned.folder} ({self._subwords.signature}): prepare both together"
            )
        self.signatures: Mapping[str, str] = {
            "train": self._learned.signature,
            "validation": self._validated.signature,
        }
        self.metric: str = config.validation.metric
        lengths = (self._learned.lengths("source"), self._learned.lengths("target"))
        try:
            self._batches = TokenBatches(
                *lengths,
                config.cross_entropy.batch_size,
                shapes=config.data.shapes,
                seed=config.seed,
                rank=fabric.global_rank,
                world_size=fabric.world_size,
            )
        except ValueError as error:
            raise ValueError(f"cross_entropy.batch_size: {error}") from error

    def build(self, *, fresh: bool) -> Translator:
        """See `Task.build`."""
        config = self._config
        torch.manual_seed(config.seed)
        translator = build_translator(config.model)
        if config.initial and fresh:
            given, its_config, subwords = load_translator(config.initial)
            if subwords.signature != self._subwords.signature:
                raise ValueError(
                    f"initial: {config.initial} has other word pieces ({subwords.signature}) than "
                    f"{self._learned.folder} ({self._subwords.signature})"
                )
            free = ("dropout", "attention_dropout", "hidden_dropout", "backend")
            changed = [
                f"model.{field.name}"
                for field in dataclasses.fields(its_config)
                if getattr(its_config, field.name) != getattr(config.model, field.name)
                and field.name not in free
            ]
            if changed:
                raise ValueError(
                    f"initial: {config.initial} is of another shape than the model: "
                    f"{', '.join(changed)}"
                )
            translator.load_state_dict(given.state_dict())
        return translator

    def teach(self, model: nn.Module, stop: Event) -> Lesson:
        """See `Task.teach`."""
        assert isinstance(model, Translator)
        config, device = self._config, self._fabric.device
        writer = copy.deepcopy(model).eval().requires_grad_(False)
        writer.to(half_of(config.machine, device.type))
        compiled = is_compiled(config.machine, device)
        table = PairTable(self._learned, device, resident=self._resident(device))
        validate = TranslationScores(
            writer, self._validated, self._subwords, config.validation, self._fabric, stop
        )

        def phase() -> Phase:
            module = TranslationLoss(
                model,
                label_smoothing=config.cross_entropy.label_smoothing,
                capacities=self._capacities() if compiled else None,
            )
            return CrossEntropyOfPairs(module, config.cross_entropy, self._batches, table)

        phases: list[Callable[[], Phase]] = [phase]
        return Lesson(writer=writer, phases=phases, validate=validate)

    def save(
        self,
        folder: Path,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        metrics: Mapping[str, Any],
    ) -> None:
        """See `Task.save`."""
        assert isinstance(model, Translator)
        save_translator(
            folder,
            model,
            self._config.model,
            self._subwords,
            run=self._config,
            metrics=metrics,
            tensors=weights,
        )

    def load(self, folder: Path) -> dict[str, Tensor]:
        """See `Task.load`."""
        translator, _, _ = load_translator(folder)
        return translator.state_dict()

    def about(self, model: nn.Module) -> Entry:
        """See `Task.about`."""
        config = self._config
        names = {keys["norm"]: name for name, keys in TRANSLATORS.items()}
        return {
            "model": names.get(config.model.norm, "translator"),
            "sentences": len(self._learned),
            "validation_sentences": len(self._validated),
            "phases": [
                {
                    "phase": CROSS_ENTROPY,
                    "epochs": config.cross_entropy.epochs,
                    "steps": len(self._batches),
                }
            ],
            "padding": self._batches.padding,
        }

    def _resident(self, device: torch.device) -> bool:
        """Whether all word pieces are held in the device's memory."""
        where = self._config.machine.data
        if where != "auto":
            return where == "device"
        if device.type != "cuda":
            return False  # what is mapped from the disk is in memory, too, once it is read
        needed = sum(
            array.nbytes
            for part in (self._learned.ids, self._learned.offsets)
            for array in part.values()
        )
        return needed <= 0.5 * torch.cuda.mem_get_info(device)[0]

    def _capacities(self) -> dict[int, int]:
        """Most real targets of this process's share of a batch, by its width; rounded up."""
        batches, processes = self._batches, self._fabric.world_size
        if processes > 1:  # a share may hold the batch's longest sentences
            return {
                shape.width: -(-shape.rows // processes) * shape.width for shape in batches.shapes
            }
        most = batches.most_targets(self._config.cross_entropy.epochs)
        return {width: -(-max(1, count) // _MULTIPLE) * _MULTIPLE for width, count in most.items()}


def _open(config: TranslationRun) -> tuple[ParallelSplit, ParallelSplit]:
    data = config.data
    if not data.folder:
        raise ValueError(
            "data.folder: say what to learn from: --data.folder DIR, made by ngsan data parallel"
        )
    return ParallelSplit(data.folder, data.train), ParallelSplit(data.folder, data.validation)
