"""Questions held wholly in the memory of a device, from which batches of one shape are cut there.

Shapes: `B` questions of a batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.data.question_set import QuestionBatch, QuestionSet, dense, filled
from ngsan.data.resident_regions import ResidentRegions, upload
from ngsan.text.vocabulary import BOUNDARY


class ResidentQuestions:
    """A set of questions in the memory of a device, from which batches of one shape are cut."""

    def __init__(self, questions: QuestionSet, device: torch.device | str) -> None:
        """Copies the set to the device."""
        self.questions, self.device = questions, torch.device(device)
        self._words = torch.from_numpy(questions.asked).to(self.device)
        self._graded = torch.from_numpy(questions.graded).to(self.device)
        self._grades = torch.from_numpy(questions.grades).to(self.device)
        self._image_of = torch.from_numpy(questions.image_of).to(self.device)
        self._width, self._seen = int(questions.region_counts.max(initial=0)), None
        if questions.store is not None:
            self._seen = ResidentRegions(
                questions.store,
                questions.images,
                questions.region_counts,
                self.device,
                dtype=torch.float32,
            )

    def batch(
        self, indices: Sequence[int] | NDArray[Any], *, size: int | None = None
    ) -> QuestionBatch:
        """See `QuestionSet.batch`; nothing waits for the device."""
        chosen, real = (upload(part, self.device) for part in filled(indices, size))
        words = self._words[chosen].long()
        targets = dense(
            self._graded[chosen], self._grades[chosen], len(self.questions.answers.words)
        )
        seen: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
        if self._seen is not None:
            seen = self._seen.gather(self._image_of[chosen].unsqueeze(1), self._width)
        return QuestionBatch(words, words != BOUNDARY, *seen, targets, real)


HeldQuestions = QuestionSet | ResidentQuestions
"""Where batches are cut from: the mapped store, or a device's memory."""
