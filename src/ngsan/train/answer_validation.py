"""How well a model answers, on a split that it does not learn from."""

import time
from threading import Event

import numpy as np
import torch
from lightning_fabric import Fabric

from ngsan.data.question_set import QuestionSet
from ngsan.data.resident_questions import HeldQuestions
from ngsan.evaluate import best_answers
from ngsan.metrics.vqa import score_answers
from ngsan.models.answerer import Answerer
from ngsan.train.machine import StoppedError


class AnswerValidation:
    """Answers the questions of a split, and scores the answers."""

    def __init__(
        self,
        writer: Answerer,
        questions: QuestionSet,
        held: HeldQuestions,
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
        return scores.percent(), time.perf_counter() - start

    def _answers(self) -> dict[str, str]:
        """The best answers of this process's share of the questions, by question."""
        shares = np.array_split(np.arange(len(self._questions)), self._fabric.world_size)
        with self._fabric.autocast():
            return best_answers(
                self._writer,
                self._questions,
                places=shares[self._fabric.global_rank],
                held=self._held,
                batch_size=self._batch_size,
                on_batch=self._look,
            )

    def _look(self, done: int) -> None:
        if self._stop.is_set():
            raise StoppedError
