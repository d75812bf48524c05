"""Where regions come from: the cells of the grid backbone, or anything else that makes regions.

Shapes: `N` regions of an image, `d` feature width.
"""

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import nn

from ngsan.data.store import Regions
from ngsan.vision.backbone import GridBackbone, Top, build_backbone
from ngsan.vision.efficientnet import fold_norms
from ngsan.vision.images import to_square


class RegionSource(Protocol):
    """Makes regions of pictures; whatever has these parts can be used."""

    feature_dim: int
    """d, the width of the features."""

    signature: str
    """What makes the regions, told apart from all that would make others."""

    near: int | None
    """The least width and height of a picture that it need be given; None for the whole."""

    def prepare(self, image: Image.Image) -> Image.Image:
        """What can be done to a picture ahead, in any thread: a smaller one, if that will do."""

    def regions(self, images: Sequence[Image.Image]) -> list[Regions]:
        """The regions of pictures, prepared or not, upright and RGB.

        Raises:
            ValueError: It finds no region in one of them.
        """


class GridSource:
    """The cells of a backbone as regions."""

    def __init__(self, backbone: GridBackbone, device: str | torch.device = "cpu") -> None:
        """Takes a backbone, of which it makes a copy that only looks.

        Args:
            backbone: What describes the cells.
            device: Where it runs.
        """
        self.feature_dim = backbone.channels
        # Twice, such that squashing still averages over several pixels.
        self.near: int | None = 2 * backbone.size
        self.signature = (
            f"grid {backbone.network.name} {weights_hash(backbone)}, {backbone.size} px, "
            f"{backbone.cells} cells x {backbone.channels}"
        )
        self._size, self._device = backbone.size, torch.device(device)
        self._boxes = backbone.cell_boxes().cpu().numpy()
        made = copy.deepcopy(backbone).eval().requires_grad_(False)
        fold_norms(made)
        # The numbers of a pixel side by side, and norms folded: twice as fast on a CPU.
        made = made.to(self._device)
        self._backbone = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def prepare(self, image: Image.Image) -> Image.Image:
        """The picture, squashed."""
        if image.size == (self._size, self._size):
            return image
        return Image.fromarray(to_square(image, self._size))

    @torch.inference_mode()
    def regions(self, images: Sequence[Image.Image]) -> list[Regions]:
        """Every cell of every picture, all pictures at once."""
        pixels = np.stack([np.asarray(self.prepare(image)) for image in images])
        cells = self._backbone(torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2))
        features = cells.to(torch.float16).cpu().numpy()
        return [
            Regions(found, self._boxes, image.size)
            for found, image in zip(features, images, strict=True)
        ]


def open_source(
    text: str, *, size: int = 256, top: Top = "features", device: str | torch.device = "cpu"
) -> RegionSource:
    """Opens a source of regions by name.

    Args:
        text: "grid" for the cells of EfficientNet-Lite2, "grid:NAME" for those of another of its
            family, "onnx:FILE" for a detector, "torchvision:NAME" for one of torchvision.
        size: Side of the squares that a grid looks at.
        top: Last layer of a grid's backbone.
        device: Where a grid or a detector of torchvision runs.

    Raises:
        ValueError: There is no such source, or a package that it needs is missing.
    """
    kind, _, name = text.partition(":")
    if kind == "grid":
        backbone = build_backbone(name or "efficientnet-lite2", size=size, top=top)
        return GridSource(backbone, device)
    if kind in ("onnx", "torchvision") and name:
        # Imported here, as most people never need a detector.
        from ngsan.vision.detectors import OnnxDetectorSource, TorchvisionSource

        return OnnxDetectorSource(Path(name)) if kind == "onnx" else TorchvisionSource(name, device)
    raise ValueError(f"source: {text!r} is none of grid, grid:NAME, onnx:FILE and torchvision:NAME")


def weights_hash(module: nn.Module) -> str:
    """A short text that differs between modules whose weights differ in any bit."""
    digest = hashlib.blake2b(digest_size=6)
    for name, weight in sorted(module.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
