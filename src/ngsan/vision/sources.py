"""Sources of regions: the cells of the grid backbone, or the boxes of a detector.

Shapes: `N` regions of an image, `d` feature width.
"""

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from ngsan.data.store import Regions
from ngsan.vision.backbone import Top, build_backbone, fold_norms
from ngsan.vision.detector import open_graph
from ngsan.vision.grid import GridBackbone
from ngsan.vision.hub import LIBRARIES
from ngsan.vision.images import to_square
from ngsan.vision.regions import RegionSource
from ngsan.vision.torch_detectors import build_torchvision

MAX_REGIONS = 36
"""Default limit of boxes per image; those with the highest scores are kept."""


class GridSource:
    """The cells of a backbone as regions; uses a copy of the backbone."""

    def __init__(self, backbone: GridBackbone, device: str | torch.device = "cpu") -> None:
        self.feature_dim = backbone.channels
        # Twice the size, so that resizing still averages over several pixels.
        self.min_side: int | None = 2 * backbone.size
        self.signature = (
            f"grid {backbone.name} {weights_hash(backbone)}, {backbone.size} px, "
            f"{backbone.cells} cells x {backbone.channels}"
        )
        self._size, self._device = backbone.size, torch.device(device)
        self._boxes = backbone.cell_boxes().cpu().numpy()
        self._backbone = frozen(backbone, self._device)

    def prepare(self, image: Image.Image) -> Image.Image:
        """The image, resized to a square."""
        if image.size == (self._size, self._size):
            return image
        return Image.fromarray(to_square(image, self._size))

    @torch.inference_mode()
    def regions(self, images: Sequence[Image.Image], names: Sequence[str] = ()) -> list[Regions]:
        """All cells of all images, in one batch."""
        pixels = np.stack([np.asarray(self.prepare(image)) for image in images])
        cells = self._backbone(torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2))
        features = cells.to(torch.float16).cpu().numpy()
        return [
            Regions(found, self._boxes, image.size)
            for found, image in zip(features, images, strict=True)
        ]


class OnnxDetectorSource:
    """A detector in an ONNX file; docs/extraction.md defines its input and outputs."""

    min_side: int | None = None

    def __init__(
        self,
        path: str | Path,
        *,
        max_regions: int = MAX_REGIONS,
        max_side: int = 1333,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        threads: int = 0,
    ) -> None:
        """Opens a detector.

        Args:
            path: The ONNX file.
            max_regions: Number of boxes to keep.
            max_side: Larger images are reduced to this longer side, if the graph accepts any size.
            providers: Execution providers of ONNX Runtime, the preferred one first.
            threads: Threads of ONNX Runtime; 0 for one per core.

        Raises:
            ValueError: ONNX Runtime is missing, or the file is not a suitable graph.
        """
        self._path, self._max_regions, self._max_side = Path(path), max_regions, max_side
        self._session = open_graph(self._path, threads=threads, providers=providers)
        self._input, self._sides, self._bytes = self._check_input()
        self.feature_dim, self._outputs = self._check_outputs()
        digest = hashlib.blake2b(self._path.read_bytes(), digest_size=6).hexdigest()
        self.signature = f"onnx {self._path.name} {digest}, at most {max_regions} regions"

    def prepare(self, image: Image.Image) -> Image.Image:
        """The image in the size that the graph accepts."""
        size = self._sides
        if size is None:
            factor = min(1.0, self._max_side / max(image.size))
            size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
        if size == image.size:
            return image
        return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)

    def regions(self, images: Sequence[Image.Image], names: Sequence[str] = ()) -> list[Regions]:
        """The boxes of every image, one image at a time."""
        return [self._detect(image) for image in images]

    def _detect(self, image: Image.Image) -> Regions:
        picture = self.prepare(image)
        pixels = np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1)[None])
        if not self._bytes:
            pixels = pixels.astype(np.float32) / 255
        given = self._session.run(self._outputs, {self._input: pixels})
        ranks = {"features": 2, "boxes": 2, "scores": 1}
        found = {
            name: one[0] if one.ndim == ranks[name] + 1 and len(one) == 1 else one
            for name, one in zip(self._outputs, given, strict=True)
        }
        return best_regions(
            found["features"],
            found["boxes"],
            picture.size,
            max_regions=self._max_regions,
            scores=found.get("scores"),
            size=image.size,
        )

    def _check_input(self) -> tuple[str, tuple[int, int] | None, bool]:
        """The input's name, its width and height if fixed, and whether it is uint8."""
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        # A size that is not an integer is dynamic.
        fits = len(shape) == 4 and all(
            size == axis or not isinstance(axis, int)
            for size, axis in zip((1, 3), shape[:2], strict=True)
        )
        kinds = {"tensor(uint8)": True, "tensor(float)": False}
        if not fits or inputs[0].type not in kinds:
            found = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs)
            raise ValueError(
                f"{self._path}: a detector must have one input (1, 3, height, width), uint8 or "
                f"float, but this one has {found}"
            )
        fixed = all(isinstance(side, int) for side in shape[2:])
        return inputs[0].name, (shape[3], shape[2]) if fixed else None, kinds[inputs[0].type]

    def _check_outputs(self) -> tuple[int, list[str]]:
        """The width of the features, and the names of the used outputs."""
        outputs = {one.name: one.shape for one in self._session.get_outputs()}
        if not {"features", "boxes"} <= outputs.keys():
            raise ValueError(
                f"{self._path}: a detector must return 'features' and 'boxes', but this one "
                f"returns {', '.join(outputs)}"
            )
        width = outputs["features"][-1] if outputs["features"] else None
        if not isinstance(width, int):
            raise ValueError(f"{self._path}: the last axis of 'features' must have a fixed size")
        return width, [name for name in ("features", "boxes", "scores") if name in outputs]


class TorchvisionSource:
    """A Faster R-CNN of torchvision: its boxes with the highest scores, and their features."""

    min_side: int | None = None

    def __init__(
        self,
        name: str,
        device: str | torch.device = "cpu",
        *,
        weights: str | Path | None = None,
        max_regions: int = MAX_REGIONS,
    ) -> None:
        """Builds a detector.

        Args:
            name: A builder in `torchvision.models.detection`, such as
                "fasterrcnn_resnet50_fpn_v2".
            device: Device of the detector.
            weights: A file with weights; None for torchvision's own, which may be downloaded.
            max_regions: Number of boxes to keep.

        Raises:
            ValueError: torchvision is missing, or the detector is unknown or unsuitable.
        """
        model: Any = build_torchvision(name, weights)
        heads = getattr(model, "roi_heads", None)
        if heads is None or not hasattr(heads, "box_head"):
            raise ValueError(
                f"{name!r} has no features per box; choose a Faster R-CNN or Mask R-CNN"
            )
        self._model, self._device, self._max_regions = model.to(device).eval(), device, max_regions
        self.feature_dim = int(heads.box_predictor.cls_score.in_features)
        self.signature = f"torchvision {name} {weights_hash(model)}, at most {max_regions} regions"

    def prepare(self, image: Image.Image) -> Image.Image:
        """The image itself; the detector scales it."""
        return image

    def regions(self, images: Sequence[Image.Image], names: Sequence[str] = ()) -> list[Regions]:
        """The boxes of every image, one image at a time."""
        return [self._detect(image) for image in images]

    @torch.inference_mode()
    def _detect(self, image: Image.Image) -> Regions:
        model, heads = self._model, self._model.roi_heads
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).to(self._device) / 255
        scaled, _ = model.transform([pixels])
        maps = model.backbone(scaled.tensors)
        if isinstance(maps, Tensor):
            maps = {"0": maps}
        proposals, _ = model.rpn(scaled, maps)
        (found,), _ = heads(maps, proposals, scaled.image_sizes)
        # The heads return boxes and scores; pooling again gives the features of the boxes.
        boxes = found["boxes"][: self._max_regions]
        pooled = heads.box_roi_pool(maps, [boxes], scaled.image_sizes)
        features = heads.box_head(pooled)
        height, width = scaled.image_sizes[0]
        return best_regions(
            features.float().cpu().numpy(),
            boxes.float().cpu().numpy(),
            (int(width), int(height)),
            max_regions=self._max_regions,
            scores=found["scores"][: self._max_regions].float().cpu().numpy(),
            size=image.size,
        )


def best_regions(
    features: NDArray[Any],
    corners: NDArray[Any],
    within: tuple[int, int],
    *,
    max_regions: int,
    scores: NDArray[Any] | None = None,
    size: tuple[int, int] | None = None,
) -> Regions:
    """Selects and converts a detector's output.

    Args:
        features: (N, d).
        corners: (N, 4): left, top, right and bottom in pixels of the detector's input. Boxes are
            clipped to the image; empty boxes are dropped.
        within: Width and height of the detector's input.
        max_regions: Number of boxes to keep.
        scores: (N) confidence of each box; None if the boxes are sorted already.
        size: Width and height of the original image.

    Raises:
        ValueError: The shapes do not match, or no box is left.
    """
    if not (features.ndim == 2 and corners.shape == (len(features), 4)) or (
        scores is not None and scores.shape != (len(features),)
    ):
        shapes = [features.shape, corners.shape, None if scores is None else scores.shape]
        raise ValueError(
            f"the detector's features, boxes and scores have shapes {shapes} instead of (N, d), "
            "(N, 4) and (N)"
        )
    order = np.arange(len(features)) if scores is None else np.argsort(-scores, kind="stable")
    sides = np.array([*within, *within], np.float64)
    cut = (corners.astype(np.float64) / sides).clip(0, 1)
    low, high = cut[:, :2], cut[:, 2:]
    boxes = np.concatenate(((low + high) / 2, high - low), 1).astype(np.float32)
    # False for NaN, too.
    kept = [number for number in order if (boxes[number, 2:] > 0).all()][:max_regions]
    if not kept:
        raise ValueError("the detector found no regions")
    return Regions(features[kept], boxes[kept], size)


def open_source(
    text: str, *, size: int = 0, top: Top = "features", device: str | torch.device = "cpu"
) -> RegionSource:
    """Opens a source of regions by name.

    Args:
        text: "grid" for the cells of EfficientNet-Lite2, "grid:NAME" for another member of its
            family, "hf:NAME" or "timm:NAME" for those of a model of transformers or timm,
            "onnx:FILE" for a detector, "torchvision:NAME" for a detector of torchvision.
        size: Image side of a grid; 0 for the side that its network was made for.
        top: Last layer of a grid's backbone.
        device: Device of a grid or a torchvision detector.
    """
    kind, _, name = text.partition(":")
    if kind == "grid" or kind in LIBRARIES:
        whole = text if kind in LIBRARIES else name or "efficientnet-lite2"
        backbone = build_backbone(whole, size=size, top=top)
        return GridSource(backbone, device)
    if kind in ("onnx", "torchvision") and name:
        return OnnxDetectorSource(Path(name)) if kind == "onnx" else TorchvisionSource(name, device)
    raise ValueError(
        f"unknown source {text!r}; use grid, grid:NAME, hf:NAME, timm:NAME, onnx:FILE or "
        "torchvision:NAME"
    )


def frozen(backbone: GridBackbone, device: torch.device) -> GridBackbone:
    """A copy of a backbone for inference."""
    made = copy.deepcopy(backbone).eval().requires_grad_(False)
    fold_norms(made)
    # Channels last and folded norms are twice as fast on a CPU.
    made = made.to(device)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def weights_hash(module: nn.Module) -> str:
    """A short hash of all weights of a module."""
    digest = hashlib.blake2b(digest_size=6)
    for name, weight in sorted(module.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
