"""Photographs for `ngsan.light.photos.PhotoCaptioner`, captioned by PyTorch.

Shapes: `B` images, `S` side of a square.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ngsan.config import DecodingConfig
from ngsan.light.caption import Caption
from ngsan.models.captioner import Captioner
from ngsan.models.photo import PhotoEncoder
from ngsan.predict.predictor import Predictor
from ngsan.text.vocabulary import Vocabulary


class TorchPhotos:
    """A captioner with a backbone as a `PhotoModel`."""

    def __init__(self, captioner: Captioner, vocabulary: Vocabulary) -> None:
        """Takes the captioner, on the device where it is to run.

        Raises:
            ValueError: It has no backbone.
        """
        if not isinstance(captioner.encoder, PhotoEncoder):
            raise ValueError(
                "this is a model of regions and not of photographs: it has no backbone to make "
                "regions of pixels"
            )
        self.image_size: int = captioner.encoder.size
        self.vocabulary = vocabulary
        self.predictor = Predictor(captioner, vocabulary)
        self.device = captioner.decoder.embed.weight.device
        on_gpu = self.device.type == "cuda"
        self.batch_size = 64 if on_gpu else 8
        self.starts_small = not on_gpu  # there, every number of images is captured anew

    def caption(
        self,
        squares: NDArray[np.uint8],
        *,
        decoding: DecodingConfig,
        attention: bool,
        first: int,
    ) -> list[list[Caption]]:
        """The captions of each image of (B, S, S, 3); see `Predictor.caption`."""
        images = torch.from_numpy(squares).to(self.device).permute(0, 3, 1, 2).contiguous()
        return self.predictor.caption(images, decoding=decoding, attention=attention, first=first)
