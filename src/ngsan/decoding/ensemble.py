"""Several models that write one caption together.

Shapes: `B` images, `W` captions an image, `V` vocabulary, `M` models.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ngsan.decoding.protocol import StepModel


class Ensemble:
    """The mean of the models' word probabilities, as a model of its own."""

    def __init__(self, models: Sequence[StepModel]) -> None:
        """Takes models of the same images and the same vocabulary.

        Args:
            models: At least one.
        """
        if not models:
            raise ValueError("an ensemble has at least one model")
        self.models = tuple(models)
        first = self.models[0]
        self.images, self.vocab_size, self.device = first.images, first.vocab_size, first.device
        for model in self.models:
            if model.vocab_size != self.vocab_size:
                raise ValueError(
                    f"models of one vocabulary make an ensemble, not of {self.vocab_size} and "
                    f"{model.vocab_size} words"
                )
            if model.images != self.images or model.device != self.device:
                raise ValueError(
                    f"the models hold {self.images} images on {self.device} and {model.images} "
                    f"on {model.device}; they must hold the same"
                )

    def start(self, width: int, longest: int) -> None:
        """See `StepModel.start`."""
        for model in self.models:
            model.start(width, longest)

    def step(self, words: Tensor) -> Tensor:
        """See `StepModel.step`; the logits are log-probabilities."""
        each = [model.step(words).float().log_softmax(-1) for model in self.models]
        return torch.stack(each).logsumexp(0) - math.log(len(each))

    def reorder(self, parents: Tensor) -> None:
        """See `StepModel.reorder`."""
        for model in self.models:
            model.reorder(parents)
