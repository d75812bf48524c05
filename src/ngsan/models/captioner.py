"""The captioner: an encoder of regions, or of photographs by a backbone, and a decoder of words.

Shapes: `B` images, `S` side of an image, `N` regions or cells, `C` captions an image, `T` words,
`D` model width, `V` vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ngsan.models.decoder import Decoder, EncoderDecoder
from ngsan.nn.attend import AttentionMaps
from ngsan.nn.geometry import AbsoluteGeometry, FramePositions, check_regions, relative_geometry
from ngsan.nn.layers import EncoderLayer
from ngsan.nn.masks import Packing, zero_padding
from ngsan.nn.pooling import pool_boxes
from ngsan.nn.recurrent import FrameReader, RefiningLayer
from ngsan.vision.backbone import is_folded


class Encoder(nn.Module):
    """Base of the encoders: of regions, or of images."""

    takes_regions: bool
    """Whether the input is regions, which may be padded, rather than images."""

    needs_boxes: bool
    """Whether the regions' boxes must be given."""


class RegionEncoder(Encoder):
    """Dense layer and ReLU on the features, then layers over the regions, mostly self-attention."""

    takes_regions = True

    def __init__(
        self,
        layers: Sequence[EncoderLayer | RefiningLayer | FrameReader],
        *,
        feature_dim: int = 2048,
        dim: int = 512,
        dropout: float = 0.1,
        absolute: AbsoluteGeometry | None = None,
        positions: FramePositions | None = None,
        signed_geometry: bool = False,
        plus_one: bool = False,
        final_norm: bool = False,
    ) -> None:
        """Builds the embedding before the layers.

        Args:
            layers: The L layers, or none; those with a score bias receive the relative geometry.
            feature_dim: Width of a region's feature vector.
            dim: D.
            dropout: Dropout of the embedded features.
            absolute: Embedding of boxes to add to the input, or None.
            positions: Embedding of the order of frames to add to the input, or None for a set.
            signed_geometry: Whether relative geometry is in its signed form.
            plus_one: Whether 1 is added to widths and heights in the relative geometry.
            final_norm: Whether a layer norm follows the last layer, as pre-norm layers need.
        """
        super().__init__()
        self.feature_dim = feature_dim
        self.embed = nn.Linear(feature_dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.absolute, self.positions = absolute, positions
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        attending = [layer for layer in layers if not isinstance(layer, FrameReader)]
        self.relative = any(layer.attention.score_bias is not None for layer in attending)
        self.needs_boxes = self.relative or absolute is not None
        self.signed_geometry, self.plus_one = signed_geometry, plus_one

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Encodes; see `CaptionerModel.encode`."""
        self._check(features, boxes, mask)
        return self.encode_checked(features, boxes, mask, record=record)

    def encode_checked(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """The same without checks; boxes that all images share may be (1, N, 4)."""
        x = self.embed(zero_padding(features, mask)).relu()  # (B, N, D)
        geometry = None
        if boxes is not None and self.absolute is not None:
            x = x + self.absolute(boxes, mask).to(x.dtype)
        if self.positions is not None:
            x = x + self.positions(x, mask)
        if boxes is not None and self.relative:
            geometry = relative_geometry(
                boxes, mask, signed=self.signed_geometry, plus_one=self.plus_one
            )
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, mask=mask, geometry=geometry, record=record)
        encoded: Tensor = self.norm(x)
        return encoded

    def _check(self, features: Tensor, boxes: Tensor | None, mask: Tensor | None) -> None:
        if features.ndim != 3 or features.shape[-1] != self.feature_dim:
            raise ValueError(
                f"features must be (images, regions, {self.feature_dim}), not "
                f"{tuple(features.shape)}"
            )
        check_regions(features, boxes, mask, needs_boxes=self.needs_boxes)


class Backbone(Protocol):
    """A module from images (B, 3, S, S) to the features of cells (B, N, C).

    Images are bytes from 0 to 255 or numbers from 0 to 1.
    """

    size: int
    channels: int

    def __call__(self, images: Tensor) -> Tensor:
        """The features of the cells of a grid, row by row."""

    def cell_boxes(self) -> Tensor:
        """(N, 4) the cells as boxes, `cxcywh` relative to the image."""


class Augment(Protocol):
    """Changes images at random, and moves their boxes along; see `ngsan.vision.photos.augment`."""

    def __call__(self, images: Tensor, boxes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Images (B, 3, S, S) and boxes (B, R, 4)."""


class PhotoEncoder(Encoder):
    """Encodes images: the cells of a backbone's grid are the regions, joined by given boxes.

    It replaces a `RegionEncoder`, with images as features, so training, search and checkpoints work
    as for regions.
    """

    takes_regions = False
    boxes: Tensor

    def __init__(self, backbone: nn.Module, regions: RegionEncoder, *, objects: int = 0) -> None:
        """Checks that the parts fit.

        Args:
            backbone: See `Backbone`.
            regions: The encoder of the cells; its feature_dim is the backbone's channels.
            objects: R, the number of given boxes that join the cells, pooled from them.
        """
        super().__init__()
        made: Backbone = backbone  # type: ignore[assignment]
        if made.channels != regions.feature_dim:
            raise ValueError(
                f"the backbone has {made.channels} channels and the encoder expects "
                f"{regions.feature_dim}: set feature_dim to {made.channels}"
            )
        self.backbone, self.regions = backbone, regions
        self.objects, self.needs_boxes = objects, objects > 0
        self.size = made.size
        self.augment: Augment | None = None
        """Data augmentation of the images, and of their boxes, in training."""
        self.frozen = False
        self.register_buffer("boxes", made.cell_boxes(), persistent=False)

    def freeze(self, frozen: bool = True) -> None:
        """Freezes the backbone and its running statistics in training, or unfreezes them."""
        self.frozen = frozen
        self.backbone.requires_grad_(not frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> "PhotoEncoder":
        """See `nn.Module.train`; a frozen backbone stays in evaluation mode.

        So do norms that were folded into the convolutions before them when a model was packed.
        """
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        elif mode:
            for part in self.backbone.modules():
                if is_folded(part):
                    part.eval()
        return self

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Encodes images.

        Args:
            features: (B, 3, S, S) images, bytes from 0 to 255 or numbers from 0 to 1; or
                (B, N, C) features of cells from the backbone.
            boxes: (B, R, 4) `cxcywh` relative to the image, the regions that join the cells; None
                if there are none.
            mask: Ignored: all cells and regions are real.
            record: A list that each layer's attention maps are appended to, or None.

        Returns:
            (B, N + R, D), the cells first.
        """
        self._check_boxes(features, boxes)
        cells = features
        if features.ndim != 3:
            images, boxes = self._prepare(features, boxes)
            cells = self.backbone(images)
        places = self.boxes.expand(len(cells), -1, -1)
        if boxes is not None and self.objects:
            side = math.isqrt(cells.shape[1])
            maps = cells.transpose(1, 2).reshape(len(cells), -1, side, side)  # (B, C, G, G)
            cells = torch.cat((cells, pool_boxes(maps, boxes)), 1)
            places = torch.cat((places, boxes.to(places.dtype)), 1)
        encoded: Tensor = self.regions(cells, places, record=record)
        return encoded

    def _check_boxes(self, features: Tensor, boxes: Tensor | None) -> None:
        shape = (len(features), self.objects, 4)
        if self.objects and (boxes is None or boxes.shape != shape):
            given = None if boxes is None else tuple(boxes.shape)
            raise ValueError(f"the model needs boxes of {shape}, not {given}")

    def _prepare(self, images: Tensor, boxes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Images and boxes as the backbone gets them, in training augmented."""
        if images.ndim != 4 or images.shape[1:] != (3, self.size, self.size):
            raise ValueError(
                f"images must be (images, 3, {self.size}, {self.size}), not {tuple(images.shape)}"
            )
        if self.training and self.augment is not None:
            return self.augment(images, boxes)
        return images, boxes


class CaptionerModel(EncoderDecoder):
    """SAN and its normalised and geometry-aware forms."""

    encoder: Encoder

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__(encoder, decoder)

    def encode(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """Encodes the regions of images.

        Args:
            features: (B, N, feature_dim).
            boxes: (B, N, 4) `cxcywh`; may be None for a model without geometry. Absolute
                geometry needs them relative to the image, relative geometry allows any unit.
            mask: (B, N) boolean, True = a real region, or None when all are. Padding may hold
                anything and changes nothing.
            record: A list that each layer's attention maps are appended to, or None.

        Returns:
            (B, N, D)
        """
        memory: Tensor = self.encoder(features, boxes, mask, record=record)
        return memory

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None,
        mask: Tensor | None,
        words: Tensor,
        *,
        packing: Packing | None = None,
    ) -> Tensor:
        """Encodes regions and scores each next word; arguments as in `encode` and `decode`.

        Returns:
            (B, T, V), or (B, C, T, V) for words (B, C, T), or (M, V) for M packed words.
        """
        return self.decode(words, self.encode(features, boxes, mask), mask, packing=packing)
