"""Tables of translation."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ngsan.config.phases import CROSS_ENTROPY
from ngsan.config.translation import TranslationRun
from ngsan.data.parallel.dataset import ParallelSplit, read_index
from ngsan.metrics.bootstrap import Floats
from ngsan.metrics.translation import (
    bleu_of_counts,
    compound_bleu,
    compound_bleu_lacks,
    plain_bleu,
    plain_counts,
)
from ngsan.predict.translating import open_translator
from ngsan.reproduce.ledger import Written
from ngsan.reproduce.task import Fitted, Measured, measured_splits


class Translating:
    """Learning to translate."""

    phases: Sequence[str] = (CROSS_ENTROPY,)
    unit = "sentences"
    sizes: Sequence[str] = ("vocab_size",)

    def free(self, phase: str) -> Sequence[str]:
        """See `TableTask.free`."""
        return ("data.folder", "validation.batch_size", "machine")

    def fit(self, config: TranslationRun, models: Sequence[Any] = ()) -> Fitted:
        """See `TableTask.fit`."""
        learned, validated = (
            ParallelSplit(config.data.folder, split)
            for split in (config.data.train, config.data.validation)
        )
        model = dataclasses.replace(config.model, vocab_size=learned.vocab_size)
        # Texts are cut into the same pieces everywhere, so the bytes serve the keys, too; and the
        # signature is of all splits, that of the test with them.
        signatures = {"train": learned.signature, "validation": validated.signature}
        return Fitted(dataclasses.replace(config, model=model), signatures, signatures)

    def until(self, config: TranslationRun, phase: str) -> TranslationRun:
        """See `TableTask.until`; there is one phase."""
        return config

    def check_tools(self) -> None:
        """See `TableTask.check_tools`; nothing is needed."""

    def measure(self, config: TranslationRun, folder: Path) -> dict[str, Measured]:
        """See `TableTask.measure`."""
        translator = open_translator(folder, device=config.machine.device)
        known = read_index(Path(config.data.folder))["splits"]
        found = {}
        for name in measured_splits(config.data.validation, known):
            split = ParallelSplit(config.data.folder, name, verify=True)
            sentences = [split.sentence("source", place) for place in range(len(split))]
            best = translator.translate_ids(
                sentences,
                decoding=config.validation.decoding,
                words=config.validation.batch_size,
            )
            texts, references = [first.text for first, *_ in best], split.texts("target")
            metrics = {"BLEU": plain_bleu(texts, references).value}
            if not compound_bleu_lacks(split.language):
                compound = compound_bleu(texts, references, language=split.language)
                metrics["tokenised BLEU"] = compound.value
            ids = [str(place) for place in range(1, len(split) + 1)]
            counts = plain_counts(texts, references).tolist()
            found[name] = Measured(metrics, Written(ids, texts, counts))
        return found

    def score(self, totals: Floats) -> Floats:
        """See `TableTask.score`; BLEU of a corpus is no mean of its sentences."""
        return bleu_of_counts(totals)[..., None]

    def baselines(self, config: TranslationRun, split: str) -> Mapping[str, Mapping[str, float]]:
        """See `TableTask.baselines`; there are none."""
        return {}
