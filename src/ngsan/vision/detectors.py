"""Detectors as sources of regions: an ONNX file of the user's own, or one of torchvision's.

Shapes: `N` boxes of a picture, `d` feature width.
"""

import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ngsan.data.store import Regions
from ngsan.vision.sources import weights_hash

MOST_REGIONS = 36
"""Boxes that are kept of a picture, the surest first, unless told otherwise."""


def best_regions(
    features: NDArray[Any],
    corners: NDArray[Any],
    within: tuple[int, int],
    *,
    most: int,
    scores: NDArray[Any] | None = None,
    size: tuple[int, int] | None = None,
) -> Regions:
    """What a detector found, in the form in which regions are kept.

    Args:
        features: (N, d).
        corners: (N, 4): left, top, right and bottom in pixels of the picture it was given. What
            reaches out of the picture is cut off, and boxes of which nothing is left are dropped.
        within: Width and height of that picture.
        most: Boxes to keep.
        scores: (N), how sure it is of each; None if the boxes are sorted already.
        size: Width and height of the image itself.

    Raises:
        ValueError: Features, boxes and scores do not belong together, or no box is left.
    """
    if not (features.ndim == 2 and corners.shape == (len(features), 4)) or (
        scores is not None and scores.shape != (len(features),)
    ):
        shapes = [features.shape, corners.shape, None if scores is None else scores.shape]
        raise ValueError(
            f"the detector returned features, boxes and scores of shapes {shapes}: they must be "
            "(N, d), (N, 4) and (N)"
        )
    order = np.arange(len(features)) if scores is None else np.argsort(-scores, kind="stable")
    sides = np.array([*within, *within], np.float64)
    cut = (corners.astype(np.float64) / sides).clip(0, 1)
    low, high = cut[:, :2], cut[:, 2:]
    boxes = np.concatenate(((low + high) / 2, high - low), 1).astype(np.float32)
    # Not a number is no size either.
    kept = [number for number in order if (boxes[number, 2:] > 0).all()][:most]
    if not kept:
        raise ValueError("the detector finds nothing in it")
    return Regions(features[kept], boxes[kept], size)


class OnnxDetectorSource:
    """A detector in an ONNX file; docs/extraction.md says what it takes and returns."""

    near: int | None = None

    def __init__(
        self,
        path: str | Path,
        *,
        most: int = MOST_REGIONS,
        longest: int = 1333,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        threads: int = 0,
    ) -> None:
        """Opens a detector.

        Args:
            path: The ONNX file.
            most: Boxes that are kept.
            longest: Longer side to which larger pictures are made smaller, where the graph leaves
                the size of its input open.
            providers: Execution providers of ONNX Runtime, the preferred first.
            threads: Of ONNX Runtime; 0 for one a core.

        Raises:
            ValueError: ONNX Runtime is missing, the file is no graph, or it does not take or
                return what it must.
        """
        self._path, self._most, self._longest = Path(path), most, longest
        if not self._path.is_file():
            raise ValueError(f"{path}: there is no such file")
        runtime = _optional("onnxruntime", "'ngsan[onnx]'")
        errors = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        content = self._path.read_bytes()
        try:
            self._session = runtime.InferenceSession(content, options, providers=[*providers])
        except (errors.Fail, errors.InvalidProtobuf, errors.InvalidGraph, ValueError) as error:
            said = str(error).splitlines()[0] if str(error) else "damaged"
            raise ValueError(f"{path}: ONNX Runtime cannot open it: {said}") from None
        self._input, self._sides, self._bytes = self._check_input()
        self.feature_dim, self._outputs = self._check_outputs()
        digest = hashlib.blake2b(content, digest_size=6).hexdigest()
        self.signature = f"onnx {self._path.name} {digest}, at most {most} regions"

    def prepare(self, image: Image.Image) -> Image.Image:
        """The picture in the size that the graph takes."""
        size = self._sides
        if size is None:
            factor = min(1.0, self._longest / max(image.size))
            size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
        if size == image.size:
            return image
        return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)

    def regions(self, images: Sequence[Image.Image]) -> list[Regions]:
        """The boxes of every picture, one picture at a time."""
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
            most=self._most,
            scores=found.get("scores"),
            size=image.size,
        )

    def _check_input(self) -> tuple[str, tuple[int, int] | None, bool]:
        """The input's name, its width and height if they are fixed, and whether it is bytes."""
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        # What is no number is a size that the graph leaves open.
        fits = len(shape) == 4 and all(
            size == axis or not isinstance(axis, int)
            for size, axis in zip((1, 3), shape[:2], strict=True)
        )
        kinds = {"tensor(uint8)": True, "tensor(float)": False}
        if not fits or inputs[0].type not in kinds:
            told = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs)
            raise ValueError(
                f"{self._path}: a detector takes one input of (1, 3, height, width), uint8 or "
                f"float, and this one takes {told}"
            )
        fixed = all(isinstance(side, int) for side in shape[2:])
        return inputs[0].name, (shape[3], shape[2]) if fixed else None, kinds[inputs[0].type]

    def _check_outputs(self) -> tuple[int, list[str]]:
        """The width of the features, and the names of the outputs that are used."""
        outputs = {one.name: one.shape for one in self._session.get_outputs()}
        if not {"features", "boxes"} <= outputs.keys():
            raise ValueError(
                f"{self._path}: a detector returns 'features' and 'boxes', and this one returns "
                f"{', '.join(outputs)}"
            )
        width = outputs["features"][-1] if outputs["features"] else None
        if not isinstance(width, int):
            raise ValueError(f"{self._path}: the last axis of 'features' has no fixed size")
        return width, [name for name in ("features", "boxes", "scores") if name in outputs]


class TorchvisionSource:
    """A detector of torchvision's Faster R-CNN family: its surest boxes and their features."""

    near: int | None = None

    def __init__(
        self,
        name: str,
        device: str | torch.device = "cpu",
        *,
        weights: str | Path | None = None,
        most: int = MOST_REGIONS,
    ) -> None:
        """Builds a detector.

        Args:
            name: A builder in `torchvision.models.detection`, such as
                "fasterrcnn_resnet50_fpn_v2".
            device: Where it runs.
            weights: A file with its weights; None for those that torchvision finds or fetches.
            most: Boxes that are kept.

        Raises:
            ValueError: torchvision is missing, or has no such detector, or it is of a kind whose
                boxes have no features of their own.
        """
        _optional("torchvision", "torchvision")
        builders = import_module("torchvision.models.detection")
        build = getattr(builders, name, None)
        if build is None or not callable(build):
            raise ValueError(f"torchvision.models.detection has no {name!r}")
        if weights is None:
            model = build(weights="DEFAULT")
        else:
            model = build(weights=None, weights_backbone=None)
            model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        heads = getattr(model, "roi_heads", None)
        if heads is None or not hasattr(heads, "box_head"):
            raise ValueError(
                f"{name!r} has no features for each box: choose a Faster R-CNN or Mask R-CNN"
            )
        self._model, self._device, self._most = model.to(device).eval(), device, most
        self.feature_dim = int(heads.box_predictor.cls_score.in_features)
        self.signature = f"torchvision {name} {weights_hash(model)}, at most {most} regions"

    def prepare(self, image: Image.Image) -> Image.Image:
        """The picture as it is; the detector scales it itself."""
        return image

    def regions(self, images: Sequence[Image.Image]) -> list[Regions]:
        """The boxes of every picture, one picture at a time."""
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
        # The heads tell boxes and scores; pooling once more tells what they saw in each.
        boxes = found["boxes"][: self._most]
        pooled = heads.box_roi_pool(maps, [boxes], scaled.image_sizes)
        features = heads.box_head(pooled)
        height, width = scaled.image_sizes[0]
        return best_regions(
            features.float().cpu().numpy(),
            boxes.float().cpu().numpy(),
            (int(width), int(height)),
            most=self._most,
            scores=found["scores"][: self._most].float().cpu().numpy(),
            size=image.size,
        )


def _optional(package: str, install: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise ValueError(f"this source needs {package}: pip install {install}") from None
