"""The task of translation: what is learned from, the model, and its lesson."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config.phases import CROSS_ENTROPY
from ngsan.config.translation import TRANSLATORS, TranslationRun
from ngsan.data.parallel.batch import PairTable
from ngsan.data.parallel.batches import TokenBatches
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.models.build_translator import build_translator
from ngsan.models.saved_translator import load_translator, save_translator
from ngsan.models.translator import Translator
from ngsan.train.fitting import check_initial, check_norm
from ngsan.train.log import Entry
from ngsan.train.machine import half_of, is_compiled
from ngsan.train.task import Lesson, Phase
from ngsan.train.translation_phase import CrossEntropyOfPairs, TranslationLoss
from ngsan.train.translation_validation import TranslationScores

_MULTIPLE = 128


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
        check_norm(config.model.norm, fabric.world_size, "sentences")
        self._fabric = fabric
        self._learned, self._validated = datasets or _open(config)
        # The word pieces are the data's, however many were asked for.
        model = dataclasses.replace(config.model, vocab_size=self._learned.vocab_size)
        self.config: TranslationRun = dataclasses.replace(config, model=model)
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
        config = self.config
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
            check_initial(config.initial, its_config, config.model, free)
            translator.load_state_dict(given.state_dict())
        return translator

    def teach(self, model: nn.Module, stop: Event) -> Lesson:
        """See `Task.teach`."""
        assert isinstance(model, Translator)
        config, device = self.config, self._fabric.device
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
            self.config.model,
            self._subwords,
            run=self.config,
            metrics=metrics,
            tensors=weights,
        )

    def load(self, folder: Path) -> dict[str, Tensor]:
        """See `Task.load`."""
        translator, _, _ = load_translator(folder)
        return translator.state_dict()

    def about(self, model: nn.Module) -> Entry:
        """See `Task.about`."""
        config = self.config
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
        where = self.config.machine.data
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
        most = batches.most_targets(self.config.cross_entropy.epochs)
        return {width: -(-max(1, count) // _MULTIPLE) * _MULTIPLE for width, count in most.items()}


def _open(config: TranslationRun) -> tuple[ParallelSplit, ParallelSplit]:
    data = config.data
    if not data.folder:
        raise ValueError(
            "data.folder: say what to learn from: --data.folder DIR, made by ngsan data parallel"
        )
    # A damaged id would be told by a GPU long after, and not where it is.
    splits = (data.train, data.validation)
    train, validation = (ParallelSplit(data.folder, split, verify=True) for split in splits)
    return train, validation
