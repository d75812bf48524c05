"""Answering questions about images: binary cross-entropy over all answers.

Shapes: `B` questions, `N` regions, `T` words, `A` answers.
"""

import copy
import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config import (
    ANSWERERS,
    ANSWERING,
    AnswerDataConfig,
    AnswererConfig,
    AnsweringConfig,
    AnswerPhaseConfig,
)
from ngsan.data.question_set import HeldQuestions, QuestionBatch, QuestionSet, ResidentQuestions
from ngsan.data.questions import ANSWERS
from ngsan.data.synthetic.folders import write_question_scenes
from ngsan.data.text_files import read_vectors
from ngsan.metrics.vqa import score_answers
from ngsan.models.answerer import AnswererModel
from ngsan.models.build import build_answerer
from ngsan.nn.geometry import check_boxes
from ngsan.predict.evaluate import best_answers
from ngsan.train.distributed import StoppedError, gather, is_compiled, share_of
from ngsan.train.loader import sample_epoch
from ngsan.train.step import Inputs
from ngsan.train.task import Phase, Task, TrainingSetup, data_folder, place_scenes

_MEMORY_SHARE = 0.8
"""Share of a GPU's free memory that the regions may use."""


class AnswerLoss(nn.Module):
    """The trained model and its loss on reference answers."""

    def __init__(self, answerer: AnswererModel) -> None:
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
        """The sum over the real questions of a `QuestionBatch` and all answers; their number."""
        logits = self.answerer(words, word_mask, features, boxes, mask).float()
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
        return losses.masked_fill(~real, 0.0).sum(), real.sum()


class AnsweringPhase(Phase):
    """Training on reference answers."""

    name = ANSWERING
    unit = "questions"

    def __init__(
        self,
        module: AnswerLoss,
        config: AnswerPhaseConfig,
        held: HeldQuestions,
        size: int,
        fabric: Fabric,
        seed: int,
        *,
        static: bool,
    ) -> None:
        """Holds the parts.

        Args:
            module: The model and its loss.
            config: The phase.
            held: The training data.
            size: The number of questions.
            fabric: The processes.
            seed: Seed of the order.
            static: Whether all batches have one shape.
        """
        super().__init__(config, module, size)
        self._held, self._fabric, self._seed = held, fabric, seed
        self._share = -(-config.batch_size // fabric.world_size) if static else None

    def batches(self, epoch: int, position: int) -> Iterator[QuestionBatch]:
        size = self.config.batch_size
        for draw in sample_epoch(self._fabric, self._seed, self.size, size, epoch, position):
            yield self._held.batch(draw.indices, size=self._share)

    def prepare(self, batch: QuestionBatch, step: int) -> tuple[Inputs, Tensor]:
        device = self._fabric.device
        batch = batch.to(device, non_blocking=True)
        inputs = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return inputs, torch.zeros(0, dtype=torch.double, device=device)


class AnswerValidation:
    """Answers the questions of a split, and scores the answers."""

    def __init__(
        self,
        eval_model: AnswererModel,
        questions: QuestionSet,
        held: HeldQuestions,
        fabric: Fabric,
        stop: Event,
        batch_size: int,
    ) -> None:
        """Holds the parts.

        Args:
            eval_model: The model, whose weights may change from call to call.
            questions: The split.
            held: The same, as the batches are read from it.
            fabric: The processes, which share the work.
            stop: Set to ask for a stop.
            batch_size: Questions in a batch.
        """
        self._model, self._questions, self._held = eval_model, questions, held
        self._fabric, self._stop, self._batch_size = fabric, stop, batch_size
        self._asked = {question.id: question for question in questions.questions}

    def __call__(self) -> dict[str, float]:
        """The official accuracy, overall and by type of answer, 0 to 100."""
        with self._fabric.autocast():
            mine = best_answers(
                self._model,
                self._questions,
                places=share_of(self._fabric, len(self._questions)),
                held=self._held,
                batch_size=self._batch_size,
                on_batch=self._check_stop,
            )
        answers: dict[str, str] = {}
        for part in gather(self._fabric, mine):
            answers |= part
        return score_answers(answers, self._asked).percent()

    def _check_stop(self, done: int) -> None:
        if self._stop.is_set():
            raise StoppedError


class AnsweringTask(Task):
    """Training of an answerer; see `Task`."""

    free = ("data.folder", "data.word_vectors", "validation.batch_size")
    config: AnsweringConfig
    train: QuestionSet
    val: QuestionSet

    def __init__(
        self,
        fabric: Fabric,
        config: AnsweringConfig,
        output: Path,
        *,
        fresh: bool,
        datasets: tuple[QuestionSet, QuestionSet] | None = None,
    ) -> None:
        train, val = datasets or _open(fabric, config, output, fresh=fresh)
        super().__init__(fabric, train, val, config.validation.metric)
        self.config = dataclasses.replace(config, model=_fit_sizes(config.model, train))
        self.companions = {"vocabulary": train.words, "answers": train.answers}

    def build(self, *, fresh: bool) -> AnswererModel:
        torch.manual_seed(self.config.seed)
        answerer = build_answerer(self.config.model)
        path = self.config.data.word_vectors
        if path and fresh:
            words = self.train.words.words
            vectors, found = read_vectors(path, words, self.config.model.word_dim)
            places = np.flatnonzero(found) + 1  # the first id is padding
            with torch.no_grad():
                answerer.question.embed.weight[places] = torch.from_numpy(vectors[found])
        return answerer

    def setup(self, model: nn.Module, stop: Event) -> TrainingSetup:
        assert isinstance(model, AnswererModel)
        config, fabric, device = self.config, self.fabric, self.fabric.device
        eval_model = copy.deepcopy(model).eval().requires_grad_(False)
        train, val = (_hold(data, device, config.runtime.data) for data in (self.train, self.val))

        def phase() -> Phase:
            return AnsweringPhase(
                AnswerLoss(model),
                config.training,
                train,
                len(self.train),
                fabric,
                config.seed,
                static=is_compiled(config.runtime, device),
            )

        batch = config.validation.batch_size
        validate = AnswerValidation(eval_model, self.val, val, fabric, stop, batch)
        return TrainingSetup(eval_model=eval_model, phases=[phase], validate=validate)

    def describe(self) -> dict[str, Any]:
        model, phase, count = self.config.model, self.config.training, len(self.train)
        named = (name for name, keys in ANSWERERS.items() if keys.items() <= vars(model).items())
        steps = -(-count // phase.batch_size)
        return {
            "model": next(named, "answerer"),
            "questions": count,
            "validation_questions": len(self.val),
            "answers": model.answers,
            "phases": [{"phase": ANSWERING, "epochs": phase.epochs, "steps": steps}],
        }


def _open(
    fabric: Fabric, config: AnsweringConfig, output: Path, *, fresh: bool
) -> tuple[QuestionSet, QuestionSet]:
    """The training and validation splits."""
    data = config.data
    scenes = None
    if data.scenes is not None:
        write = partial(_write_scenes, data)
        scenes = place_scenes(fabric, output, last=ANSWERS, fresh=fresh, write=write)
    folder = data_folder(data, scenes, "ngsan data questions")
    options: dict[str, Any] = {
        "max_length": config.model.max_length,
        "regions": config.model.regions != "none",
        "skip_missing": data.skip_missing,
    }
    return (
        QuestionSet(folder, data.train_split, **options),
        QuestionSet(folder, data.val_split, **options),
    )


def _write_scenes(data: AnswerDataConfig, folder: Path) -> None:
    scenes = data.scenes
    assert scenes is not None
    write_question_scenes(
        folder,
        {data.train_split: scenes.train, data.val_split: scenes.test},
        min_objects=scenes.min_objects,
        max_objects=scenes.max_objects,
        seed=scenes.seed,
    )


def _fit_sizes(model: AnswererConfig, data: QuestionSet) -> AnswererConfig:
    """The configuration with the sizes of the dataset; a `ValueError` if it has others."""
    needed: dict[str, Any] = {
        "vocab_size": len(data.words),
        "answers": len(data.answers.words),
        "feature_dim": data.feature_dim,
        "features": "" if data.store is None else data.store.source,
    }
    for key, value in needed.items():
        if getattr(model, key) not in (type(value)(), value):
            raise ValueError(
                f"model.{key}: {getattr(model, key)!r} does not fit {data.folder}, which has "
                f"{value!r}; remove the key"
            )
    if model.geometry != "none":
        if not data.has_boxes:
            raise ValueError(
                f"model.geometry: {model.geometry} needs boxes, and the features of {data.folder} "
                "have none: --model.geometry none"
            )
        first = data.batch([0])
        assert first.boxes is not None
        check_boxes(first.boxes, first.mask)
    return dataclasses.replace(model, **needed)


def _hold(
    data: QuestionSet, device: torch.device, where: Literal["auto", "device", "host"]
) -> HeldQuestions:
    """The questions in the device's memory, or in the memory-mapped store."""
    if where == "auto":
        fits = device.type == "cuda" and (
            data.held_bytes <= _MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
        )
        where = "device" if fits else "host"
    return ResidentQuestions(data, device) if where == "device" else data
