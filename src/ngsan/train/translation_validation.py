"""How well a translator translates a split that it does not learn from."""

import math
import time
from threading import Event

import numpy as np
import torch
from lightning_fabric import Fabric

from ngsan.config.translation import TranslationValidation
from ngsan.data.parallel.batch import PairTable
from ngsan.data.parallel.batches import TokenBatches
from ngsan.data.parallel.dataset import ParallelSplit
from ngsan.metrics.translation import plain_bleu
from ngsan.models.translator import Translator
from ngsan.nn.losses import word_cross_entropy_sum
from ngsan.nn.packing import Packing
from ngsan.predict.translating import TextTranslator
from ngsan.text.subwords import Subwords
from ngsan.train.machine import StoppedError


class TranslationScores:
    """Translates a split and scores the translations, and the references by the model."""

    def __init__(
        self,
        writer: Translator,
        split: ParallelSplit,
        subwords: Subwords,
        config: TranslationValidation,
        fabric: Fabric,
        stop: Event,
    ) -> None:
        """Takes the parts.

        Args:
            writer: The model, whose weights may change from call to call.
            split: The split, whose texts are kept.
            subwords: The model's word pieces.
            config: How to translate.
            fabric: The processes, which share the work.
            stop: Set to ask for a stop.
        """
        self._writer, self._split, self._config = writer, split, config
        self._fabric, self._stop = fabric, stop
        self._translator = TextTranslator(writer, subwords)
        self._references = split.texts("target")
        # Shares in a row, so that all together they are in the order of one process.
        shares = np.array_split(np.arange(len(split)), fabric.world_size)
        self._places = shares[fabric.global_rank]
        self._table = PairTable(split, fabric.device)

    def __call__(self) -> tuple[dict[str, float], float]:
        """Validates.

        Returns:
            BLEU, 0 to 100; the mean log-probability of the references' words, and the perplexity
            that follows from it; and the seconds it took.

        Raises:
            StoppedError: It was asked to stop.
        """
        start = time.perf_counter()
        sentences = [self._split.sentence("source", int(place)) for place in self._places]
        found = self._translator.translate_ids(
            sentences,
            decoding=self._config.decoding,
            words=self._config.batch_size,
            on_group=self._look,
        )
        texts = [best.text for best, *_ in found]
        total, count = self._likelihood()
        if self._fabric.world_size > 1:
            parts: list[tuple[list[str], float, float]] = [([], 0.0, 0.0)] * self._fabric.world_size
            torch.distributed.all_gather_object(parts, (texts, total, count))
            texts = [text for part, _, _ in parts for text in part]
            total, count = sum(part[1] for part in parts), sum(part[2] for part in parts)
        mean = -total / count
        metrics = {
            "BLEU": plain_bleu(texts, self._references).value,
            "log-probability": mean,
            # A model that has gone wrong has no perplexity that a number can hold.
            "perplexity": math.exp(min(-mean, 100.0)),
        }
        return metrics, time.perf_counter() - start

    def _look(self, done: int = 0) -> None:
        if self._stop.is_set():
            raise StoppedError

    @torch.inference_mode()
    def _likelihood(self) -> tuple[float, float]:
        """The sum of minus the log-probabilities of this share's reference words, their number."""
        if not len(self._places):
            return 0.0, 0.0
        sources, targets = (
            self._split.lengths(side)[self._places] for side in ("source", "target")
        )
        most = int(max(sources.max(), targets.max()))
        batches = TokenBatches(sources, targets, max(self._config.batch_size, most))
        sums = torch.zeros(2, dtype=torch.double, device=self._fabric.device)
        for share in batches.epoch(0):
            self._look()
            chosen = np.where(share.indices < 0, -1, self._places[share.indices])
            batch = self._table.batch(chosen, share.width)
            packing = Packing.of(batch.target_mask)
            logits = self._writer(batch.source, batch.source_mask, batch.words, packing=packing)
            wanted = batch.targets.flatten().index_select(0, packing.places)
            sums[0] += word_cross_entropy_sum(logits, wanted, packing.real)
            sums[1] += packing.real.sum()
        total, count = sums.tolist()
        return total, count
