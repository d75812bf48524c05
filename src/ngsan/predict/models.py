"""Captioners as prediction sees them.

Shapes: `B` images, `N` regions, `M` captions an image, `T` words.
"""

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor

from ngsan.decoding import StepModel
from ngsan.models.captioner import Captioner
from ngsan.models.steps import CaptionerSteps
from ngsan.nn.attend import AttentionMaps
from ngsan.text.vocabulary import BOUNDARY


class RegionModel(Protocol):
    """A captioner as prediction sees it: PyTorch's, or one that has been exported."""

    vocab_size: int

    @property
    def state(self) -> Hashable:
        """Changes when images must be made ready anew rather than reloaded."""

    @property
    def multiple(self) -> int:
        """Images get as many regions as are a multiple of this, so that fewer shapes occur."""

    def steps(self, features: Tensor, boxes: Tensor | None, mask: Tensor | None) -> StepModel:
        """The images made ready for a search."""

    def reload(
        self, steps: Any, features: Tensor, boxes: Tensor | None, mask: Tensor | None
    ) -> None:
        """Puts other images of the same shapes in the place of those that `steps` made ready."""

    def attention(self, words: Tensor, steps: Any) -> Tensor:
        """(B, M, T, N) attention of given words, (B, M, T), over the regions."""

    def at_rest(self) -> AbstractContextManager[None]:
        """Without dropout; afterwards the model is as it was, in the middle of training or not."""


class TorchModel:
    """A `Captioner` for prediction."""

    def __init__(self, captioner: Captioner) -> None:
        """Takes the model, whose parts must stay the same; its weights may change."""
        self.captioner = captioner
        self._parts = list(captioner.modules())
        self.vocab_size = captioner.decoder.embed.num_embeddings

    @property
    def state(self) -> Hashable:
        """See `RegionModel.state`: weights that are of another type, or not where they were."""
        weight = self.captioner.decoder.embed.weight
        if not weight.is_cuda:
            return weight.device, weight.dtype
        # Captured work reads them there. (Their methods would take as long as some words.)
        held = chain.from_iterable(
            chain(part._parameters.values(), part._buffers.values()) for part in self._parts
        )
        places = tuple(tensor.data_ptr() for tensor in held if tensor is not None)
        return weight.device, weight.dtype, places

    @property
    def multiple(self) -> int:
        """See `RegionModel.multiple`: on a GPU, every shape is captured anew."""
        on_gpu = self.captioner.decoder.embed.weight.is_cuda
        return 8 if on_gpu and self.captioner.encoder.takes_regions else 1

    def steps(self, features: Tensor, boxes: Tensor | None, mask: Tensor | None) -> CaptionerSteps:
        """See `RegionModel.steps`."""
        return CaptionerSteps(self.captioner, features, boxes, mask)

    def reload(
        self, steps: CaptionerSteps, features: Tensor, boxes: Tensor | None, mask: Tensor | None
    ) -> None:
        """See `RegionModel.reload`."""
        steps.load(features, boxes, mask)

    def attention(self, words: Tensor, steps: CaptionerSteps) -> Tensor:
        """See `RegionModel.attention`."""
        maps: list[AttentionMaps] = []
        given = torch.cat((torch.full_like(words[..., :1], BOUNDARY), words[..., :-1]), -1)
        with torch.autocast(steps.device.type, enabled=False):
            self.captioner.decode(given, steps.encode(), steps.mask, record=maps)
        mean = maps[-1].weights.float().mean(1)  # (B, M T, N)
        return mean.reshape(*words.shape, mean.shape[-1])

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """See `RegionModel.at_rest`."""
        captioner = self.captioner
        busy = captioner.training or captioner.encoder.training or captioner.decoder.training
        training = [part for part in self._parts if part.training] if busy else []
        for part in training:
            part.training = False
        try:
            yield
        finally:
            for part in training:
                part.training = True


def best_device(name: str = "auto") -> torch.device:
    """The device that a name stands for; "auto" is a GPU if there is one.

    Raises:
        ValueError: There is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: {name!r} cannot be used: {reason}") from error
    return device
