"""Detectors of other libraries: `hf:NAME` of transformers and `torchvision:NAME`, with PyTorch.

Shapes: `Q` queries, `C` classes, `S` side of a square image, `K` detections.
"""

from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ngsan.vision.detector import (
    MAX_BOXES,
    MIN_SCORE,
    Detections,
    best_detections,
    check_pixels,
    optional,
    select,
)
from ngsan.vision.hub import LIBRARIES, quiet

_TORCHVISION_SIZE = 800
"""torchvision's detectors scale images to about this side themselves."""


class HuggingFaceDetector:
    """A detector of `AutoModelForObjectDetection`, such as DETR, YOLOS, RT-DETR or D-FINE.

    Note: Its image processor is replaced by its own numbers, so that torchvision is not needed;
    images are squares rather than padded.
    """

    def __init__(self, name: str, device: str = "cpu") -> None:
        """Opens a detector.

        Args:
            name: A name on the hub, or a folder.
            device: Where it runs.

        Raises:
            ValueError: transformers is missing, or has no such detector.
        """
        transformers = optional("transformers", "'ngsan[train]'")
        described = LIBRARIES["hf"].describe(name)
        try:
            with quiet(transformers.utils.logging):
                model = transformers.AutoModelForObjectDetection.from_pretrained(
                    name, trust_remote_code=False
                )
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"hf:{name} is not a detector of transformers: {reason}") from None
        self._model: nn.Module = model.to(device).eval()
        labels: dict[int, str] = model.config.id2label
        self.names: tuple[str, ...] = tuple(labels[number] for number in range(len(labels)))
        self.size: int = described.size
        self._mean, self._deviation = (
            torch.tensor(list(values), device=device).view(-1, 1, 1)
            for values in (described.mean, described.deviation)
        )

    @torch.inference_mode()
    def detect(
        self,
        pixels: NDArray[np.uint8],
        *,
        max_boxes: int = MAX_BOXES,
        min_score: float = MIN_SCORE,
        by_class: bool = True,
    ) -> Detections:
        """See `Detector.detect`."""
        check_pixels(pixels, self.size)
        image = torch.from_numpy(pixels).to(self._mean.device).permute(2, 0, 1)
        found = self._model(pixel_values=((image - self._mean) / self._deviation)[None])
        logits = found.logits[0].float()  # (Q, C), or (Q, C + 1) with the class of nothing last
        if logits.shape[1] > len(self.names):
            scores = logits.softmax(1)[:, : len(self.names)]
        else:
            scores = logits.sigmoid()
        boxes = found.pred_boxes[0].float().cpu().numpy()
        # These models are trained to find every object once.
        return select(
            scores.cpu().numpy(),
            boxes,
            max_boxes=max_boxes,
            min_score=min_score,
            overlap=1.0,
            by_class=by_class,
        )


class TorchvisionDetector:
    """A detector of torchvision by name, with its own weights.

    Note: It drops weak boxes itself, so that `class_scores` is 0 for classes without a box.
    """

    size = _TORCHVISION_SIZE

    def __init__(self, name: str, device: str = "cpu") -> None:
        """Opens a detector, whose weights may be downloaded.

        Args:
            name: A builder in `torchvision.models.detection`.
            device: Where it runs.

        Raises:
            ValueError: torchvision is missing, or has no such detector.
        """
        self._model, self._device = build_torchvision(name).to(device).eval(), device
        weights = import_module("torchvision.models").get_model_weights(name).DEFAULT
        self.names: tuple[str, ...] = tuple(weights.meta["categories"])

    @torch.inference_mode()
    def detect(
        self,
        pixels: NDArray[np.uint8],
        *,
        max_boxes: int = MAX_BOXES,
        min_score: float = MIN_SCORE,
        by_class: bool = True,
    ) -> Detections:
        """See `Detector.detect`."""
        check_pixels(pixels, self.size)
        image = torch.from_numpy(pixels).to(self._device).permute(2, 0, 1) / 255
        (found,) = self._model([image])
        corners, scores, classes = (
            found[name].cpu().numpy() for name in ("boxes", "scores", "labels")
        )
        low, high = corners[:, :2] / self.size, corners[:, 2:] / self.size
        class_scores = np.zeros(len(self.names), np.float32)
        np.maximum.at(class_scores, classes, scores)
        order = np.argsort(-scores, kind="stable")
        order = order[scores[order] >= min_score]
        return best_detections(
            np.concatenate(((low + high) / 2, high - low), 1)[order],
            scores[order],
            classes[order],
            class_scores,
            max_boxes=max_boxes,
            by_class=by_class,
        )


def build_torchvision(name: str, weights: str | Path | None = None) -> nn.Module:
    """A detector of torchvision.

    Args:
        name: A builder in `torchvision.models.detection`, such as "fasterrcnn_resnet50_fpn_v2".
        weights: A file with weights; None for torchvision's own, which may be downloaded.

    Raises:
        ValueError: torchvision is missing, or the detector is unknown.
    """
    optional("torchvision", "torchvision")
    build = getattr(import_module("torchvision.models.detection"), name, None)
    if build is None or not callable(build):
        raise ValueError(f"torchvision.models.detection has no {name!r}")
    if weights is None:
        made: nn.Module = build(weights="DEFAULT")
        return made
    made = build(weights=None, weights_backbone=None)
    made.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return made
