"""A captioner as a search sees it: one word after the other, for the images it has been given.

Shapes: `B` images, `N` regions, `W` captions an image, `V` vocabulary, `D` model width.
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from ngsan.capture import Captured
from ngsan.models.captioner import Captioner
from ngsan.models.decoder import Cache, Decoder, Ready
from ngsan.nn.masks import check_mask

P = ParamSpec("P")
T = TypeVar("T")


def _undisturbed(
    method: Callable[Concatenate["MemorySteps", P], T],
) -> Callable[Concatenate["MemorySteps", P], T]:
    """Runs a method without gradients, and in the model's own precision whatever is outside.

    Buffers outlive a call, and captured work would go on reading what autocast throws away.
    """

    @wraps(method)
    def wrapped(self: "MemorySteps", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            return method(self, *args, **kwargs)

    return wrapped


class Model(Protocol):
    """What makes a memory of its inputs, and writes about it."""

    @property
    def decoder(self) -> Decoder:
        """What writes."""

    def encode(self, features: Tensor, boxes: Tensor | None, mask: Tensor | None) -> Tensor:
        """(B, N, D) the memory."""


class MemorySteps:
    """The step protocol of `ngsan.decoding`, over preallocated buffers.

    Regions are encoded once, and so are their keys and values. Other images of the same shape can
    be loaded into the same buffers, so that work captured on a GPU serves them, too.
    """

    def __init__(
        self,
        model: Model,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Takes the images.

        Args:
            model: The model, in evaluation mode.
            features: (B, N, feature_dim), or what else the model takes; they and the rest are
                brought to the model's device.
            boxes: (B, N, 4) `cxcywh`, or None for a model without geometry.
            mask: (B, N) boolean, True = a real region, or None.
        """
        self._model = model
        self.decoder = model.decoder
        weight = model.decoder.embed.weight
        self.device, self.vocab_size = weight.device, self.decoder.embed.num_embeddings
        self.images = features.shape[0]
        # Copies, because other images will be loaded into them.
        kind = weight.dtype if features.is_floating_point() else features.dtype
        self._features = features.to(self.device, kind, copy=True)
        self._boxes = None if boxes is None else boxes.to(self.device, copy=True)
        self.mask = None if mask is None else mask.to(self.device, copy=True)
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            self._ready = self._make_ready()
        self._encode = Captured(self._refresh, self.device, self._refresh)
        # Kept by width and length, as captured work goes on using them.
        self._caches: dict[tuple[int, int], Cache] = {}
        self._cache: Cache | None = None

    def encode(self) -> Tensor:
        """(B, N, D) the regions encoded."""
        return self._model.encode(self._features, self._boxes, self.mask)

    @_undisturbed
    def load(
        self, features: Tensor, boxes: Tensor | None = None, mask: Tensor | None = None
    ) -> None:
        """Puts other images in the place of these; arguments of the same shapes as before."""
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
    def start(self, width: int, longest: int) -> None:
        """Begins `width` captions of at most `longest` words for every image."""
        shape = (width, longest)
        if shape not in self._caches:
            self._caches[shape] = self.decoder.make_cache(self._ready, width, longest)
        self._cache = self._caches[shape]
        self._cache.clear()

    @_undisturbed
    def step(self, words: Tensor) -> Tensor:
        """Takes the next word of each caption, (B, W), and scores the word after it, (B, W, V)."""
        if self._cache is None:
            raise RuntimeError("start comes before the first step")
        return self.decoder.step(words, self._cache, self._ready)

    @_undisturbed
    def reorder(self, parents: Tensor) -> None:
        """Caption w of an image goes on from what caption `parents[w]` was, (B, W)."""
        if self._cache is None:
            raise RuntimeError("start comes before the first step")
        self._cache.reorder(parents)


class CaptionerSteps(MemorySteps):
    """A captioner's; the memory are regions."""

    def __init__(
        self,
        captioner: Captioner,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Takes the images; see `MemorySteps`."""
        super().__init__(captioner, features, boxes, mask)
