"""Translation: cross-entropy with label smoothing on parallel text.

Shapes: `B` pairs, `S` subwords of a source, `T` subwords of a target, `M` packed targets,
`V` vocabulary.
"""

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from threading import Event
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config import (
    CROSS_ENTROPY,
    TRANSLATORS,
    TranslationConfig,
    TranslationPhaseConfig,
    TranslationValidationConfig,
)
from ngsan.data.parallel.batches import PairTable, TokenBatches, TranslationBatch
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.metrics.translation import sacre_bleu
from ngsan.models.build import build_translator
from ngsan.models.checkpoint import load_model
from ngsan.models.translator import TranslatorModel
from ngsan.nn.losses import word_cross_entropy_sum
from ngsan.nn.masks import Packing
from ngsan.predict.translator import TorchTranslator, Translator
from ngsan.text.subwords import Subwords
from ngsan.train.distributed import (
    StoppedError,
    gather,
    inference_dtype,
    is_compiled,
    share_of,
)
from ngsan.train.step import Inputs
from ngsan.train.task import Phase, Task, TrainingSetup, check_initial, check_norm

_MULTIPLE = 128

_MEMORY_SHARE = 0.5
"""Share of a GPU's free memory that the data may use."""


class SubwordLoss(nn.Module):
    """`word_cross_entropy_sum` as a module, which can be compiled."""

    def __init__(self, label_smoothing: float) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, targets: Tensor, real: Tensor) -> Tensor:
        """The sum over the real ones of (M,) targets, with logits (M, V)."""
        return word_cross_entropy_sum(logits, targets, real, label_smoothing=self.label_smoothing)


class TranslationLoss(nn.Module):
    """The trained model and its loss on reference translations."""

    def __init__(
        self,
        translator: TranslatorModel,
        *,
        label_smoothing: float = 0.0,
        capacities: Mapping[int, int] | None = None,
    ) -> None:
        """Holds the model.

        Args:
            translator: The model.
            label_smoothing: Share of the probability spread over the vocabulary.
            capacities: Most real targets of a batch by its width T, so that shapes do not depend
                on values; None to count them, which waits for the device.
        """
        super().__init__()
        self.translator = translator
        self.score = SubwordLoss(label_smoothing)
        self.capacities = None if capacities is None else dict(capacities)

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        words: Tensor,
        targets: Tensor,
        target_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The sum over the real targets of a `TranslationBatch`, and their number."""
        capacity = None if self.capacities is None else self.capacities[words.shape[1]]
        packing = Packing.of(target_mask, capacity)
        logits = self.translator(source, source_mask, words, packing=packing)  # (M, V)
        chosen = targets.flatten().index_select(0, packing.places)
        return self.score(logits, chosen, packing.real), packing.real.sum()


class TranslationPhase(Phase):
    """Teacher-forced training on reference translations."""

    name = CROSS_ENTROPY
    unit = "tokens"

    def __init__(
        self,
        module: TranslationLoss,
        config: TranslationPhaseConfig,
        batches: TokenBatches,
        table: PairTable,
    ) -> None:
        """Holds the parts.

        Args:
            module: The model and its loss.
            config: The phase.
            batches: The order and the sizes of the batches.
            table: The pairs.
        """
        super().__init__(config, module, 0)
        self.steps = len(batches)
        layers = (module.translator.encoder.layers, module.translator.decoder.layers)
        self._parts = [*chain(*layers), module.score]
        self._batches, self._table = batches, table
        self._done = np.zeros(self.steps + 1, np.int64)

    @property
    def parts(self) -> Sequence[nn.Module]:
        """See `Phase.parts`; all twelve layers at once take the compiler a minute per shape."""
        return self._parts

    def batches(self, epoch: int, position: int) -> Iterator[TranslationBatch]:
        self._done[1:] = np.cumsum(self._batches.targets(epoch))
        for share in self._batches.epoch(epoch, position):
            yield self._table.batch(share.indices, share.width)

    def done(self, position: int) -> int:
        """See `Phase.done`: real target subwords, of the epoch of the last call of `batches`."""
        return int(self._done[position])

    def prepare(self, batch: TranslationBatch, step: int) -> tuple[Inputs, Tensor]:
        inputs = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return inputs, torch.zeros(0, dtype=torch.double, device=batch.words.device)


class TranslationValidation:
    """Translates a split, and scores the translations and the references."""

    def __init__(
        self,
        eval_model: TranslatorModel,
        split: ParallelSplit,
        subwords: Subwords,
        config: TranslationValidationConfig,
        fabric: Fabric,
        stop: Event,
    ) -> None:
        """Holds the parts.

        Args:
            eval_model: The model, whose weights may change from call to call.
            split: The split; its texts are kept.
            subwords: The model's subwords.
            config: The decoding.
            fabric: The processes, which share the work.
            stop: Set to ask for a stop.
        """
        self._model, self._split, self._config = eval_model, split, config
        self._fabric, self._stop = fabric, stop
        self._translator = Translator(TorchTranslator(eval_model), subwords)
        self._references = split.texts("target")
        self._places = share_of(fabric, len(split))
        self._table = PairTable(split, fabric.device)

    def __call__(self) -> dict[str, float]:
        """BLEU, 0 to 100, and the mean log-probability and perplexity of the references.

        Raises:
            StoppedError: It was asked to stop.
        """
        sentences = [self._split.sentence("source", int(place)) for place in self._places]
        found = self._translator.translate_ids(
            sentences,
            decoding=self._config.decoding,
            words=self._config.batch_size,
            on_group=self._check_stop,
        )
        parts = gather(self._fabric, ([str(one) for one in found], *self._likelihood()))
        texts = [text for part, _, _ in parts for text in part]
        mean = -sum(part[1] for part in parts) / sum(part[2] for part in parts)
        return {
            "BLEU": sacre_bleu(texts, [self._references]).value,
            "log-probability": mean,
            # The perplexity of a diverged model would overflow.
            "perplexity": math.exp(min(-mean, 100.0)),
        }

    def _check_stop(self, done: int = 0) -> None:
        if self._stop.is_set():
            raise StoppedError

    @torch.inference_mode()
    def _likelihood(self) -> tuple[float, float]:
        """The sum of minus the log-probabilities of this share's references, and their number."""
        if not len(self._places):
            return 0.0, 0.0
        sources, targets = (
            self._split.lengths(side)[self._places] for side in ("source", "target")
        )
        longest = int(max(sources.max(), targets.max()))
        batches = TokenBatches(sources, targets, max(self._config.batch_size, longest))
        sums = torch.zeros(2, dtype=torch.double, device=self._fabric.device)
        for share in batches.epoch(0):
            self._check_stop()
            chosen = np.where(share.indices < 0, -1, self._places[share.indices])
            batch = self._table.batch(chosen, share.width)
            packing = Packing.of(batch.target_mask)
            logits = self._model(batch.source, batch.source_mask, batch.words, packing=packing)
            wanted = batch.targets.flatten().index_select(0, packing.places)
            sums[0] += word_cross_entropy_sum(logits, wanted, packing.real)
            sums[1] += packing.real.sum()
        total, count = sums.tolist()
        return total, count


class TranslationTask(Task):
    """Training of a translator; see `Task`."""

    config: TranslationConfig
    train: ParallelSplit
    val: ParallelSplit

    def __init__(
        self,
        fabric: Fabric,
        config: TranslationConfig,
        *,
        datasets: tuple[ParallelSplit, ParallelSplit] | None = None,
    ) -> None:
        check_norm(config.model.norm, fabric.world_size, "sentences")
        train, val = datasets or _open(config)
        super().__init__(fabric, train, val, config.validation.metric)
        model = dataclasses.replace(config.model, vocab_size=train.vocab_size)
        self.config = dataclasses.replace(config, model=model)
        self._subwords = train.subwords()
        self.companions = {"tokenizer": self._subwords}
        signature = val.subwords().signature
        if signature != self._subwords.signature:
            raise ValueError(
                f"{val.folder} has other subwords ({signature}) than {train.folder} "
                f"({self._subwords.signature}); prepare both together"
            )
        try:
            self._batches = TokenBatches(
                train.lengths("source"),
                train.lengths("target"),
                config.cross_entropy.batch_size,
                shapes=config.data.max_buckets,
                seed=config.seed,
                rank=fabric.global_rank,
                world_size=fabric.world_size,
            )
        except ValueError as error:
            raise ValueError(f"cross_entropy.batch_size: {error}") from error

    def build(self, *, fresh: bool) -> TranslatorModel:
        config = self.config
        torch.manual_seed(config.seed)
        translator = build_translator(config.model)
        if config.init_from and fresh:
            given, its_config, companions = load_model(config.init_from, "translation")
            subwords = companions["tokenizer"]
            if subwords.signature != self._subwords.signature:
                raise ValueError(
                    f"init_from: {config.init_from} has other subwords ({subwords.signature}) "
                    f"than {self.train.folder} ({self._subwords.signature})"
                )
            free = ("dropout", "attention_dropout", "hidden_dropout", "backend")
            check_initial(config.init_from, its_config, config.model, free)
            translator.load_state_dict(given.state_dict())
        return translator

    def setup(self, model: nn.Module, stop: Event) -> TrainingSetup:
        assert isinstance(model, TranslatorModel)
        config, device = self.config, self.fabric.device
        eval_model = copy.deepcopy(model).eval().requires_grad_(False)
        eval_model.to(inference_dtype(config.runtime, device.type))
        compiled = is_compiled(config.runtime, device)
        table = PairTable(self.train, device, resident=self._is_resident(device))

        def phase() -> Phase:
            module = TranslationLoss(
                model,
                label_smoothing=config.cross_entropy.label_smoothing,
                capacities=self._capacities() if compiled else None,
            )
            return TranslationPhase(module, config.cross_entropy, self._batches, table)

        validate = TranslationValidation(
            eval_model, self.val, self._subwords, config.validation, self.fabric, stop
        )
        return TrainingSetup(eval_model=eval_model, phases=[phase], validate=validate)

    def describe(self) -> dict[str, Any]:
        config = self.config
        names = {keys["norm"]: name for name, keys in TRANSLATORS.items()}
        epochs, steps = config.cross_entropy.epochs, len(self._batches)
        return {
            "model": names.get(config.model.norm, "translator"),
            "sentences": len(self.train),
            "validation_sentences": len(self.val),
            "phases": [{"phase": CROSS_ENTROPY, "epochs": epochs, "steps": steps}],
            "padding": self._batches.padding,
        }

    def _is_resident(self, device: torch.device) -> bool:
        """Whether all subwords are held in the device's memory."""
        where = self.config.runtime.data
        if where != "auto":
            return where == "device"
        if device.type != "cuda":
            return False  # memory-mapped files are in memory, too, once they are read
        needed = sum(
            array.nbytes for part in (self.train.ids, self.train.offsets) for array in part.values()
        )
        return needed <= _MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]

    def _capacities(self) -> dict[int, int]:
        """Most real targets of this process's share of a batch, by its width; rounded up."""
        batches, processes = self._batches, self.fabric.world_size
        if processes > 1:  # a share may hold the batch's longest sentences
            return {
                shape.width: -(-shape.rows // processes) * shape.width for shape in batches.shapes
            }
        most = batches.max_targets(self.config.cross_entropy.epochs)
        return {width: -(-max(1, count) // _MULTIPLE) * _MULTIPLE for width, count in most.items()}


def _open(config: TranslationConfig) -> tuple[ParallelSplit, ParallelSplit]:
    data = config.data
    if not data.folder:
        raise ValueError("data.folder: pass the dataset, made by ngsan data parallel: --data DIR")
    # A GPU would report a damaged id much later, and not where it is.
    splits = (data.train_split, data.val_split)
    train, val = (ParallelSplit(data.folder, split, verify=True) for split in splits)
    return train, val
