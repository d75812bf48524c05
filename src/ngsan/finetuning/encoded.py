"""Photographs that are encoded once: the part of a captioner that is trained, and its data.

The backbone and the lower layers of the encoder stay as they are, so what they make of a picture is
computed once and kept in a feature store.

Shapes: `B` images, `S` side of an image, `N` cells, `D` model width.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ngsan.config import CaptionerConfig
from ngsan.data.store import Regions
from ngsan.models.captioner import CaptionerModel, Encoder, PhotoEncoder
from ngsan.models.checkpoint import load_model
from ngsan.models.weights import metadata_of
from ngsan.nn.attend import AttentionMaps
from ngsan.nn.geometry import relative_geometry
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.manifest import MANIFEST, WEIGHTS
from ngsan.text.vocabulary import Vocabulary
from ngsan.vision.decoding import shared_service
from ngsan.vision.images import ImageError

_BATCH = 8


@dataclasses.dataclass(frozen=True)
class Start:
    """The model that fine-tuning starts from."""

    folder: Path
    model: CaptionerModel
    config: CaptionerConfig
    vocabulary: Vocabulary
    signature: str
    """Of the folder's weights."""

    @classmethod
    def load(cls, folder: Path) -> "Start":
        """Loads a captioner of photographs, in single precision.

        Raises:
            ValueError: The folder holds something else.
        """
        model, config, companions = load_model(folder, "captioning")
        if not isinstance(model.encoder, PhotoEncoder):
            raise ValueError(
                f"{folder} is a model of regions, which needs features in place of photographs: "
                "fine-tune it with ngsan train and --init-from"
            )
        config.require_transformer("fine-tuning")
        signature = metadata_of(folder / WEIGHTS)["signature"]
        return cls(folder, model.float(), config, companions["vocabulary"], signature)

    @property
    def layers(self) -> int:
        """Layers of the encoder."""
        return self.config.layers


class TopEncoder(Encoder):
    """The last layers of an encoder of cells, on what the layers below made of them."""

    takes_regions = True
    needs_boxes = False
    boxes: Tensor

    def __init__(self, encoder: PhotoEncoder, layers: int) -> None:
        """Takes the layers from an encoder.

        Args:
            encoder: The whole encoder.
            layers: How many layers are trained, from the top; 0 leaves the last norm only.
        """
        super().__init__()
        regions = encoder.regions
        self.layers = nn.ModuleList(list(regions.layers)[len(regions.layers) - layers :])
        self.norm = regions.norm
        self.relative, self.signed, self.plus_one = (
            regions.relative,
            regions.signed_geometry,
            regions.plus_one,
        )
        self.register_buffer("boxes", encoder.boxes[None].clone(), persistent=False)

    def forward(
        self,
        features: Tensor,
        boxes: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        record: list[AttentionMaps] | None = None,
    ) -> Tensor:
        """(B, N, D) from `encode_below`, to (B, N, D)."""
        x, geometry = features, None
        if self.relative and len(self.layers):
            geometry = relative_geometry(
                self.boxes, None, signed=self.signed, plus_one=self.plus_one
            )
        for layer in self.layers:
            x = layer(x, mask=None, geometry=geometry, record=record)
        encoded: Tensor = self.norm(x)
        return encoded


def top_of(model: CaptionerModel, layers: int) -> CaptionerModel:
    """The part of a captioner of photographs that is trained; it shares the weights."""
    assert isinstance(model.encoder, PhotoEncoder)
    return CaptionerModel(TopEncoder(model.encoder, layers), model.decoder)


def whole_name(name: str, layers: int, trained: int) -> str:
    """The name that a weight of `top_of` has in the whole model.

    Args:
        name: In the part.
        layers: Layers of the encoder.
        trained: How many of them are in the part.
    """
    parts = name.split(".")
    if parts[0] == "encoder":
        if parts[1] == "layers":
            parts[2] = str(int(parts[2]) + layers - trained)
        parts.insert(1, "regions")
    return ".".join(parts)


@torch.inference_mode()
def encode_below(start: Start, cells: NDArray[np.float32], layers: int) -> NDArray[np.float32]:
    """What enters the trained layers: (B, N, C) cells to (B, N, D).

    Args:
        start: The model.
        cells: From its backbone.
        layers: How many layers of the encoder are trained.
    """
    encoder = start.model.encoder
    assert isinstance(encoder, PhotoEncoder)
    regions = encoder.regions
    kept, norm = regions.layers, regions.norm
    regions.layers, regions.norm = kept[: len(kept) - layers], nn.Identity()
    try:
        encoded: NDArray[np.float32] = encoder(torch.from_numpy(cells)).numpy()
    finally:
        regions.layers, regions.norm = kept, norm
    return encoded


class PhotoReader:
    """Encodes photographs for training."""

    def __init__(self, start: Start, layers: int, *, threads: int | None = None) -> None:
        """Opens the backbone, with ONNX Runtime if the model is packed.

        Args:
            start: The model.
            layers: How many layers of its encoder are trained.
            threads: CPU threads; None for one per core.
        """
        self._start, self._layers = start, layers
        packed = (start.folder / MANIFEST).is_file()
        self._backend = OnnxBackend(start.folder, threads=threads) if packed else None

    @property
    def source(self) -> str:
        """Says how the features are made; equal for equal ones."""
        below = self._start.layers - self._layers
        return f"encoded by {self._start.signature[:12]}, {below} layers"

    def cells(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(B, S, S, 3) RGB to the cells (B, N, C)."""
        if self._backend is not None:
            return self._backend.describe(images)[0]
        encoder = self._start.model.encoder
        assert isinstance(encoder, PhotoEncoder)
        with torch.inference_mode():
            pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
            cells: NDArray[np.float32] = encoder.backbone(pixels).numpy()
        return cells

    def regions(self, cells: NDArray[np.float32]) -> list[Regions]:
        """(B, N, C) cells as entries of the store, (N, D) each."""
        encoded = encode_below(self._start, cells, self._layers)
        return [Regions(one, None, None) for one in encoded]

    def read(
        self,
        files: Mapping[str, Path],
        on_bad: Callable[[str, ImageError], None],
        *,
        flip: bool = False,
    ) -> Iterator[tuple[str, Regions]]:
        """Encodes files.

        Args:
            files: By id.
            on_bad: Receives the id of a file that cannot be read, and what is wrong.
            flip: Whether to mirror them.

        Yields:
            The id and the entry of each other file.
        """
        batch: dict[str, NDArray[np.uint8]] = {}
        size = self._start.config.image_size
        for image, path in files.items():
            try:
                pixels = shared_service().squares(path, (size,)).squares[0]
            except ImageError as error:
                on_bad(image, error)
                continue
            batch[image] = pixels[:, ::-1] if flip else pixels
            if len(batch) == _BATCH:
                yield from self._encoded(batch)
                batch = {}
        if batch:
            yield from self._encoded(batch)

    def _encoded(self, batch: Mapping[str, Any]) -> Iterator[tuple[str, Regions]]:
        cells = self.cells(np.stack(list(batch.values())))
        yield from zip(batch, self.regions(cells), strict=True)
