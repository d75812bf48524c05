"""Photographs for `ngsan.light.photos.PhotoCaptioner`, captioned by PyTorch.

Shapes: `B` images, `S` side of a square, `M` captions an image, `T` words.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.config import DecodingConfig
from ngsan.light.caption import Caption
from ngsan.models.captioner import Captioner
from ngsan.models.photo import PhotoEncoder
from ngsan.predict.models import TorchModel
from ngsan.predict.predictor import Predictor
from ngsan.text.vocabulary import BOUNDARY, Vocabulary


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
        self.model = TorchModel(captioner)
        self.predictor = Predictor(self.model, vocabulary)
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
        captions = self.predictor.caption(images, decoding=decoding, first=first)
        return self._with_attention(images, captions) if attention else captions

    def _with_attention(
        self, images: Tensor, captions: Sequence[Sequence[Caption]]
    ) -> list[list[Caption]]:
        """The captions with their words' attention over the cells, in the decoder's last layer.

        The cells are the regions here, so the maps are taken of the model itself, over all of them.
        """
        most = max(map(len, captions))
        longest = max((len(one.words) for each in captions for one in each), default=0)
        # A place more than the longest: a caption of no words has a map of none.
        words = torch.full((len(captions), most, longest + 1), BOUNDARY)
        for image, each in enumerate(captions):
            for rank, one in enumerate(each):
                words[image, rank, : len(one.words)] = torch.tensor(one.words, dtype=torch.long)
        with torch.inference_mode(), self.model.at_rest():
            steps = self.model.steps(images, None, None)
            maps = self.model.attention(words.to(self.device), steps).float().cpu().numpy()
        return [
            [
                replace(one, attention=maps[image, rank, : len(one.words)])
                for rank, one in enumerate(each)
            ]
            for image, each in enumerate(captions)
        ]
