"""From a photograph and a question to answers, with ONNX Runtime or PyTorch.

Shapes: `Q` questions, `T` words, `N` regions, `F` width of their features, `A` answers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ngsan.config import AnswererConfig
from ngsan.predict.manifest import (
    ANSWERER,
    BACKBONE,
    SCALE,
    WEIGHTS,
    Made,
    Manifest,
    Provider,
    cell_boxes,
    needs_torch,
    open_graphs,
    read_weights,
    require_torch,
)
from ngsan.text.vocabulary import BOUNDARY, QuestionEncoder, Vocabulary
from ngsan.vision.decoding import shared_service
from ngsan.vision.images import ImageSource, to_square

if TYPE_CHECKING:
    from ngsan.models.answerer import AnswererModel
    from ngsan.vision.regions import RegionSource
    from ngsan.vision.sources import GridSource

Reals = NDArray[np.float32]

SHIPPED = Path(__file__).parents[1] / "shipped" / "vqa"
"""The answerer that comes with the package."""

PHOTO_MODEL = SHIPPED.parent / "coco"
"""The captioner whose backbone describes photographs by default."""

TASK = "answering"


@dataclass(frozen=True)
class Answer:
    """An answer and its probability."""

    text: str
    """The answer."""

    probability: float
    """How sure the model is that a person would give it. Several answers may be right, so these do
    not add up to one."""


@dataclass(frozen=True)
class Answers:
    """The answers to a question, and what counted."""

    question: str
    """The question."""

    answers: tuple[Answer, ...]
    """The best answers, the best first."""

    words: tuple[tuple[str, float], ...]
    """The words of the question as the model read them, and the weight of each."""

    unknown: tuple[str, ...]
    """Those that are not in the model's vocabulary."""

    regions: Reals | None
    """(N,) the weight of each region; they add up to one. None for a model without regions."""

    boxes: Reals | None
    """(N, 4) `cxcywh`, relative to the image."""

    unread: int = 0
    """Words at the end of the question that were cut off, as it is too long for the model."""

    def __str__(self) -> str:
        """The best answer."""
        return self.answers[0].text


class Scored(NamedTuple):
    """What a backend returns."""

    logits: Reals
    """(Q, A)."""

    words: Reals
    """(Q, T) the weight of each word."""

    regions: Reals | None
    """(Q, N) the weight of each region."""


class Backend(Protocol):
    """What runs a model: PyTorch or ONNX Runtime."""

    config: AnswererConfig
    words: Vocabulary
    """The words of questions."""

    answers: Vocabulary
    """The answers to choose from."""

    def score(
        self, words: NDArray[np.int64], features: Reals | None, boxes: Reals | None
    ) -> Scored:
        """Scores all answers.

        Args:
            words: (Q, T) ids, padded with `BOUNDARY`.
            features: (Q, N, F), or None for a model without regions.
            boxes: (Q, N, 4) `cxcywh`, or None for a model without geometry.
        """


class OnnxAnswerer:
    """An exported or packed model on ONNX Runtime."""

    def __init__(
        self,
        folder: Path,
        *,
        threads: int | None = None,
        providers: Sequence[Provider] | None = None,
    ) -> None:
        manifest = Manifest.load(folder, TASK)
        self.config: AnswererConfig = manifest.model
        self.words = manifest.words(folder / "vocabulary.json")
        self.answers: Vocabulary = manifest.companion(folder / "answers.json", Vocabulary.load)
        self._inputs = manifest.inputs[ANSWERER]
        self._outputs = manifest.outputs[ANSWERER]
        self._graph = open_graphs(folder, manifest, threads=threads, providers=providers)[ANSWERER]

    def score(
        self, words: NDArray[np.int64], features: Reals | None, boxes: Reals | None
    ) -> Scored:
        """See `Backend.score`."""
        given = {"words": words, "features": features, "boxes": boxes}
        found = self._graph.run(self._outputs, {name: given[name] for name in self._inputs})
        return Scored(*found, *[None] * (3 - len(found)))


class TorchAnswerer:
    """A model folder on PyTorch."""

    def __init__(
        self,
        model: "AnswererModel",
        config: AnswererConfig,
        words: Vocabulary,
        answers: Vocabulary,
        device: Any = "cpu",
    ) -> None:
        self.config, self.words, self.answers = config, words, answers
        self._device = device
        self._model = model.to(device).eval().requires_grad_(False)

    def score(
        self, words: NDArray[np.int64], features: Reals | None, boxes: Reals | None
    ) -> Scored:
        """See `Backend.score`."""
        import torch

        given = [
            None if part is None else torch.tensor(part, device=self._device)
            for part in (words, words != BOUNDARY, features, boxes)
        ]
        with torch.inference_mode():
            found = self._model.answer(*given)  # type: ignore[arg-type]
        return Scored(*(None if part is None else part.float().cpu().numpy() for part in found))  # type: ignore[arg-type]


class Answerer:
    """Answers questions about photographs or regions."""

    def __init__(self, backend: Backend, source: "RegionSource | None" = None) -> None:
        """Checks that the parts fit.

        Args:
            backend: The model.
            source: Makes regions of photographs; None for a model that is given regions.

        Raises:
            ValueError: The model was trained on regions of another source.
        """
        self.config = config = backend.config
        if source is not None and config.features != (made := f"extract {source.signature}"):
            fix = "pass the captioner whose backbone made them"
            if not config.features.startswith("extract "):
                fix = "it cannot read photographs, but `ngsan evaluate` takes such regions"
            raise ValueError(
                f"the model was trained on regions of another source ({config.features!r}, not "
                f"{made!r}): {fix}"
            )
        self._backend, self._source = backend, source
        self._words = QuestionEncoder(backend.words, config.max_length)

    def answer(self, image: ImageSource | None, question: str, *, num_return: int = 5) -> Answers:
        """Answers a question about a photograph.

        Args:
            image: A path, a Pillow image, an array or the bytes of a file; ignored by a model that
                answers from the question alone.
            question: The question.
            num_return: Number of answers.

        Raises:
            ValueError: The image cannot be read, the question has no words, or num_return is below
                1.
        """
        self._check(question, num_return)
        if self.config.regions == "none":
            return self.answer_regions(None, None, question, num_return=num_return)
        if self._source is None or image is None:
            raise ValueError("questions about photographs need an image and a source of regions")
        picture = self._source.prepare(
            shared_service().picture(image, min_side=self._source.min_side).image
        )
        (found,) = self._source.regions([picture])
        # In half precision, as the stores of the training data hold them.
        features = np.asarray(found.features, np.float16)
        return self.answer_regions(features, found.boxes, question, num_return=num_return)

    def answer_regions(
        self,
        features: NDArray[Any] | None,
        boxes: NDArray[Any] | None,
        question: str,
        *,
        num_return: int = 5,
    ) -> Answers:
        """Answers a question about the regions of an image.

        Args:
            features: (N, F), or None for a model that answers from the question alone.
            boxes: (N, 4) `cxcywh` relative to the image; None if the model needs none.
            question: The question.
            num_return: Number of answers.

        Raises:
            ValueError: As in `answer`, or the regions do not fit the model.
        """
        self._check(question, num_return)
        ids = self._words.encode([question]).astype(np.int64)
        seen, places = self._checked(features, boxes)
        given = self._backend.score(ids, _batch(seen), _batch(places))
        with np.errstate(over="ignore"):
            chances = 1 / (1 + np.exp(-given.logits[0]))
        best = np.argsort(-chances, kind="stable")[:num_return].tolist()
        words = self._words.words(question)
        return Answers(
            question,
            tuple(Answer(self._backend.answers.words[n], float(chances[n])) for n in best),
            tuple(zip(words, given.words[0].tolist(), strict=False)),
            tuple(word for word in words if word not in self._words.vocabulary),
            None if given.regions is None else given.regions[0],
            places,
            len(self._words.vocabulary.tokenize(question)) - len(words),
        )

    def _check(self, question: str, num_return: int) -> None:
        if num_return < 1:
            raise ValueError(f"num_return: {num_return} is not at least 1")
        if not self._words.vocabulary.tokenize(question):
            raise ValueError(f"question: {question!r} has no words")

    def _checked(
        self, features: NDArray[Any] | None, boxes: NDArray[Any] | None
    ) -> tuple[Reals | None, Reals | None]:
        """Regions in single precision, after what a graph would fail on with another message."""
        if self.config.regions == "none":
            return None, None
        if features is None:
            raise ValueError("this model needs the features of the regions")
        seen = np.asarray(features, np.float32)
        if seen.ndim != 2 or seen.shape[1] != self.config.feature_dim or not len(seen):
            raise ValueError(
                f"features must be (regions, {self.config.feature_dim}) with at least one region, "
                f"not {seen.shape}"
            )
        if boxes is None:
            if self.config.geometry != "none":
                raise ValueError("this model is geometry-aware: it needs the regions' boxes")
            return seen, None
        places = np.asarray(boxes, np.float32)
        if places.shape != (len(seen), 4):
            raise ValueError(f"boxes must be of shape {(len(seen), 4)}, not {places.shape}")
        return seen, places


def load_answerer(
    model: str | Path | None = None,
    *,
    device: str | None = None,
    threads: int | None = None,
    providers: Sequence[Provider] | None = None,
    photo_model: str | Path | None = None,
) -> Answerer:
    """Opens an answerer: the one that comes with the package, or one in a folder.

    Args:
        model: What `ngsan train`, `ngsan pack` or `ngsan export` wrote; None for the model that
            comes with the package.
        device: Where PyTorch runs it, such as "cuda", or "auto" for a GPU if there is one. None for
            the CPU, where packed and exported models run on ONNX Runtime.
        threads: Threads of ONNX Runtime; None for one a core.
        providers: Execution providers of ONNX Runtime, the preferred first.
        photo_model: The captioner whose backbone made the regions that the model was trained on;
            None for the one that comes with the package.

    Raises:
        ValueError: The model does not exist, is for another task, or it was trained on other
            regions.
    """
    folder = SHIPPED if model is None else Path(model)
    if model is None and not folder.is_dir():
        raise ValueError(
            "this installation has no answerer: train one (see docs/vqa.md) and pass its folder"
        )
    photos = PHOTO_MODEL if photo_model is None else Path(photo_model)
    backend: Backend
    if not needs_torch(folder, device):
        backend = OnnxAnswerer(folder, threads=threads, providers=providers)
    else:
        require_torch(folder, providers)
        backend = _torch_answerer(folder, device)
    if backend.config.regions == "none":
        return Answerer(backend)
    source: RegionSource
    if (photos / WEIGHTS).is_file() and not needs_torch(photos, device):
        source = OnnxCells(photos, threads=threads)
    else:
        source = photo_source(photos, device or "cpu")
    return Answerer(backend, source)


def photo_source(folder: str | Path, device: str = "cpu") -> "GridSource":
    """Opens the backbone of a captioner of photographs as a source of regions, on PyTorch.

    Raises:
        ValueError: The folder is not a model, or a model of regions.
    """
    require_torch(Path(folder))
    from ngsan.models import load_model
    from ngsan.predict.backend_torch import best_device
    from ngsan.vision.sources import GridSource

    captioner, config, _ = load_model(folder, "captioning")
    if config.backbone == "none":
        raise ValueError(f"{folder} is a model of regions: it has no backbone for photographs")
    return GridSource(captioner.encoder.backbone, best_device(device))


def _torch_answerer(folder: Path, device: str | None) -> TorchAnswerer:
    from ngsan.models import load_model
    from ngsan.predict.backend_torch import best_device

    model, config, companions = load_model(folder, TASK)
    words, answers = companions["vocabulary"], companions["answers"]
    return TorchAnswerer(model.float(), config, words, answers, best_device(device or "cpu"))


class OnnxCells:
    """The backbone of a packed captioner as a `RegionSource`, on ONNX Runtime."""

    def __init__(self, folder: Path, *, threads: int | None = None) -> None:
        manifest = Manifest.load(folder)
        config = manifest.model
        if config.backbone == "none":
            raise ValueError(f"{folder} is a model of regions: it has no backbone for photographs")
        boxes = cell_boxes(config.grid)
        weights = read_weights(manifest.content(folder / WEIGHTS))
        self.feature_dim: int = config.feature_dim
        self.min_side: int | None = 2 * config.image_size
        self.signature = (
            f"grid {config.backbone} {_backbone_hash(weights)}, {config.image_size} px, "
            f"{len(boxes)} cells x {config.feature_dim}"
        )
        self._size, self._boxes = config.image_size, boxes
        self._graph = open_graphs(folder, manifest, threads=threads, names=[BACKBONE])[BACKBONE]

    def prepare(self, image: Image.Image) -> Image.Image:
        """The image, resized to a square."""
        if image.size == (self._size, self._size):
            return image
        return Image.fromarray(to_square(image, self._size))

    def regions(self, images: Sequence[Image.Image], names: Sequence[str] = ()) -> list[Any]:
        """See `RegionSource.regions`."""
        from ngsan.data.store import Regions

        squares = np.stack([np.asarray(self.prepare(image)) for image in images])
        features = self._graph.run(["features"], {"images": squares})[0].astype(np.float16)
        return [
            Regions(found, self._boxes, image.size)
            for found, image in zip(features, images, strict=True)
        ]


def _backbone_hash(weights: dict[str, NDArray[Any]]) -> str:
    """The same as `ngsan.vision.sources.weights_hash` of the backbone, from its saved weights."""
    prefix = "encoder.backbone."
    digest = hashlib.blake2b(digest_size=6)
    names = [name for name in weights if name.startswith(prefix) and not name.endswith(SCALE)]
    for name in sorted(names):
        weight = weights[name]
        if weight.dtype != np.int64:
            weight = Made(name, "floats").of(weights)
        digest.update(f"{name.removeprefix(prefix)} torch.{weight.dtype} {weight.shape}".encode())
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


def _batch(values: Reals | None) -> Reals | None:
    return None if values is None else values[None]
