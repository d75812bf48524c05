"""From a photograph and a question to answers: the whole face of a model that answers.

Shapes: `N` regions, `T` words.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ngsan.models.photo_source import photo_source
from ngsan.models.saved_answerer import SavedAnswerer, load_answerer
from ngsan.predict.models import best_device
from ngsan.text.asked import AskedWords
from ngsan.text.vocabulary import BOUNDARY
from ngsan.vision.images import ImageSource, open_image
from ngsan.vision.sources import RegionSource

PACKAGE = Path(__file__).parents[1]

SHIPPED = PACKAGE / "shipped" / "vqa"
"""Where a model that comes with the package is."""

PHOTO_MODEL = PACKAGE / "shipped" / "coco"
"""The captioner whose backbone describes photographs, unless told otherwise."""


@dataclass(frozen=True)
class Answer:
    """An answer, and what the model thinks of it."""

    text: str
    """The answer."""

    probability: float
    """How sure the model is that people would give it. Several answers may be right, so these do
    not add up to one."""


@dataclass(frozen=True)
class Answers:
    """What a model says to a question."""

    question: str
    """The question."""

    answers: tuple[Answer, ...]
    """The best answers, the best first."""

    words: tuple[tuple[str, float], ...]
    """The words of the question as the model read them, and how much each counted."""

    unknown: tuple[str, ...]
    """Those of them that the model does not know."""

    regions: NDArray[np.float32] | None
    """(N,) how much each region counted; they add up to one. None for a model that sees none."""

    boxes: NDArray[np.float32] | None
    """(N, 4) where the regions are: `cxcywh`, relative to the image."""

    unread: int = 0
    """Words at the question's end that were not read, as it is longer than the model allows."""


class QuestionAnswerer:
    """Answers questions about photographs, or about regions."""

    def __init__(
        self,
        saved: SavedAnswerer,
        source: RegionSource | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """Takes the parts.

        Args:
            saved: The model and what belongs to it.
            source: What makes regions of photographs; None for a model that is given regions.
            device: Where the model runs.

        Raises:
            ValueError: The source is not the one whose regions the model has learned from.
        """
        config = saved.config
        if source is not None and config.features != (made := f"extract {source.signature}"):
            mend = "name the captioner whose backbone made them"
            if not config.features.startswith("extract "):
                mend = "it cannot look at photographs, but `ngsan evaluate` takes such regions"
            raise ValueError(
                f"the model has learned from regions of another source ({config.features!r}, not "
                f"{made!r}): {mend}"
            )
        self.config, self.answers = config, saved.answers
        self._words, self._source = AskedWords(saved.words, config.longest), source
        self._device = torch.device(device)
        self._model = saved.answerer.to(self._device).eval().requires_grad_(False)

    @classmethod
    def load(
        cls,
        folder: str | Path | None = None,
        *,
        photo_model: str | Path | None = None,
        device: str = "cpu",
    ) -> "QuestionAnswerer":
        """Opens a model.

        Args:
            folder: What `ngsan train` wrote; None for the model that comes with the package.
            photo_model: The captioner whose backbone made the regions that it has learned from;
                None for the one that comes with the package.
            device: Such as "cuda", or "auto" for a GPU if there is one.

        Raises:
            ValueError: There is no such model, it is for another task, or it has learned from
                other regions.
        """
        path = SHIPPED if folder is None else Path(folder)
        if folder is None and not path.is_dir():
            raise ValueError(
                "this installation comes without a model that answers questions: train one, as "
                "docs/vqa.md tells, and name its folder"
            )
        saved, where = load_answerer(path), best_device(device)
        sees = saved.config.regions != "none"
        source = photo_source(photo_model or PHOTO_MODEL, where) if sees else None
        return cls(saved, source, where)

    def answer(self, image: ImageSource | None, question: str, *, count: int = 5) -> Answers:
        """Answers a question about a photograph.

        Args:
            image: A path, a Pillow image, an array or the bytes of a file; not looked at by a
                model that answers from the question alone.
            question: The question.
            count: Answers to give.

        Raises:
            ValueError: The image cannot be read, the question has no words, or count is below 1.
        """
        if self.config.regions == "none":
            return self.answer_regions(None, None, question, count=count)
        if self._source is None or image is None:
            raise ValueError("to answer about photographs takes a source of regions and an image")
        self._check(question, count)
        picture = self._source.prepare(open_image(image, near=self._source.near))
        (found,) = self._source.regions([picture])
        # As a store keeps them, which the model has learned from.
        features = np.asarray(found.features, np.float16)
        return self.answer_regions(features, found.boxes, question, count=count)

    @torch.inference_mode()
    def answer_regions(
        self,
        features: NDArray[Any] | None,
        boxes: NDArray[Any] | None,
        question: str,
        *,
        count: int = 5,
    ) -> Answers:
        """Answers a question about the regions of an image.

        Args:
            features: (N, d), or None for a model that answers from the question alone.
            boxes: (N, 4) `cxcywh` relative to the image; None if the model needs none.
            question: The question.
            count: Answers to give.

        Raises:
            ValueError: As in `answer`, or the regions do not fit the model.
        """
        self._check(question, count)
        ids = torch.from_numpy(self._words.encode([question])).long().to(self._device)
        given = self._model.answer(
            ids, ids != BOUNDARY, self._tensor(features), self._tensor(boxes)
        )
        chances = given.logits[0].float().sigmoid()
        best = chances.topk(min(count, len(chances)))
        words = self._words.words(question)
        weights = given.words[0].tolist()
        return Answers(
            question,
            tuple(
                Answer(self.answers.words[place], chance)
                for place, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ),
            tuple(zip(words, weights, strict=False)),
            tuple(word for word in words if word not in self._words.vocabulary),
            None if given.regions is None else given.regions[0].float().cpu().numpy(),
            None if boxes is None else np.asarray(boxes, np.float32),
            len(self._words.vocabulary.tokenize(question)) - len(words),
        )

    def _check(self, question: str, count: int) -> None:
        if count < 1:
            raise ValueError(f"count: {count} is not at least 1")
        if not self._words.vocabulary.tokenize(question):
            raise ValueError(f"question: {question!r} has no words")

    def _tensor(self, values: NDArray[Any] | None) -> torch.Tensor | None:
        if values is None:
            return None
        return torch.from_numpy(np.array(values, np.float32)).to(self._device)[None]
