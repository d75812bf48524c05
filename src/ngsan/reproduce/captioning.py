"""Tables of captions, of images and of clips."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ngsan.config import TrainConfig
from ngsan.config.phases import CROSS_ENTROPY, SELF_CRITICAL
from ngsan.data.captions import read_captions
from ngsan.data.dataset import CaptionDataset
from ngsan.evaluate import caption_images, score_results
from ngsan.metrics.bleu import Bleu
from ngsan.metrics.bootstrap import Floats
from ngsan.metrics.cider import Cider
from ngsan.metrics.meteor import Meteor
from ngsan.metrics.metric import Metric
from ngsan.metrics.rouge import RougeL
from ngsan.models.saved_captioner import load_captioner
from ngsan.predict import Predictor, best_device
from ngsan.reproduce.ledger import Written
from ngsan.reproduce.statistics import sum_of_first
from ngsan.reproduce.task import Fitted, Measured, measured_splits
from ngsan.train.sources import fit_sizes

METRICS: tuple[Metric, ...] = (Bleu(), Meteor(), RougeL(), Cider())


class Captioning:
    """Learning to caption images or clips whose features are stored."""

    phases: Sequence[str] = (CROSS_ENTROPY, SELF_CRITICAL)
    unit = "images"
    sizes: Sequence[str] = ("vocab_size", "feature_dim")

    def free(self, phase: str) -> Sequence[str]:
        """See `TableTask.free`."""
        later = () if phase == SELF_CRITICAL else ("self_critical",)
        return ("data.folder", "vision", "validation.batch_size", "machine", *later)

    def fit(self, config: TrainConfig, models: Sequence[Any] = ()) -> Fitted:
        """See `TableTask.fit`."""
        learned, validated = (
            open_split(config, split) for split in (config.data.train, config.data.validation)
        )
        _, *others = _splits(config)
        return Fitted(
            fit_sizes(config, learned),
            {"train": learned.origin, "validation": validated.origin},
            {"train": learned.signature, "validation": validated.signature},
            {split: open_split(config, split).origin for split in others},
        )

    def until(self, config: TrainConfig, phase: str) -> TrainConfig:
        """See `TableTask.until`."""
        if phase == SELF_CRITICAL and not config.self_critical.epochs:
            raise ValueError(
                "self_critical.epochs: 0 leaves out what the table measures; give 1 or more"
            )
        if phase == SELF_CRITICAL:
            return config
        critical = dataclasses.replace(config.self_critical, epochs=0)
        return dataclasses.replace(config, self_critical=critical)

    def check_tools(self) -> None:
        """See `TableTask.check_tools`."""
        for metric in METRICS:
            _ = metric.signature  # METEOR reads its word lists, which are an extra

    def measure(self, config: TrainConfig, folder: Path) -> dict[str, Measured]:
        """See `TableTask.measure`."""
        captioner, _, vocabulary = load_captioner(folder)
        predictor = Predictor(captioner.to(best_device(config.machine.device)), vocabulary)
        found = {}
        for split in _splits(config):
            dataset = open_split(config, split)
            captions = caption_images(
                predictor,
                dataset.store,  # type: ignore[arg-type]
                dataset.ids,
                decoding=config.validation.decoding,
                batch_size=config.validation.batch_size,
            )
            texts = {image: best.text for image, (best, *_) in captions.items()}
            scores = score_results(texts, dataset.references(), METRICS)
            cider = [[round(float(value), 3)] for value in scores.per_image["CIDEr"]]
            written = Written(list(scores.ids), [texts[image] for image in scores.ids], cider)
            found[split] = Measured(dict(scores.values), written)
        return found

    def score(self, totals: Floats) -> Floats:
        """See `TableTask.score`; CIDEr is a mean over the images."""
        return sum_of_first(totals)

    def baselines(self, config: TrainConfig, split: str) -> Mapping[str, Mapping[str, float]]:
        """See `TableTask.baselines`; there are none."""
        return {}


def _splits(config: TrainConfig) -> list[str]:
    """The splits that models are measured on."""
    known = {record.split for record in read_captions(config.data.folder)}
    return measured_splits(config.data.validation, known)


def open_split(config: TrainConfig, split: str) -> CaptionDataset:
    """A split of a run's data, as it is learned from or measured on."""
    data: Any = config.data
    return CaptionDataset(data.folder, split, longest=data.longest, skip_missing=data.skip_missing)
