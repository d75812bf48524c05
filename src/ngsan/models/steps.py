"""Captioners and translators for a search: one word at a time, for a batch of images or sentences.

Shapes: `B` images, `N` regions, `W` captions an image, `V` vocabulary, `D` model width.
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from ngsan.cuda_graph import Captured
from ngsan.models.captioner import CaptionerModel
from ngsan.models.decoder import Cache, Ready
from ngsan.models.translator import TranslatorModel
from ngsan.nn.masks import check_mask

P = ParamSpec("P")
T = TypeVar("T")


def _undisturbed(
    method: Callable[Concatenate["CaptionerSteps", P], T],
) -> Callable[Concatenate["CaptionerSteps", P], T]:
    """Runs a method without gradients and without autocast.

    Buffers outlive a call, and captured work would read tensors that autocast has freed.
    """

    @wraps(method)
    def wrapped(self: "CaptionerSteps", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            return method(self, *args, **kwargs)

    return wrapped


class CaptionerSteps:
    """The step protocol of `ngsan.search`, over preallocated buffers.

    The regions are encoded once, and so are their keys and values. Other images of the same shape
    can be loaded into the same buffers, so that work captured on a GPU is reused.
    """

    def __init__(
        self,
        model: CaptionerModel | TranslatorModel,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Encodes the images.

        Args:
            model: The model, in evaluation mode.
            features: (B, N, feature_dim), or images for a model with a backbone; they and the rest
                are moved to the model's device.
            boxes: (B, N, 4) `cxcywh`, or None for a model without geometry.
            mask: (B, N) boolean, True = a real region, or None.
        """
        self._model = model
        self.decoder = model.decoder
        weight = model.decoder.embed.weight
        self.device, self.vocab_size = weight.device, self.decoder.embed.num_embeddings
        self.images = features.shape[0]
        # Copies, because other images are loaded into them later.
        kind = weight.dtype if features.is_floating_point() else features.dtype
        self._features = features.to(self.device, kind, copy=True)
        self._boxes = None if boxes is None else boxes.to(self.device, copy=True)
        self.mask = None if mask is None else mask.to(self.device, copy=True)
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            self._ready = self._make_ready()
        self._encode = Captured(self._refresh, self.device, self._refresh)
        # Kept by width and length, as captured work uses them again.
        self._caches: dict[tuple[int, int], Cache] = {}
        self._cache: Cache | None = None

    def encode(self) -> Tensor:
        """(B, N, D) the regions encoded."""
        assert isinstance(self._model, CaptionerModel)
        return self._model.encode(self._features, self._boxes, self.mask)

    @_undisturbed
    def load(
        self, features: Tensor, boxes: Tensor | None = None, mask: Tensor | None = None
    ) -> None:
        """Replaces the images; the arguments must have the same shapes as before."""
        check_mask(mask, features)
        pairs = ((self._features, features), (self._boxes, boxes), (self.mask, mask))
        for name, (buffer, values) in zip(("features", "boxes", "mask"), pairs, strict=True):
            had, given = (None if part is None else tuple(part.shape) for part in (buffer, values))
            if had != given:
                raise ValueError(f"{name}: the buffers are made for {had}, not for {given}")
            if buffer is not None and values is not None:
                buffer.copy_(values)
        self._encode.prepare()
        self._encode()

    def _refresh(self) -> None:
        self._ready.take(self._make_ready())

    def _make_ready(self) -> Ready:
        return self.decoder.make_ready(self.encode(), self.mask)

    @_undisturbed
    def start(self, rows: int, max_length: int) -> None:
        """Begins `rows` captions of at most `max_length` words for every image."""
        shape = (rows, max_length)
        if shape not in self._caches:
            self._caches[shape] = self.decoder.make_cache(self._ready, rows, max_length)
        self._cache = self._caches[shape]
        self._cache.clear()

    @_undisturbed
    def step(self, words: Tensor, parents: Tensor | None = None) -> Tensor:
        """See `ngsan.search.StepModel.step`."""
        if self._cache is None:
            raise RuntimeError("call start before the first step")
        if parents is not None:
            self._cache.reorder(parents)
        return self.decoder.step(words, self._cache, self._ready)


class TranslatorSteps(CaptionerSteps):
    """A translator's; the features are the sentences' word ids."""

    _model: TranslatorModel

    def __init__(
        self, translator: TranslatorModel, source: Tensor, mask: Tensor | None = None
    ) -> None:
        """Encodes the sentences.

        Args:
            translator: The model, in evaluation mode.
            source: (B, S) word ids; moved to the model's device.
            mask: (B, S) boolean, True = a real word, or None.
        """
        super().__init__(translator, source, None, mask)

    def encode(self) -> Tensor:
        """(B, S, D) the encoded words."""
        return self._model.encode(self._features, self.mask)
