"""Questions held wholly in the memory of a device, from which batches of one shape are cut there.

Shapes: `B` questions of a batch, `R` regions of all images, `N` regions of an image at most, `d`
feature width.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.data.question_set import QuestionBatch, QuestionSet, dense, filled
from ngsan.text.vocabulary import BOUNDARY

_CHUNK = 256


class ResidentQuestions:
    """A set of questions in the memory of a device, from which batches of one shape are cut."""

    def __init__(self, questions: QuestionSet, device: torch.device | str) -> None:
        """Copies the set to the device."""
        self.questions, self.device = questions, torch.device(device)
        self._words = torch.from_numpy(questions.asked).to(self.device)
        self._graded = torch.from_numpy(questions.graded).to(self.device)
        self._grades = torch.from_numpy(questions.grades).to(self.device)
        self._image_of = torch.from_numpy(questions.image_of).to(self.device)
        counts = questions.region_counts
        self._counts = torch.from_numpy(counts).to(self.device)
        self._starts = torch.from_numpy(np.cumsum(counts) - counts).to(self.device)
        self._width = int(counts.max(initial=0))
        self._features, self._boxes = self._load(int(counts.sum()))

    def _load(self, total: int) -> tuple[Tensor | None, Tensor | None]:
        """All features (R, d) in the store's float16 and, if it has them, all boxes (R, 4)."""
        store, images = self.questions.store, self.questions.images
        if store is None:
            return None, None
        features = torch.empty(total, store.feature_dim, dtype=torch.float16, device=self.device)
        boxes = torch.empty(total, 4, device=self.device) if store.has_boxes else None
        done = 0
        for start in range(0, len(images), _CHUNK):
            chunk = [store[image] for image in images[start : start + _CHUNK]]
            here = slice(done, done + sum(len(item.features) for item in chunk))
            features[here] = torch.from_numpy(np.concatenate([item.features for item in chunk]))
            if boxes is not None:
                placed = [item.boxes for item in chunk if item.boxes is not None]
                boxes[here] = torch.from_numpy(np.concatenate(placed))
            done = here.stop
        return features, boxes

    def batch(
        self, indices: Sequence[int] | NDArray[Any], *, size: int | None = None
    ) -> QuestionBatch:
        """See `QuestionSet.batch`; nothing waits for the device."""
        chosen, real = (self._upload(part) for part in filled(indices, size))
        words = self._words[chosen].long()
        targets = dense(
            self._graded[chosen], self._grades[chosen], len(self.questions.answers.words)
        )
        found = self._regions(self._image_of[chosen].unsqueeze(1))
        return QuestionBatch(words, words != BOUNDARY, *found, targets, real)

    def _regions(self, images: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Features, boxes and mask of images (B, 1)."""
        if self._features is None:
            return None, None, None
        places = torch.arange(self._width, device=self.device)
        mask = places < self._counts[images]  # (B, N)
        held = torch.where(mask, self._starts[images] + places, 0)
        padding = ~mask.unsqueeze(-1)
        features = self._features[held].masked_fill_(padding, 0).float()
        boxes = None if self._boxes is None else self._boxes[held].masked_fill_(padding, 0)
        return features, boxes, mask

    def _upload(self, numbers: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(numbers)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)
