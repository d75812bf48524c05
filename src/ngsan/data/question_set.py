"""One split of questions as tensors, with the regions of their images.

Shapes: `B` questions of a batch, `Q` of the split, `M` images, `N` regions of an image at most, `T`
words, `A` answers, `K` human answers of a question at most, `d` feature width.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.data.batch import pad_regions
from ngsan.data.dataset import features_origin
from ngsan.data.questions import ANSWERS, WORDS, Question, read_questions
from ngsan.data.resident import ResidentRegions, upload
from ngsan.data.store import FeatureStore
from ngsan.text.answers import agreement, compared_answers, normalize_answer
from ngsan.text.vocabulary import BOUNDARY, MAX_QUESTION_LENGTH, QuestionEncoder, Vocabulary

_NAMED = 5


@dataclass(frozen=True)
class QuestionBatch:
    """Some questions, padded."""

    words: Tensor
    """(B, T) word ids."""

    word_mask: Tensor
    """(B, T) boolean, True = a real word."""

    features: Tensor | None
    """(B, N, d) the regions of each question's image; None without regions."""

    boxes: Tensor | None
    """(B, N, 4) `cxcywh` relative to the image; None for regions without a place."""

    mask: Tensor | None
    """(B, N) boolean, True = a real region."""

    targets: Tensor
    """(B, A) the accuracy of every answer, from 0 to 1."""

    real: Tensor
    """(B,) boolean, False for questions that only fill up the batch."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "QuestionBatch":
        """The batch on a device."""

        def moved(part: Any) -> Any:
            return None if part is None else part.to(device, non_blocking=non_blocking)

        return QuestionBatch(*(moved(getattr(self, field.name)) for field in fields(self)))


class QuestionSet:
    """The questions of one split.

    Args:
        folder: The dataset folder, as `ngsan data questions` and `ngsan extract` write it.
        split: Such as "train".
        max_length: T.
        regions: Whether to use the regions of the images.
        skip_missing: Whether to skip questions about images without features.
        answered: Whether questions without answers are an error.
        words: Instead of the folder's, such as those of a model.
        answers: Likewise.

    Attributes:
        questions: The questions, in the order of their file.
        words: The vocabulary of the questions.
        answers: The answers to choose from.
        store: The folder's features; None for a set without regions.
        missing: Number of questions skipped because their image has no features.
        images: The M images.
        image_of: (Q,) the place of each question's image among them.
        asked: (Q, T) the words of each question.
        graded: (Q, K) answers with an accuracy above zero, -1 for none.
        grades: (Q, K) their accuracies.
        region_counts: (M,) regions of each image.
        signature: Changes with any question, answer, word or feature.
        origin: Like the signature, but with `features_origin` in place of the features' bytes.
    """

    def __init__(
        self,
        folder: str | Path,
        split: str,
        *,
        max_length: int = MAX_QUESTION_LENGTH,
        regions: bool = True,
        skip_missing: bool = False,
        answered: bool = True,
        words: Vocabulary | None = None,
        answers: Vocabulary | None = None,
    ) -> None:
        self.folder, self.split = Path(folder), split
        self.words = words or Vocabulary.load(self.folder / WORDS)
        self.answers = answers or Vocabulary.load(self.folder / ANSWERS)
        self.max_length = max_length
        self.store = FeatureStore(folder) if regions else None
        asked = [question for question in read_questions(folder) if question.split == split]
        if not asked:
            raise ValueError(f"{self.folder} has no questions in the split {split!r}")
        self.questions = self._with_features(asked, skip_missing=skip_missing)
        self.missing = len(asked) - len(self.questions)
        if answered:
            _require_answers(self.questions, split)
        places: dict[str, int] = {}
        numbers = [places.setdefault(question.image, len(places)) for question in self.questions]
        self.images = list(places)
        self.image_of = np.array(numbers, np.int64)
        self.region_counts = self._count_regions()
        texts = [question.question for question in self.questions]
        self.asked = QuestionEncoder(self.words, max_length).encode(texts)
        self.graded, self.grades = _targets(self.questions, self.answers)
        self.signature = self._sign("" if self.store is None else self.store.signature)
        self.origin = self._sign(
            "" if self.store is None else features_origin(self.store, self.region_counts)
        )

    def _with_features(self, asked: list[Question], *, skip_missing: bool) -> list[Question]:
        if self.store is None:
            return asked
        images = {question.image for question in asked}
        lost = sorted(image for image in images if image not in self.store)
        if not lost:
            return asked
        if not skip_missing or len(lost) == len(images):
            raise ValueError(
                f"{len(lost)} of {len(images)} images with questions in the split "
                f"{self.split!r} have no features in {self.folder}, such as "
                f"{', '.join(lost[:_NAMED])}: extract them, or set skip_missing"
            )
        gone = set(lost)
        return [question for question in asked if question.image not in gone]

    def _count_regions(self) -> NDArray[np.int64]:
        if self.store is None:
            return np.zeros(len(self.images), np.int64)
        counts = dict(zip(self.store.ids(), self.store.counts().tolist(), strict=True))
        return np.array([counts[image] for image in self.images], np.int64)

    def _sign(self, features: str) -> str:
        digest = hashlib.sha256()
        for question in self.questions:
            digest.update(repr((question.id, question.image, question.answers)).encode())
        digest.update(self.asked.tobytes())
        for part in (self.words.signature, self.answers.signature, features):
            digest.update(part.encode())
        return digest.hexdigest()[:16]

    @property
    def feature_dim(self) -> int:
        """d; 0 without regions."""
        return 0 if self.store is None else self.store.feature_dim

    @property
    def has_boxes(self) -> bool:
        """Whether regions have boxes."""
        return self.store is not None and self.store.has_boxes

    @property
    def held_bytes(self) -> int:
        """Bytes of the set in the memory of a device."""
        rows = int(self.region_counts.sum())
        return rows * (2 * self.feature_dim + 16) + self.asked.nbytes + 2 * self.grades.nbytes

    def __len__(self) -> int:
        """Q."""
        return len(self.questions)

    def batch(
        self, indices: Sequence[int] | NDArray[Any], *, size: int | None = None
    ) -> QuestionBatch:
        """Some questions as a batch, filled up to `size` with questions that are not `real`."""
        chosen, real = filled(indices, size)
        images = self.image_of[chosen]
        features = boxes = mask = None
        if self.store is not None:
            found = [self.store[self.images[image]] for image in images]
            features, boxes, mask = pad_regions(found, width=int(self.region_counts.max()))
        words = torch.from_numpy(self.asked[chosen]).long()
        graded, grades = (torch.from_numpy(t[chosen]) for t in (self.graded, self.grades))
        targets = dense(graded, grades, len(self.answers.words))
        return QuestionBatch(
            words, words != BOUNDARY, features, boxes, mask, targets, torch.from_numpy(real)
        )


def _require_answers(questions: Iterable[Question], split: str) -> None:
    silent = [question.id for question in questions if not question.answers]
    if silent:
        raise ValueError(
            f"{len(silent)} questions of the split {split!r} have no answers, such as "
            f"{silent[0]}: import them with their annotations"
        )


def _targets(
    questions: Sequence[Question], answers: Vocabulary
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Known answers of each question (Q, K), -1 for none, and their accuracies."""
    # A model's answer is normalised before it is compared, unless all human answers agree.
    same: dict[bool, dict[str, list[int]]] = {False: {}, True: {}}
    for number, text in enumerate(answers.words):
        same[False].setdefault(text, []).append(number)
        same[True].setdefault(normalize_answer(text), []).append(number)
    rows = []
    for question in questions:
        known, normal = compared_answers(question.answers)
        rows.append(
            [
                (place, agreement(count, len(known)))
                for text, count in Counter(known).items()
                for place in same[normal].get(text, ())
            ]
        )
    most = max(1, max(map(len, rows), default=0))
    graded = np.full((len(rows), most), -1, np.int32)
    grades = np.zeros((len(rows), most), np.float32)
    for number, row in enumerate(rows):
        for place, (answer, grade) in enumerate(row):
            graded[number, place], grades[number, place] = answer, grade
    return graded, grades


def dense(graded: Tensor, grades: Tensor, answers: int) -> Tensor:
    """Accuracies (B, A) from (B, K) answers, -1 for none, and their accuracies."""
    # Missing answers add zero to the first.
    wide = torch.zeros(len(graded), answers, device=graded.device)
    return wide.scatter_add_(1, graded.long().clamp(min=0), grades)


def filled(
    indices: Sequence[int] | NDArray[Any], size: int | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Indices filled up to `size` by repeating the last, and a mask of the real ones."""
    given = np.asarray(indices, np.int64)
    count = max(len(given), size or 0, 1)
    real = np.arange(count) < len(given)
    if not len(given):
        return np.zeros(count, np.int64), real
    return np.pad(given, (0, count - len(given)), mode="edge"), real


class ResidentQuestions:
    """A set of questions in the memory of a device, with batches of one shape."""

    def __init__(self, questions: QuestionSet, device: torch.device | str) -> None:
        self.questions, self.device = questions, torch.device(device)
        self._words, self._graded, self._grades, self._image_of = (
            torch.from_numpy(array).to(self.device)
            for array in (questions.asked, questions.graded, questions.grades, questions.image_of)
        )
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
"""Questions in the mapped store, or in a device's memory."""
