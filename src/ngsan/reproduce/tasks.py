"""What the tables need to know about each task: captioning, translation, answering."""

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ngsan.config import (
    ANSWERING,
    CROSS_ENTROPY,
    SELF_CRITICAL,
    AnswererConfig,
    AnsweringConfig,
    TrainConfig,
    TranslationConfig,
)
from ngsan.data.captions import read_captions
from ngsan.data.data_check import checked_features
from ngsan.data.dataset import CaptionDataset
from ngsan.data.parallel.dataset import ParallelSplit, read_index
from ngsan.data.question_set import QuestionSet
from ngsan.data.questions import Question, read_questions
from ngsan.data.store import FeatureStore
from ngsan.metrics.bleu import Bleu
from ngsan.metrics.bootstrap import Floats
from ngsan.metrics.captions import Metric
from ngsan.metrics.cider import Cider
from ngsan.metrics.meteor import Meteor
from ngsan.metrics.rouge import RougeL
from ngsan.metrics.translation import (
    bleu_counts,
    bleu_of_counts,
    check_language,
    compound_bleu,
    sacre_bleu,
)
from ngsan.metrics.vqa import VqaScores, score_answers
from ngsan.models.checkpoint import load_model
from ngsan.predict.backend_torch import TorchBackend, best_device
from ngsan.predict.captioner import Captioner
from ngsan.predict.evaluate import best_answers, caption_dataset, score_results
from ngsan.predict.translator import load_translator
from ngsan.reproduce.ledger import Written
from ngsan.text.answers import graded_answers
from ngsan.train.tasks.captioning import fit_sizes

METRICS: tuple[Metric, ...] = (Bleu(), Meteor(), RougeL(), Cider())


@dataclass(frozen=True)
class Fitted:
    """A run configuration with the sizes of its data filled in, and the identity of the data."""

    config: Any

    data: dict[str, str]
    """Machine-independent signatures of the training and validation splits; part of run keys."""

    content: dict[str, str]
    """Byte-exact signatures of the same splits."""

    measured: dict[str, str] = field(default_factory=dict)
    """Machine-independent signatures of further evaluation splits, such as the test split."""


@dataclass(frozen=True)
class Measured:
    """The scores of a finished model on a split, and its outputs."""

    metrics: dict[str, float]
    written: Written


def measured_splits(val_split: str, known: Collection[str]) -> list[str]:
    """The evaluation splits: the validation split, then "test" if it is among `known`."""
    return list(dict.fromkeys([val_split, *(["test"] if "test" in known else [])]))


class TableTask(ABC):
    """What the tables need to know about a task; everything else is shared by all tasks."""

    phases: Sequence[str]
    """The phases of a run, in order."""

    unit: str
    """What a metric is averaged over: images, sentences or questions."""

    sizes: Sequence[str] = ()
    """Keys of the model configuration that `fit` derives from the data."""

    def free(self, phase: str) -> Sequence[str]:
        """Dotted configuration keys that cannot change what is measured after `phase`."""
        return ("data.folder", "validation.batch_size", "runtime")

    @abstractmethod
    def fit(self, config: Any, models: Sequence[Any] = ()) -> Fitted:
        """Fills in the sizes of the data.

        Args:
            config: The run.
            models: The configurations of all models to train, if they need less of the data than
                `config.model`.

        Raises:
            ValueError: The data are missing or damaged.
        """

    def until(self, config: Any, phase: str) -> Any:
        """The run, stopped after `phase`; raises a `ValueError` if it has no such phase."""
        return config

    def check_tools(self) -> None:
        """Raises a `ValueError` if a package that `measure` needs is not installed."""
        return

    @abstractmethod
    def measure(self, config: Any, folder: Path) -> dict[str, Measured]:
        """Evaluates the model in `folder` on each of the evaluation splits."""

    def score(self, totals: Floats) -> Floats:
        """The main metric (up to a monotone function) from sums of `Written.scores`.

        Args:
            totals: (..., K) sums or means of the counts.

        Returns:
            (..., 1)
        """
        return totals[..., :1]  # right for metrics that are means over the units

    def baselines(self, config: Any, split: str) -> Mapping[str, Mapping[str, float]]:
        """Scores of baselines that need no training, by label and metric."""
        return {}


class Captioning(TableTask):
    """Captions of images or clips with stored features."""

    phases = (CROSS_ENTROPY, SELF_CRITICAL)
    unit = "images"
    sizes = ("vocab_size", "feature_dim")

    def free(self, phase: str) -> Sequence[str]:
        later = () if phase == SELF_CRITICAL else ("self_critical",)
        return (*super().free(phase), "vision", *later)

    def fit(self, config: TrainConfig, models: Sequence[Any] = ()) -> Fitted:
        train, val = (
            open_split(config, split) for split in (config.data.train_split, config.data.val_split)
        )
        _, *others = _caption_splits(config)
        return Fitted(
            fit_sizes(config, train),
            {"train": train.origin, "validation": val.origin},
            {"train": train.signature, "validation": val.signature},
            {split: open_split(config, split).origin for split in others},
        )

    def until(self, config: TrainConfig, phase: str) -> TrainConfig:
        if phase == SELF_CRITICAL:
            if not config.self_critical.epochs:
                raise ValueError(
                    "self_critical.epochs: 0 skips the phase that the table measures; use 1 or more"
                )
            return config
        skipped = dataclasses.replace(config.self_critical, epochs=0)
        return dataclasses.replace(config, self_critical=skipped)

    def check_tools(self) -> None:
        for metric in METRICS:
            _ = metric.signature  # METEOR loads its word lists, which are an extra

    def measure(self, config: TrainConfig, folder: Path) -> dict[str, Measured]:
        captioner = Captioner(TorchBackend.open(folder, device=config.runtime.device))
        found = {}
        for split in _caption_splits(config):
            dataset = open_split(config, split)
            with checked_features(dataset.store):
                captions = caption_dataset(
                    captioner,
                    dataset.store,  # type: ignore[arg-type]
                    dataset.ids,
                    decoding=config.validation.decoding,
                    batch_size=config.validation.batch_size,
                )
            texts = {image: caption.text for image, caption in captions.items()}
            scores = score_results(texts, dataset.references(), METRICS)
            cider = [[round(float(value), 3)] for value in scores.per_image["CIDEr"]]
            written = Written(list(scores.ids), [texts[image] for image in scores.ids], cider)
            found[split] = Measured(dict(scores.values), written)
        return found


def _caption_splits(config: TrainConfig) -> list[str]:
    known = {record.split for record in read_captions(config.data.folder)}
    return measured_splits(config.data.val_split, known)


def open_split(config: TrainConfig, split: str) -> CaptionDataset:
    """Opens a split of a run's data with the run's settings."""
    data: Any = config.data
    return CaptionDataset(
        data.folder,
        split,
        max_length=data.max_length,
        skip_missing=data.skip_missing,
        boxes=data.boxes,
    )


class Translating(TableTask):
    """Translation."""

    phases = (CROSS_ENTROPY,)
    unit = "sentences"
    sizes = ("vocab_size",)

    def fit(self, config: TranslationConfig, models: Sequence[Any] = ()) -> Fitted:
        train, val = (
            ParallelSplit(config.data.folder, split)
            for split in (config.data.train_split, config.data.val_split)
        )
        model = dataclasses.replace(config.model, vocab_size=train.vocab_size)
        # Subwords are the same on every machine, so the byte-exact signatures can serve as keys.
        # They cover all splits, the test split included.
        signatures = {"train": train.signature, "validation": val.signature}
        return Fitted(dataclasses.replace(config, model=model), signatures, signatures)

    def measure(self, config: TranslationConfig, folder: Path) -> dict[str, Measured]:
        translator = load_translator(folder, device=config.runtime.device)
        known = read_index(Path(config.data.folder))["splits"]
        found = {}
        for name in measured_splits(config.data.val_split, known):
            split = ParallelSplit(config.data.folder, name, verify=True)
            sentences = [split.sentence("source", place) for place in range(len(split))]
            best = translator.translate_ids(
                sentences,
                decoding=config.validation.decoding,
                words=config.validation.batch_size,
            )
            texts, references = [str(one) for one in best], split.texts("target")
            metrics = {"BLEU": sacre_bleu(texts, [references]).value}
            if not check_language(split.language):
                compound = compound_bleu(texts, references, language=split.language)
                metrics["tokenised BLEU"] = compound.value
            ids = [str(place) for place in range(1, len(split) + 1)]
            counts = bleu_counts(texts, references).tolist()
            found[name] = Measured(metrics, Written(ids, texts, counts))
        return found

    def score(self, totals: Floats) -> Floats:
        return bleu_of_counts(totals)[..., None]  # corpus BLEU is not a mean over sentences


class Answering(TableTask):
    """Answers to questions about images."""

    phases = (ANSWERING,)
    unit = "questions"

    def fit(self, config: AnsweringConfig, models: Sequence[AnswererConfig] = ()) -> Fitted:
        """See `TableTask.fit`.

        The sizes are not filled in: models with and without regions differ in them. If no model
        uses regions, images without features are accepted.
        """
        uses_regions = any(model.regions != "none" for model in models or [config.model])
        val_split, *others = _question_splits(config)

        def opened(split: str, *with_features: str) -> QuestionSet:
            return QuestionSet(
                config.data.folder,
                split,
                max_length=config.model.max_length,
                regions=uses_regions or _features(config, *with_features) is not None,
                skip_missing=config.data.skip_missing,
            )

        train, val = (opened(split) for split in (config.data.train_split, val_split))
        return Fitted(
            config,
            {"train": train.origin, "validation": val.origin},
            {"train": train.signature, "validation": val.signature},
            {split: opened(split, split).origin for split in others},
        )

    def measure(self, config: AnsweringConfig, folder: Path) -> dict[str, Measured]:
        model, built, companions = load_model(folder, "answering")
        model = model.float().to(best_device(config.runtime.device))
        found = {}
        for split in _question_splits(config):
            questions = QuestionSet(
                config.data.folder,
                split,
                max_length=built.max_length,
                regions=built.regions != "none",
                words=companions["vocabulary"],
                answers=companions["answers"],
                skip_missing=config.data.skip_missing,
            )
            places = np.arange(len(questions))
            store = _features(config) if config.data.skip_missing else None
            if questions.store is None and store is not None:
                # A question-only model gets the same questions as the others.
                seen = [question.image in store for question in questions.questions]
                places = np.flatnonzero(seen)
            batch = config.validation.batch_size
            with checked_features(questions.store):
                given = best_answers(model, questions, places=places, batch_size=batch)
            asked = {question.id: question for question in questions.questions}
            scores = score_answers(given, {name: asked[name] for name in given})
            single = [[100 * scores.single[name]] for name in given]
            found[split] = Measured(
                _percent(scores), Written(list(given), list(given.values()), single)
            )
        return found

    def baselines(self, config: AnsweringConfig, split: str) -> Mapping[str, Mapping[str, float]]:
        """The answer priors."""
        questions = [*read_questions(config.data.folder)]
        train = [question for question in questions if question.split == config.data.train_split]
        asked = {question.id: question for question in questions if question.split == split}
        store = _features(config) if config.data.skip_missing else None
        if store is not None:
            asked = {name: question for name, question in asked.items() if question.image in store}
        return {
            label: _percent(score_answers(given, asked))
            for label, given in answer_priors(train, asked).items()
        }


def answer_priors(
    train: Sequence[Question], asked: Mapping[str, Question]
) -> dict[str, dict[str, str]]:
    """Answers that ignore the image: the most frequent overall, and by question type.

    Args:
        train: Training questions; each counts for its best answer.
        asked: The questions to answer, by id.

    Returns:
        The answers by id, by the label of the prior.
    """
    overall: Counter[str] = Counter()
    by_type: dict[str, Counter[str]] = defaultdict(Counter)
    for question in train:
        best = next(iter(graded_answers(question.answers)))
        overall[best] += 1
        by_type[question.question_type][best] += 1
    first = overall.most_common(1)[0][0]
    kinds = {kind: counts.most_common(1)[0][0] for kind, counts in by_type.items()}
    return {
        f'prior: "{first}"': dict.fromkeys(asked, first),
        "prior by question type": {
            name: kinds.get(question.question_type, first) for name, question in asked.items()
        },
    }


def _percent(scores: VqaScores) -> dict[str, float]:
    return {name: round(value, 4) for name, value in scores.percent().items()}


def _question_splits(config: AnsweringConfig) -> list[str]:
    """The evaluation splits; questions without answers cannot be scored."""
    data = read_questions(config.data.folder)
    answered = {question.split for question in data if question.answers}
    return measured_splits(config.data.val_split, answered)


def _features(config: AnsweringConfig, *splits: str) -> FeatureStore | None:
    """The feature store, if it covers the images of `splits` (default: training and validation)."""
    data = config.data
    try:
        store = FeatureStore(data.folder)
    except FileNotFoundError:
        return None
    splits = splits or (data.train_split, data.val_split)
    asked = {question.image for question in read_questions(data.folder) if question.split in splits}
    return store if data.skip_missing or all(image in store for image in asked) else None


TASKS: dict[str, TableTask] = {
    "captioning": Captioning(),
    "translation": Translating(),
    "answering": Answering(),
}
"""By the key `task` of a run."""
