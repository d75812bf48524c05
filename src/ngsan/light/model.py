"""An export opened with ONNX Runtime, for searches in numpy.

Shapes: `B` images, `N` regions, `F` width of their features, `C` captions an image, `S` slots of
earlier words, `T` words, `V` vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.config import CaptionerConfig
from ngsan.light.manifest import (
    BACKBONE,
    DECODER,
    ENCODER,
    VOCABULARY,
    Manifest,
    cell_boxes,
    layer_names,
)
from ngsan.light.sessions import onnxruntime, open_graphs
from ngsan.text.vocabulary import BOUNDARY, Vocabulary

_AT_ONCE = 4
"""Images that the backbone is given: more are not faster, and take 30 MB of memory each."""


@dataclass(frozen=True)
class Encoded:
    """Images as the decoder takes them."""

    fed: dict[str, Any]
    """Values of ONNX Runtime by name; none for no images."""

    images: int
    """B."""

    regions: int
    """N."""


class LightModel:
    """An exported or packed captioner. Several threads may use it at a time."""

    config: CaptionerConfig
    """What the captioner was built from."""

    vocabulary: Vocabulary
    """Its words."""

    image_size: int | None
    """The side of the images that `describe` takes; None for a model of regions."""

    def __init__(self, folder: str | Path, *, threads: int | None = None) -> None:
        """Opens an export and checks that it is whole.

        Args:
            folder: What `ngsan export` or `ngsan pack` wrote.
            threads: Threads of ONNX Runtime; None for one a core.

        Raises:
            ValueError: Something is missing or damaged, or ONNX Runtime cannot open it.
        """
        folder = Path(folder)
        manifest = Manifest.load(folder)
        self.config = manifest.model
        self.vocabulary = manifest.words(folder / VOCABULARY)
        sessions = open_graphs(folder, manifest, threads=threads)
        self.encoder, self.decoder = sessions[ENCODER], sessions[DECODER]
        self.backbone = sessions.get(BACKBONE)
        self.image_size = None if self.backbone is None else self.config.image_size
        self._runtime = onnxruntime()

    def describe(
        self, images: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Makes the regions of images: the cells of a grid.

        Args:
            images: (B, image_size, image_size, 3) RGB.

        Returns:
            features: (B, N, F).
            boxes: (B, N, 4) `cxcywh` relative to the image.

        Raises:
            ValueError: The model takes no images, or they are of another kind.
        """
        size = self.image_size
        if self.backbone is None or size is None:
            raise ValueError("this model takes regions: give features and boxes, not images")
        if images.dtype != np.uint8 or images.shape[1:] != (size, size, 3):
            raise ValueError(
                f"images must be (images, {size}, {size}, 3) uint8, not {images.shape} "
                f"{images.dtype}"
            )
        places = cell_boxes(size)
        boxes = np.broadcast_to(places, (len(images), *places.shape))
        if not len(images):
            return np.zeros((*boxes.shape[:2], self.config.feature_dim), np.float32), boxes
        parts = [
            self.backbone.run(["features"], {"images": np.ascontiguousarray(part)})[0]
            for part in np.split(images, range(_AT_ONCE, len(images), _AT_ONCE))
        ]
        return np.concatenate(parts), boxes

    def encode(
        self,
        features: NDArray[Any],
        boxes: NDArray[Any] | None = None,
        mask: NDArray[Any] | None = None,
    ) -> Encoded:
        """Makes what the decoder attends to.

        Args:
            features: (B, N, feature_dim) real numbers.
            boxes: (B, N, 4) `cxcywh`; may be None for a model without geometry.
            mask: (B, N) boolean, True = a real region, or None.

        Raises:
            ValueError: They do not fit the model or each other, or a box is none.
        """
        inputs = self._checked(features, boxes, mask)
        images, regions = features.shape[:2]
        if not images:  # ONNX Runtime divides by their number, and dies of it
            return Encoded({}, images, regions)
        if not regions:  # the same goes for regions; padding stands in for them
            inputs = {
                name: np.zeros((images, 1, *part.shape[2:]), part.dtype)
                for name, part in inputs.items()
            }
        fed = {name: self._value(part) for name, part in inputs.items()}
        names = layer_names("region", self.config.layers)
        encoded = dict(zip(names, self.encoder.run_with_ort_values(names, fed), strict=True))
        return Encoded({**encoded, "mask": fed["mask"]}, images, regions)

    def steps(self, encoded: Encoded) -> "LightSteps":
        """The images made ready for a search."""
        return LightSteps(self, encoded)

    def attention(self, words: NDArray[np.int64], encoded: Encoded) -> NDArray[np.float32]:
        """(B, C, T, N) attention of given words, (B, C, T), over the regions, in the last layer."""
        steps = self.steps(encoded)
        own = np.broadcast_to(np.arange(words.shape[1]), words.shape[:2])
        looked = [steps.look(np.full(words.shape[:2], BOUNDARY), None, "attention")]
        for place in range(words.shape[2] - 1):
            looked.append(steps.look(words[:, :, place], own, "attention"))
        return np.stack(looked, 2)[..., : encoded.regions]

    def _checked(
        self, features: NDArray[Any], boxes: NDArray[Any] | None, mask: NDArray[Any] | None
    ) -> dict[str, NDArray[Any]]:
        """The encoder's inputs, after what a graph would fail on with a message of its own."""
        width = self.config.feature_dim
        if features.ndim != 3 or features.shape[-1] != width:
            raise ValueError(f"features must be (images, regions, {width}), not {features.shape}")
        if not np.issubdtype(features.dtype, np.floating):
            raise ValueError(f"features must be floating point, not {features.dtype}")
        shape = features.shape[:2]
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
        """An array as ONNX Runtime takes it, in single precision if it holds real numbers."""
        kind = np.float32 if np.issubdtype(array.dtype, np.floating) else array.dtype
        return self._runtime.OrtValue.ortvalue_from_numpy(np.asarray(array, kind, order="C"))


class LightSteps:
    """Words of captions one after the other.

    The decoder returns the keys and values of all words so far, which go into its next call as they
    are and are never moved; what a caption sees of them is kept here.
    """

    def __init__(self, model: LightModel, encoded: Encoded) -> None:
        """Takes the images.

        Args:
            model: The exported captioner.
            encoded: Of `model.encode`.
        """
        self.images, self.vocab_size = encoded.images, model.config.vocab_size
        self._model, self._encoded = model, encoded
        self._names = layer_names("word", model.config.layers)
        self._grown = layer_names("grown", model.config.layers)
        self._words: list[Any] = []
        self._seen = np.zeros((self.images, 1, 0), np.bool_)
        self._position = 0

    def first(self, captions: int) -> NDArray[np.float32]:
        """Forgets all words and begins C captions of each image.

        Note: They are all alike, but one of them would not do: in 8 bits every number depends on
            how the others of a matrix are rounded, so the searches in numpy and in torch must ask
            the same of the graphs if they are to find the same.

        Returns:
            (B, C, V) logits of the first word.
        """
        return self.look(np.full((self.images, captions), BOUNDARY), None, "logits")

    def step(self, words: NDArray[np.int64], parents: NDArray[np.int64]) -> NDArray[np.float32]:
        """Takes one more word of each caption and scores the word after it.

        Args:
            words: (B, C).
            parents: (B, C) of which caption before each is the continuation.

        Returns:
            (B, C, V) logits.
        """
        return self.look(words, parents, "logits")

    def look(
        self, words: NDArray[np.int64], parents: NDArray[np.int64] | None, output: str
    ) -> NDArray[np.float32]:
        """Takes words like `step`, or the first without parents; returns an output by its name."""
        model = self._model
        if parents is None:
            config = model.config
            empty = np.zeros((self.images, config.heads, 0, config.dim // config.heads), np.float32)
            self._words = [model._value(empty)] * len(self._names)
            seen = np.zeros((*words.shape, 0), np.bool_)
            self._position = 0
        else:
            seen = np.take_along_axis(self._seen, parents[:, :, None], 1)
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
    """Raises a `ValueError` that names the first real box that is none.

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
