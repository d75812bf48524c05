"""One split of questions as tensors, with the regions of the images that they ask about.

Shapes: `B` questions of a batch, `Q` of the split, `M` images, `R` regions of all of them, `N`
regions of an image at most, `T` words, `A` answers, `K` answers that people gave a question at
most, `d` feature width.
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

from ngsan.data.dataset import features_origin
from ngsan.data.questions import ANSWERS, WORDS, Question, read_questions
from ngsan.data.store import FeatureStore, Regions
from ngsan.text.answers import agreement, compared_answers, normalize_answer
from ngsan.text.asked import LONGEST, AskedWords
from ngsan.text.vocabulary import BOUNDARY, Vocabulary

_NAMED = 5


@dataclass(frozen=True)
class QuestionBatch:
    """Some questions, padded."""

    words: Tensor
    """(B, T) word ids."""

    word_mask: Tensor
    """(B, T) boolean, True = a real word."""

    features: Tensor | None
    """(B, N, d) the regions of each question's image; None for a set without regions."""

    boxes: Tensor | None
    """(B, N, 4) `cxcywh` relative to the image; None where regions have no place."""

    mask: Tensor | None
    """(B, N) boolean, True = a real region."""

    targets: Tensor
    """(B, A) the accuracy of every answer, from 0 to 1."""

    real: Tensor
    """(B,) boolean, False for questions that only fill the batch up."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "QuestionBatch":
        """The batch on a device."""

        def moved(part: Any) -> Any:
            return None if part is None else part.to(device, non_blocking=non_blocking)

        return QuestionBatch(*(moved(getattr(self, field.name)) for field in fields(self)))


class QuestionSet:
    """The questions of one split.

    Attributes:
        folder: The dataset folder.
        split: The split's name.
        questions: The questions, in the order of their file.
        words: The folder's words.
        answers: The answers to choose from.
        store: The folder's features; None for a set without regions.
        missing: Questions that were left out for want of their image's features.
        images: The M images.
        image_of: (Q,) the place of each question's image among them.
        asked: (Q, T) the words of each question.
        graded: (Q, K) answers with an accuracy above zero, -1 for none.
        grades: (Q, K) their accuracies.
        region_counts: (M,) regions of each image.
        signature: Changes whenever a question, an answer, the words or a feature does.
        origin: Changes as the signature does, but for the features' bytes: it knows them by
            `features_origin`.
    """

    def __init__(
        self,
        folder: str | Path,
        split: str,
        *,
        longest: int = LONGEST,
        regions: bool = True,
        skip_missing: bool = False,
        answered: bool = True,
        words: Vocabulary | None = None,
        answers: Vocabulary | None = None,
    ) -> None:
        """Opens a split.

        Args:
            folder: The dataset folder, as `ngsan data questions` and `ngsan extract` make it.
            split: Such as "train".
            longest: T.
            regions: Whether the regions of the images are wanted.
            skip_missing: Whether to leave out questions about images without features.
            answered: Whether questions that nobody answered are refused.
            words: In place of the folder's, such as those of a model.
            answers: Likewise.

        Raises:
            ValueError: Something is missing or damaged, or the split has no questions.
        """
        self.folder, self.split = Path(folder), split
        self.words = words or Vocabulary.load(self.folder / WORDS)
        self.answers = answers or Vocabulary.load(self.folder / ANSWERS)
        self.longest = longest
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
        self.asked = AskedWords(self.words, longest).encode(texts)
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
                f"{len(lost)} of {len(images)} images that are asked about in the split "
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
        """d; 0 for a set without regions."""
        return 0 if self.store is None else self.store.feature_dim

    @property
    def has_boxes(self) -> bool:
        """Whether regions have boxes."""
        return self.store is not None and self.store.has_boxes

    @property
    def held_bytes(self) -> int:
        """Bytes that the set takes in the memory of a device."""
        rows = int(self.region_counts.sum())
        return rows * (2 * self.feature_dim + 16) + self.asked.nbytes + 2 * self.grades.nbytes

    def __len__(self) -> int:
        """Q."""
        return len(self.questions)

    def batch(
        self, indices: Sequence[int] | NDArray[Any], *, size: int | None = None
    ) -> QuestionBatch:
        """Some questions as a batch, read from the store.

        Args:
            indices: Their places.
            size: Questions to fill the batch up to; what fills it is not `real`.
        """
        chosen, real = filled(indices, size)
        images = self.image_of[chosen]
        features = boxes = mask = None
        if self.store is not None:
            found = [self.store[self.images[image]] for image in images]
            features, boxes, mask = _padded(found, int(self.region_counts.max()))
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
    """Answers that are known of each question, (Q, K), -1 for none, and their accuracies."""
    # A model's answer is normalised before it is compared, unless all people agree.
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
    """(B, A) from (B, K) answers, -1 for none, and accuracies."""
    # Places of no answer add zero to the first.
    wide = torch.zeros(len(graded), answers, device=graded.device)
    return wide.scatter_add_(1, graded.long().clamp(min=0), grades)


def filled(
    indices: Sequence[int] | NDArray[Any], size: int | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Indices filled up to a size by repeating the last, and which are real."""
    given = np.asarray(indices, np.int64)
    count = max(len(given), size or 0, 1)
    real = np.arange(count) < len(given)
    if not len(given):
        return np.zeros(count, np.int64), real
    return np.pad(given, (0, count - len(given)), mode="edge"), real


def _padded(regions: Sequence[Regions], width: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """Features, boxes and mask of some images, padded to a width."""
    features = np.zeros((len(regions), width, regions[0].features.shape[1]), np.float32)
    boxes = np.zeros((len(regions), width, 4), np.float32)
    mask = np.zeros((len(regions), width), bool)
    for row, found in enumerate(regions):
        count = len(found.features)
        features[row, :count], mask[row, :count] = found.features, True
        if found.boxes is not None:
            boxes[row, :count] = found.boxes
    placed = None if regions[0].boxes is None else torch.from_numpy(boxes)
    return torch.from_numpy(features), placed, torch.from_numpy(mask)
