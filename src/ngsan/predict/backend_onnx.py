"""Captioning with ONNX Runtime and NumPy, for exported and packed models; torch is not needed.

Shapes: `B` images, `N` regions, `F` width of their features, `M` captions of an image, `S` slots of
earlier words, `T` words, `V` vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ngsan.config import CaptionerConfig, DecodingConfig, TranslatorConfig
from ngsan.predict.manifest import (
    BACKBONE,
    DECODER,
    ENCODER,
    VOCABULARY,
    Manifest,
    Provider,
    cell_boxes,
    layer_names,
    onnxruntime,
    open_graphs,
)
from ngsan.search import Ensemble, Written, build_search
from ngsan.search.sentences import score_sentences
from ngsan.text.vocabulary import BOUNDARY, Vocabulary

_CHUNK = 4
"""Images that the backbone processes at a time: more are not faster, and take 30 MB each."""


@dataclass(frozen=True)
class Encoded:
    """Images as inputs of the decoder."""

    fed: dict[str, Any]
    """ONNX Runtime values by name; empty without images."""

    images: int
    """B."""

    regions: int
    """N."""


class WordModel(Protocol):
    """The parts of a model that `OnnxSteps` uses."""

    @property
    def config(self) -> CaptionerConfig | TranslatorConfig:
        """What it was built from."""

    @property
    def decoder(self) -> Any:
        """The session of its decoder."""

    def _value(self, array: NDArray[Any]) -> Any:
        """An array as an ONNX Runtime value."""


class OnnxBackend:
    """An exported or packed captioner; see `ngsan.predict.captioner.Backend`. It is thread-safe."""

    config: CaptionerConfig
    vocabulary: Vocabulary
    image_size: int | None
    """Side of the images that `describe` takes; None for a model of regions."""

    batch_size = 8
    first_batch = 1

    def __init__(
        self,
        folder: str | Path,
        *,
        threads: int | None = None,
        providers: Sequence[Provider] | None = None,
    ) -> None:
        """Opens an export after checking its files.

        Args:
            folder: What `ngsan export` or `ngsan pack` wrote.
            threads: Threads of ONNX Runtime; None chooses by the size of the model.
            providers: Execution providers of ONNX Runtime, the preferred one first; None for the
                CPU.

        Raises:
            ValueError: A file is missing or damaged, or ONNX Runtime cannot open the model.
        """
        folder = Path(folder)
        manifest = Manifest.load(folder)
        self.config = manifest.model
        self.vocabulary = manifest.words(folder / VOCABULARY)
        sessions = open_graphs(folder, manifest, threads=threads, providers=providers)
        self.encoder, self.decoder = sessions[ENCODER], sessions[DECODER]
        self._encoder_inputs = [item.name for item in self.encoder.get_inputs()]
        self.backbone = sessions.get(BACKBONE)
        self.image_size = None if self.backbone is None else self.config.image_size
        self._runtime = onnxruntime()

    def search_images(
        self,
        views: Sequence[NDArray[np.uint8]],
        *,
        decoding: DecodingConfig,
        attention: bool,
        first: int,
        evidence: NDArray[np.float32] | None = None,
    ) -> tuple[Written, NDArray[np.float32] | None]:
        """See `ngsan.predict.captioner.Backend`."""
        encoded = [self.encode(*self.describe(view)) for view in views]
        return self._search(encoded, decoding, attention, first, evidence)

    def search_regions(
        self,
        features: Any,
        boxes: Any | None,
        mask: Any | None,
        *,
        decoding: DecodingConfig,
        attention: bool,
        first: int,
    ) -> tuple[Written, NDArray[np.float32] | None]:
        """See `ngsan.predict.captioner.Backend`."""
        encoded = self.encode(
            np.asarray(features),
            None if boxes is None else np.asarray(boxes),
            None if mask is None else np.asarray(mask),
        )
        return self._search([encoded], decoding, attention, first, None)

    def _search(
        self,
        encoded: "Sequence[Encoded]",
        decoding: DecodingConfig,
        attention: bool,
        first: int,
        evidence: NDArray[np.float32] | None,
    ) -> tuple[Written, NDArray[np.float32] | None]:
        """Captions of one view of each image, or of several that vote on every word."""
        each = [self.steps(one) for one in encoded]
        steps = each[0] if len(each) == 1 else Ensemble(each)
        search = build_search(steps, decoding, self.vocabulary, first=first, evidence=evidence)
        written = search.run()
        written.check()
        maps = None
        if attention and encoded[0].images:
            maps = self.attention(written.words, encoded[0])
        return written, maps

    def score_regions(
        self, features: Any, boxes: Any | None, mask: Any | None, words: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """See `ngsan.predict.captioner.Backend`."""
        encoded = self.encode(
            np.asarray(features),
            None if boxes is None else np.asarray(boxes),
            None if mask is None else np.asarray(mask),
        )
        return score_sentences(self.steps(encoded), words)

    def score_images(
        self, images: NDArray[np.uint8], words: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """See `ngsan.predict.captioner.Backend`."""
        return self.score_regions(*self.describe(images), None, words)

    def describe(
        self, images: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Computes the regions of images, the cells of a grid.

        Args:
            images: (B, image_size, image_size, 3) RGB.

        Returns:
            features: (B, N, F).
            boxes: (B, N, 4) `cxcywh` relative to the image.

        Raises:
            ValueError: The model is one of regions, or the images have another shape or type.
        """
        size = self.image_size
        if self.backbone is None or size is None:
            raise ValueError("this model needs regions: pass features and boxes, not images")
        if images.dtype != np.uint8 or images.shape[1:] != (size, size, 3):
            raise ValueError(
                f"images must be (images, {size}, {size}, 3) uint8, not {images.shape} "
                f"{images.dtype}"
            )
        places = cell_boxes(self.config.grid)
        boxes = np.broadcast_to(places, (len(images), *places.shape))
        if not len(images):
            return np.zeros((*boxes.shape[:2], self.config.feature_dim), np.float32), boxes
        parts = [
            self.backbone.run(["features"], {"images": np.ascontiguousarray(part)})[0]
            for part in np.split(images, range(_CHUNK, len(images), _CHUNK))
        ]
        return np.concatenate(parts), boxes

    def encode(
        self,
        features: NDArray[Any],
        boxes: NDArray[Any] | None = None,
        mask: NDArray[Any] | None = None,
    ) -> Encoded:
        """Computes the keys and values that the decoder attends to.

        Args:
            features: (B, N, feature_dim) floating point.
            boxes: (B, N, 4) `cxcywh`; may be None for a model without geometry. A model of
                photographs ignores boxes and mask: its cells are fixed.
            mask: (B, N) boolean, True = a real region, or None.

        Raises:
            ValueError: They do not fit the model or each other, or a box is invalid.
        """
        inputs = self._checked(features, boxes, mask)
        images, regions = features.shape[:2]
        if not images:  # ONNX Runtime divides by their number and crashes
            return Encoded({}, images, regions)
        if not regions:  # the same holds for regions, so use one of padding
            inputs = {
                name: np.zeros((images, 1, *part.shape[2:]), part.dtype)
                for name, part in inputs.items()
            }
        values = {name: self._value(part) for name, part in inputs.items()}
        fed = {name: values[name] for name in self._encoder_inputs}
        names = layer_names("region", self.config.layers)
        encoded = dict(zip(names, self.encoder.run_with_ort_values(names, fed), strict=True))
        return Encoded({**encoded, "mask": values["mask"]}, images, regions)

    def steps(self, encoded: Encoded) -> "OnnxSteps":
        """The images made ready for a search."""
        return OnnxSteps(self, encoded)

    def attention(self, words: NDArray[np.int64], encoded: Encoded) -> NDArray[np.float32]:
        """(B, C, T, N) attention of given words, (B, C, T), over the regions, in the last layer."""
        steps = OnnxSteps(self, encoded)
        steps.start(words.shape[1], words.shape[2])
        given = np.pad(words[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=BOUNDARY)
        places = range(words.shape[2])
        looked = [steps.look(given[..., place], None, "attention") for place in places]
        return np.stack(looked, 2)[..., : encoded.regions]

    def _checked(
        self, features: NDArray[Any], boxes: NDArray[Any] | None, mask: NDArray[Any] | None
    ) -> dict[str, NDArray[Any]]:
        """The encoder's inputs, checked before a graph fails with an unclear message."""
        width = self.config.feature_dim
        if features.ndim != 3 or features.shape[-1] != width:
            raise ValueError(f"features must be (images, regions, {width}), not {features.shape}")
        if not np.issubdtype(features.dtype, np.floating):
            raise ValueError(f"features must be floating point, not {features.dtype}")
        shape = features.shape[:2]
        if self.image_size is not None:
            places = cell_boxes(self.config.grid)
            if shape[1] != len(places):
                raise ValueError(f"this model needs {len(places)} cells an image, not {shape[1]}")
            boxes = np.broadcast_to(places, (*shape, 4))
            mask = None
        if mask is None:
            mask = np.ones(shape, np.bool_)
        if mask.dtype != np.bool_:
            raise ValueError(f"mask must be boolean with True = real, not {mask.dtype}")
        if mask.shape != shape:
            raise ValueError(
                f"mask of shape {mask.shape} does not fit elements of shape {features.shape}: "
                f"expected {shape}"
            )
        inputs = {"features": features, "mask": mask}
        if boxes is not None:
            _check_boxes(boxes, mask, relative=self.config.needs_relative_boxes)
        if self.config.geometry != "none":
            if boxes is None:
                raise ValueError("this model is geometry-aware: it needs the regions' boxes")
            inputs["boxes"] = boxes
        return inputs

    def _value(self, array: NDArray[Any]) -> Any:
        """An array as an ONNX Runtime value; floating point becomes float32."""
        kind = np.float32 if np.issubdtype(array.dtype, np.floating) else array.dtype
        return self._runtime.OrtValue.ortvalue_from_numpy(np.asarray(array, kind, order="C"))


class OnnxSteps:
    """The step protocol of `ngsan.search` over an exported decoder, in NumPy.

    The decoder returns the keys and values of all words so far, which go into its next call as they
    are and are never moved; what a caption sees of them is kept here.
    """

    device = None

    def __init__(self, model: WordModel, encoded: Encoded) -> None:
        self.images, self.vocab_size = encoded.images, model.config.vocab_size
        self._model, self._encoded = model, encoded
        self._names = layer_names("word", model.config.layers)
        self._grown = layer_names("grown", model.config.layers)
        self._words: list[Any] = []
        self._seen = np.zeros((self.images, 1, 0), np.bool_)
        self._position = 0

    def start(self, rows: int, max_length: int) -> None:
        """Forgets all words and begins `rows` captions of each image."""
        config = self._model.config
        empty = np.zeros((self.images, config.heads, 0, config.dim // config.heads), np.float32)
        self._words = [self._model._value(empty)] * len(self._names)
        self._seen = np.zeros((self.images, rows, 0), np.bool_)
        self._position = 0

    def step(
        self, words: NDArray[np.int64], parents: NDArray[np.int64] | None
    ) -> NDArray[np.float32]:
        """See `ngsan.search.StepModel.step`."""
        return self.look(words, parents, "logits")

    def look(
        self, words: NDArray[np.int64], parents: NDArray[np.int64] | None, output: str
    ) -> NDArray[np.float32]:
        """Appends words like `step`; returns the output of the decoder with a name."""
        model, seen = self._model, self._seen
        if parents is not None:
            seen = seen[np.arange(self.images)[:, None], parents]
        fed = {
            "words": model._value(words),
            "position": model._value(np.array(self._position)),
            "seen": model._value(seen),
            **dict(zip(self._names, self._words, strict=True)),
            **self._encoded.fed,
        }
        found, *self._words = model.decoder.run_with_ort_values([output, *self._grown], fed)
        # A new word stands in its caption's own slot.
        own = np.broadcast_to(np.eye(words.shape[1], dtype=np.bool_), (*words.shape, len(words[0])))
        self._seen = np.concatenate((seen, own), 2)  # (B, C, S + C)
        self._position += 1
        array: NDArray[np.float32] = found.numpy()
        return array


def _check_boxes(boxes: NDArray[Any], mask: NDArray[np.bool_], *, relative: bool) -> None:
    """Raises a `ValueError` that names the first invalid box.

    Args:
        boxes: (B, N, 4) `cxcywh`.
        mask: (B, N).
        relative: Whether they must be relative to the image.
    """
    if boxes.shape != (*mask.shape, 4):
        raise ValueError(f"boxes must be of shape {(*mask.shape, 4)}, not {boxes.shape}")
    if not np.issubdtype(boxes.dtype, np.floating):
        raise ValueError(f"boxes must be floating point, not {boxes.dtype}")
    real = boxes[mask]
    good = np.isfinite(real).all(1) & (real[:, 2:] > 0).all(1)
    if not good.all():
        image, region = np.argwhere(mask)[int(good.argmin())].tolist()
        raise ValueError(
            f"box {region} of image {image} is {boxes[image, region].tolist()}: boxes are "
            "(cx, cy, w, h), finite, with a width and height above 0"
        )
    if relative and (real > 2).any():
        raise ValueError(
            "this geometry needs boxes relative to the image, from 0 to 1; the largest number "
            f"here is {real.max():g}: divide by the image's width and height"
        )
