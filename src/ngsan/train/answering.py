"""The task of answering questions about images."""

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Literal

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config.answering import (
    ANSWERERS,
    AnswerDataConfig,
    AnswererConfig,
    AnswerRun,
)
from ngsan.config.phases import ANSWERING
from ngsan.data.question_set import QuestionSet
from ngsan.data.questions import ANSWERS
from ngsan.data.resident_questions import HeldQuestions, ResidentQuestions
from ngsan.data.synthetic.asking import write_question_scenes
from ngsan.data.word_vectors import read_vectors
from ngsan.models.answerer import Answerer
from ngsan.models.build_answerer import build_answerer
from ngsan.models.saved_answerer import read_answerer, save_answerer
from ngsan.nn.geometry import check_boxes
from ngsan.train.answer_validation import AnswerValidation
from ngsan.train.answering_phase import AnsweringPhase
from ngsan.train.log import Entry
from ngsan.train.machine import is_compiled
from ngsan.train.phases import Shuffle
from ngsan.train.scenes import place_scenes
from ngsan.train.task import Lesson, Phase

_SHARE = 0.8
"""Of a device's free memory, what the questions' regions may take."""


class AnsweringTask:
    """Learning to answer questions about images."""

    free: Sequence[str] = ("data.folder", "data.vectors", "validation.batch_size")

    def __init__(
        self,
        fabric: Fabric,
        config: AnswerRun,
        output: Path,
        *,
        fresh: bool,
        datasets: tuple[QuestionSet, QuestionSet] | None = None,
    ) -> None:
        """Opens what is learned from.

        Args:
            fabric: The processes.
            config: The run.
            output: Its folder, where built-in scenes are written.
            fresh: Whether the run has just begun.
            datasets: To learn from and to validate on, in the place of those that are configured.

        Raises:
            ValueError: There is no such dataset, or it is damaged.
            OSError: It cannot be read.
        """
        self._fabric = fabric
        self._learned, self._validated = datasets or _open(fabric, config, output, fresh=fresh)
        model = _fitted(config.model, self._learned)
        self.config: AnswerRun = dataclasses.replace(config, model=model)
        self.signatures: Mapping[str, str] = {
            "train": self._learned.signature,
            "validation": self._validated.signature,
        }
        self.metric: str = config.validation.metric

    def build(self, *, fresh: bool) -> Answerer:
        """See `Task.build`."""
        torch.manual_seed(self.config.seed)
        answerer = build_answerer(self.config.model)
        path = self.config.data.vectors
        if path and fresh:
            words = self._learned.words.words
            vectors, found = read_vectors(path, words, self.config.model.word_dim)
            places = np.flatnonzero(found) + 1  # the first id is padding
            with torch.no_grad():
                answerer.question.embed.weight[places] = torch.from_numpy(vectors[found])
        return answerer

    def teach(self, model: nn.Module, stop: Event) -> Lesson:
        """See `Task.teach`."""
        assert isinstance(model, Answerer)
        config, fabric, device = self.config, self._fabric, self._fabric.device
        writer = copy.deepcopy(model).eval().requires_grad_(False)
        compiled, where = is_compiled(config.machine, device), config.machine.data
        learned, validated = (
            _hold(data, device, where) for data in (self._learned, self._validated)
        )
        shuffle = Shuffle(config.seed, fabric.global_rank, fabric.world_size)

        def answering() -> Phase:
            count = len(self._learned)
            return AnsweringPhase(
                model, config.learning, learned, count, shuffle, device, static=compiled
            )

        batch = config.validation.batch_size
        validate = AnswerValidation(writer, self._validated, validated, fabric, stop, batch)
        return Lesson(writer=writer, phases=[answering], validate=validate)

    def save(
        self,
        folder: Path,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        metrics: Mapping[str, Any],
    ) -> None:
        """See `Task.save`."""
        save_answerer(
            folder,
            weights,
            self.config.model,
            self._learned.words,
            self._learned.answers,
            run=self.config,
            metrics=metrics,
        )

    def load(self, folder: Path) -> dict[str, Tensor]:
        """See `Task.load`."""
        return read_answerer(folder).tensors

    def about(self, model: nn.Module) -> Entry:
        """See `Task.about`."""
        config, count = self.config, len(self._learned)
        names = {tuple(keys.values()): name for name, keys in ANSWERERS.items()}
        return {
            "model": names.get((config.model.regions, config.model.geometry), "answerer"),
            "questions": count,
            "validation_questions": len(self._validated),
            "answers": self.config.model.answers,
            "phases": [
                {
                    "phase": ANSWERING,
                    "epochs": config.learning.epochs,
                    "steps": math.ceil(count / config.learning.batch_size),
                }
            ],
        }


def _open(
    fabric: Fabric, config: AnswerRun, output: Path, *, fresh: bool
) -> tuple[QuestionSet, QuestionSet]:
    """The splits to learn from and to validate on."""
    data = config.data
    folder = Path(data.folder)
    if data.scenes is not None:
        write = partial(_write_scenes, data)
        folder = place_scenes(fabric, output, last=ANSWERS, fresh=fresh, write=write)
    elif not data.folder:
        raise ValueError(
            "data.folder: say which questions to learn from, as ngsan data questions makes them: "
            "--data.folder DIR"
        )
    if not folder.is_dir():
        raise FileNotFoundError(f"data.folder: there is no folder {folder}")
    options: dict[str, Any] = {
        "longest": config.model.longest,
        "regions": config.model.regions != "none",
        "skip_missing": data.skip_missing,
    }
    return (
        QuestionSet(folder, data.train, **options),
        QuestionSet(folder, data.validation, **options),
    )


def _write_scenes(data: AnswerDataConfig, folder: Path) -> None:
    scenes = data.scenes
    assert scenes is not None
    sizes = {data.train: scenes.train, data.validation: scenes.test}
    write_question_scenes(folder, sizes, fewest=scenes.fewest, most=scenes.most, seed=scenes.seed)


def _fitted(model: AnswererConfig, data: QuestionSet) -> AnswererConfig:
    """The configuration with what the dataset decides.

    Raises:
        ValueError: It says something else.
    """
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
                f"{value!r}: leave it out"
            )
    if model.geometry != "none" and not data.has_boxes:
        raise ValueError(
            f"model.geometry: {model.geometry} needs boxes, and the features of {data.folder} "
            "have none: --model.geometry none"
        )
    if model.geometry != "none":
        first = data.batch([0])
        assert first.boxes is not None
        check_boxes(first.boxes, first.mask)
    return dataclasses.replace(model, **needed)


def _hold(
    data: QuestionSet, device: torch.device, where: Literal["auto", "device", "host"]
) -> HeldQuestions:
    """The questions where batches are cut from: the device's memory, or the mapped store."""
    if where == "auto":
        fits = device.type == "cuda" and (
            data.held_bytes <= _SHARE * torch.cuda.mem_get_info(device)[0]
        )
        where = "device" if fits else "host"
    return ResidentQuestions(data, device) if where == "device" else data
