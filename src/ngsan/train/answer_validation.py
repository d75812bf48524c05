"""How good a model answers, on a split that it does not learn from."""

import dataclasses
import time
from threading import Event

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from ngsan.data.question_set import QuestionBatch, QuestionSet
from ngsan.data.resident_questions import ResidentQuestions
from ngsan.metrics.vqa import score_answers
from ngsan.models.answerer import Answerer
from ngsan.train.machine import StoppedError
from ngsan.train.step import Inputs

Held = QuestionSet | ResidentQuestions
"""Where batches are cut from."""


class AnswerValidation:
    """Answers the questions of a split, and scores the answers."""

    def __init__(
        self,
        writer: Answerer,
        questions: QuestionSet,
        held: Held,
        fabric: Fabric,
        stop: Event,
        batch_size: int,
    ) -> None:
        """Takes the parts.

        Args:
            writer: The model, whose weights may change from call to call.
            questions: The split.
            held: The same, where batches are cut from.
            fabric: The processes, which share the work.
            stop: Set to ask for a stop.
            batch_size: Questions at a time.
        """
        self._writer, self._questions, self._held = writer, questions, held
        self._fabric, self._stop, self._batch_size = fabric, stop, batch_size
        self._asked = {question.id: question for question in questions.questions}

    def __call__(self) -> tuple[dict[str, float], float]:
        """The official accuracy, overall and by type of answer, 0 to 100, and the seconds."""
        start = time.perf_counter()
        given = self._answers()
        if self._fabric.world_size > 1:
            parts: list[dict[str, str]] = [{} for _ in range(self._fabric.world_size)]
            torch.distributed.all_gather_object(parts, given)
            given = {name: text for part in parts for name, text in part.items()}
        scores = score_answers(given, self._asked)
        found = {"accuracy": scores.overall, **dict(sorted(scores.by_answer_type.items()))}
        metrics = {name: 100 * value for name, value in found.items() if name}
        return metrics, time.perf_counter() - start

    def _answers(self) -> dict[str, str]:
        """The best answers of this process's share of the questions, by question."""
        shares = np.array_split(np.arange(len(self._questions)), self._fabric.world_size)
        with self._fabric.autocast():
            return best_answers(
                self._writer,
                self._questions,
                self._held,
                shares[self._fabric.global_rank],
                self._fabric.device,
                batch_size=self._batch_size,
                stop=self._stop,
            )


@torch.no_grad()
def best_answers(
    answerer: Answerer,
    questions: QuestionSet,
    held: Held,
    places: NDArray[np.int64],
    device: torch.device,
    *,
    batch_size: int = 512,
    stop: Event | None = None,
) -> dict[str, str]:
    """The best answer to each of some questions, by the question's id.

    Args:
        answerer: The model, in evaluation mode.
        questions: The questions.
        held: The same, where batches are cut from.
        places: Which of them.
        device: Where the model is.
        batch_size: Questions at a time.
        stop: Set to ask for a stop.

    Raises:
        StoppedError: It was asked to stop.
    """
    answers = questions.answers.words
    given: dict[str, str] = {}
    for start in range(0, len(places), batch_size):
        if stop is not None and stop.is_set():
            raise StoppedError
        mine = places[start : start + batch_size]
        inputs = dict(on_device(held.batch(mine), device))
        for name in ("targets", "real"):
            del inputs[name]
        best = answerer(**inputs).argmax(1).tolist()
        for place, answer in zip(mine, best, strict=True):
            given[questions.questions[place].id] = answers[answer]
    return given


def on_device(batch: QuestionBatch, device: torch.device) -> Inputs:
    """The fields of a batch by name, on a device."""
    fields = (item.name for item in dataclasses.fields(batch))
    tensors = {name: getattr(batch, name) for name in fields}
    return {
        name: None if tensor is None else tensor.to(device, non_blocking=True)
        for name, tensor in tensors.items()
    }
