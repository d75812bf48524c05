"""Runs exported captioners with ONNX Runtime.

Shapes: `B` images, `N` regions, `W` captions an image that are written side by side, `M` captions,
`T` words, `V` vocabulary.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ngsan.light.manifest import (
    BACKBONE,
    DECODER,
    ENCODER,
    Manifest,
    cell_boxes,
    layer_names,
)
from ngsan.light.sessions import Provider as Provider
from ngsan.light.sessions import onnxruntime, open_graphs
from ngsan.models.saved_captioner import VOCABULARY
from ngsan.nn.geometry import AbsoluteGeometry, check_boxes, check_regions
from ngsan.text.vocabulary import BOUNDARY


class OnnxModel:
    """An exported or packed captioner; a `RegionModel` for prediction."""

    def __init__(
        self,
        folder: str | Path,
        *,
        threads: int | None = None,
        providers: Sequence[Provider] | None = None,
    ) -> None:
        """Opens an export and checks that it is whole.

        Args:
            folder: What `export_captioner` or `pack_captioner` wrote.
            threads: Threads of ONNX Runtime; None for one a core.
            providers: Execution providers, the preferred first; None for the CPU's.

        Raises:
            ValueError: Something is missing or damaged, or ONNX Runtime cannot do what is asked.
        """
        folder = Path(folder)
        manifest = Manifest.load(folder)
        self.config = manifest.model
        self.vocab_size = self.config.vocab_size
        self.state = "exported"  # it never changes
        self.multiple = 1
        self.vocabulary = manifest.words(folder / VOCABULARY)
        sessions = open_graphs(folder, manifest, threads=threads, providers=providers)
        self.encoder, self.decoder = sessions[ENCODER], sessions[DECODER]
        self.backbone = sessions.get(BACKBONE)
        self._runtime = onnxruntime()

    def steps(self, features: Tensor, boxes: Tensor | None, mask: Tensor | None) -> "OnnxSteps":
        """See `RegionModel.steps`."""
        return OnnxSteps(self, self.encode(features, boxes, mask))

    def reload(
        self, steps: "OnnxSteps", features: Tensor, boxes: Tensor | None, mask: Tensor | None
    ) -> None:
        """See `RegionModel.reload`."""
        steps.load(self.encode(features, boxes, mask))

    def attention(self, words: Tensor, steps: "OnnxSteps") -> Tensor:
        """See `RegionModel.attention`."""
        steps.start(words.shape[1], words.shape[2])
        given = torch.cat((torch.full_like(words[..., :1], BOUNDARY), words[..., :-1]), -1)
        return torch.stack([steps.look(word)[1] for word in given.unbind(-1)], 2)

    def at_rest(self) -> AbstractContextManager[None]:
        """See `RegionModel.at_rest`; an export is never trained."""
        return nullcontext()

    def encode(
        self, features: Tensor, boxes: Tensor | None, mask: Tensor | None
    ) -> "EncodedRegions":
        """Makes what the decoder attends to.

        Args:
            features: (B, N, feature_dim); or of a model of pixels images, see `describe`.
            boxes: (B, N, 4) `cxcywh`; may be None for a model without geometry. Those of images
                are known, and not looked at; neither is the mask.
            mask: (B, N) boolean, True = a real region, or None.
        """
        if self.backbone is not None:
            features, boxes = self.describe(features)
            mask = None
        self._check(features, boxes, mask)
        if mask is None:
            mask = torch.ones(features.shape[:2], dtype=torch.bool)
        if not len(features):  # ONNX Runtime divides by their number, and dies of it
            return EncodedRegions({}, mask.cpu())
        inputs = {"features": features, "mask": mask}
        if boxes is not None and self.config.geometry != "none":
            inputs["boxes"] = boxes
        if not features.shape[1]:  # the same goes for regions; padding stands in for them
            inputs = {name: _one_region(part) for name, part in inputs.items()}
        fed = {name: self.value(part) for name, part in inputs.items()}
        names = layer_names("region", self.config.layers)
        encoded = dict(zip(names, self.encoder.run_with_ort_values(names, fed), strict=True))
        return EncodedRegions({**encoded, "mask": fed["mask"]}, mask.cpu())

    def describe(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Makes the regions of images: the cells of a grid.

        Args:
            images: (B, 3, S, S), bytes from 0 to 255, or numbers from 0 to 1, which are rounded to
                bytes.

        Returns:
            features: (B, N, feature_dim).
            boxes: (B, N, 4).
        """
        size = self.config.image_size
        if self.backbone is None:
            raise ValueError("this model takes regions: give features and boxes, not images")
        if images.shape[1:] != (3, size, size):
            raise ValueError(
                f"images must be (images, 3, {size}, {size}), not {tuple(images.shape)}"
            )
        if images.is_floating_point():
            images = (images.float() * 255).round().clamp(0, 255)
        places = torch.from_numpy(cell_boxes(size))
        boxes = places.expand(len(images), -1, -1)
        if not len(images):
            return torch.zeros(*boxes.shape[:2], self.config.feature_dim), boxes
        fed = {"images": self.value(images.to("cpu", torch.uint8).permute(0, 2, 3, 1))}
        found = self.backbone.run_with_ort_values(["features"], fed)[0]
        return torch.from_numpy(found.numpy()), boxes

    def value(self, tensor: Tensor) -> Any:
        """A tensor as ONNX Runtime takes it, in single precision if it holds real numbers."""
        plain = tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else None)
        return self._runtime.OrtValue.ortvalue_from_numpy(plain.contiguous().numpy())

    def _check(self, features: Tensor, boxes: Tensor | None, mask: Tensor | None) -> None:
        """Fails early where a graph would fail with a message of its own, or not at all."""
        width = self.config.feature_dim
        if features.ndim != 3 or features.shape[-1] != width:
            raise ValueError(
                f"features must be (images, regions, {width}), not {tuple(features.shape)}"
            )
        given = None if self.config.geometry == "none" else boxes
        check_regions(features, given, mask, needs_boxes=self.config.geometry != "none")
        if given is None:
            return
        check_boxes(given, mask)
        if self.config.needs_relative_boxes:
            AbsoluteGeometry(8)(given, mask)  # for its check; the graph has the embedding


class EncodedRegions(NamedTuple):
    """The images as the decoder takes them."""

    fed: dict[str, Any]
    """Values of ONNX Runtime by name; none for no images."""

    mask: Tensor
    """(B, N) boolean, True = a real region."""


class OnnxSteps:
    """The step protocol of `ngsan.decoding` over an exported decoder.

    The decoder returns the keys and values of all words so far, which go into its next call as they
    are. What a caption sees of them is kept here, as in `ngsan.nn.cache.WordCache`.
    """

    device = torch.device("cpu")

    def __init__(self, model: OnnxModel, regions: EncodedRegions) -> None:
        """Takes the images.

        Args:
            model: The exported captioner.
            regions: Of `model.encode`.
        """
        self.images, self.vocab_size = len(regions.mask), model.vocab_size
        self._model, self._regions = model, regions
        layers = model.config.layers
        self._names = layer_names("word", layers)
        self._outputs = ["logits", "attention", *layer_names("grown", layers)]
        self._words: list[Any] = []
        self._seen = torch.zeros(self.images, 0, 0, dtype=torch.bool)
        self._position = 0

    def load(self, regions: EncodedRegions) -> None:
        """Puts other images, as many, in the place of these."""
        if len(regions.mask) != self.images:
            raise ValueError(f"{len(regions.mask)} images in the place of {self.images}")
        self._regions = regions

    def start(self, width: int, longest: int) -> None:
        """Begins `width` captions of at most `longest` words for every image."""
        config = self._model.config
        shape = (self.images, config.heads, 0, config.dim // config.heads)
        self._words = [self._model.value(torch.zeros(shape)) for _ in self._names]
        self._seen = torch.zeros(self.images, width, longest * width, dtype=torch.bool)
        self._position = 0

    def step(self, words: Tensor) -> Tensor:
        """Takes the next word of each caption, (B, W), and scores the word after it, (B, W, V)."""
        return self.look(words)[0]

    def look(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Like `step`; also returns where the captions looked.

        Returns:
            logits: (B, W, V).
            attention: (B, W, N) over the regions, in the last layer, the mean of its heads.
        """
        width, mask = self._seen.shape[1], self._regions.mask
        if not self.images:
            return torch.zeros(0, width, self.vocab_size), torch.zeros(0, width, mask.shape[1])
        first = self._position * width
        fed = {
            "words": self._model.value(words),
            "position": self._model.value(torch.tensor(self._position)),
            "seen": self._model.value(self._seen[:, :, :first]),
            **dict(zip(self._names, self._words, strict=True)),
            **self._regions.fed,
        }
        logits, attention, *self._words = self._model.decoder.run_with_ort_values(
            self._outputs, fed
        )
        # A new word stands in its caption's own slot.
        self._seen[:, :, first : first + width] = torch.eye(width, dtype=torch.bool)
        self._position += 1
        looked = torch.from_numpy(attention.numpy())
        return torch.from_numpy(logits.numpy()), looked[:, :, : mask.shape[1]]

    def reorder(self, parents: Tensor) -> None:
        """Caption w of an image goes on from what caption `parents[w]` was, (B, W)."""
        self._seen = self._seen.gather(1, parents.unsqueeze(2).expand_as(self._seen))


def _one_region(part: Tensor) -> Tensor:
    """Zeros, or False, for one region of each image in the place of none: (B, 0, ...)."""
    return part.new_zeros((part.shape[0], 1, *part.shape[2:]))
