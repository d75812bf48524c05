"""Objects in photographs: boxes, classes and scores, from the shipped detector or any other.

Shapes: `S` side of a square image, `A` anchors, `C` classes, `K` detections.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SHIPPED_DETECTOR = Path(__file__).parents[1] / "shipped" / "detector" / "detector.onnx"
"""EfficientDet-Lite2 with COCO's 80 classes."""

MAX_BOXES = 100
"""Default limit of detections of an image."""

MIN_SCORE = 0.05
"""Default limit of a detection's score."""

MIN_CONFIDENCE = 0.35
"""Default limit of an object's confidence where people read it."""

_LIBRARIES = {"hf": "HuggingFaceDetector", "torchvision": "TorchvisionDetector"}
"""The classes of other libraries' detectors in `ngsan.vision.torch_detectors`, by prefix."""

OVERLAP = 0.5
"""Of two boxes of a class with a larger intersection over union, the weaker is dropped."""

_CANDIDATES = 1000
"""Number of boxes that compete, those with the highest scores."""


@dataclass(frozen=True, eq=False)
class Detections:
    """The objects of an image, the most certain first."""

    boxes: NDArray[np.float32]
    """(K, 4) `cxcywh` relative to the image."""

    scores: NDArray[np.float32]
    """(K,) from 0 to 1."""

    classes: NDArray[np.int64]
    """(K,) indices into the detector's names."""

    class_scores: NDArray[np.float32]
    """(C,) the highest score of each class anywhere in the image, however low."""


class Object(NamedTuple):
    """An object in a photograph."""

    label: str
    """The name of its class."""

    box: tuple[float, float, float, float]
    """`cxcywh` relative to the image."""

    confidence: float
    """From 0 to 1."""

    def as_record(self) -> dict[str, Any]:
        """The object for JSON, in sensible precision."""
        box = [round(side, 4) for side in self.box]
        return {"label": self.label, "box": box, "confidence": round(self.confidence, 4)}


class Detector(Protocol):
    """Finds objects."""

    names: tuple[str, ...]
    """The names of the classes."""

    size: int
    """S, the side of the images."""

    def detect(
        self,
        pixels: NDArray[np.uint8],
        *,
        max_boxes: int = MAX_BOXES,
        min_score: float = MIN_SCORE,
        by_class: bool = True,
    ) -> Detections:
        """Finds the objects of an image.

        Args:
            pixels: (S, S, 3) RGB, as `ngsan.vision.images.to_square` returns it.
            max_boxes: Limit of their number.
            min_score: Limit of their scores.
            by_class: Whether only boxes of the same class are duplicates.
        """


class OnnxDetector:
    """A graph of `benchmarks/convert_detector.py` in ONNX Runtime. It is thread-safe."""

    def __init__(self, path: str | Path = SHIPPED_DETECTOR, *, threads: int | None = None) -> None:
        """Opens a detector.

        Args:
            path: The graph.
            threads: Threads of ONNX Runtime; None for one per core.

        Raises:
            ValueError: The file is missing or not such a graph, or ONNX Runtime is missing.
        """
        self._session = open_graph(Path(path), threads=threads or 0)
        about = self._session.get_modelmeta().custom_metadata_map
        if not {"names", "logits"} <= about.keys():
            raise ValueError(f"{path} is not a detector: it lacks the names of its classes")
        self.names: tuple[str, ...] = tuple(json.loads(about["names"]))
        self.size: int = self._session.get_inputs()[0].shape[1]
        logits = json.loads(about["logits"])
        steps = (np.arange(256) - int(logits["zero"])) * float(logits["scale"])
        self._scores = (1 / (1 + np.exp(-steps))).astype(np.float32)

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
        logits, boxes = self._session.run(["logits", "boxes"], {"images": pixels[None]})
        return select(
            logits[0],
            boxes[0],
            max_boxes=max_boxes,
            min_score=min_score,
            scores=self._scores,
            by_class=by_class,
        )


def select(
    ranks: NDArray[Any],
    boxes: NDArray[np.float32],
    *,
    max_boxes: int,
    min_score: float,
    scores: NDArray[np.float32] | None = None,
    overlap: float = OVERLAP,
    by_class: bool = True,
) -> Detections:
    """The detections among all anchors or queries.

    Args:
        ranks: (A, C) scores, or bytes that are sorted like them.
        boxes: (A, 4) `cxcywh`, relative to the image.
        max_boxes: Limit of their number.
        min_score: Limit of their scores.
        scores: (256,) the score of each byte.
        overlap: See `without_duplicates`.
        by_class: Whether a box may be found once for each class, and only boxes of the same class
            are duplicates.
    """
    lowest = min_score if scores is None else int(np.searchsorted(scores, min_score))
    flat = ranks.reshape(-1) if by_class else ranks.max(1)
    places = np.flatnonzero(flat >= lowest)
    if len(places) > _CANDIDATES:  # a partition is faster than sorting them all
        values = flat[places]
        places = places[values >= np.partition(values, -_CANDIDATES)[-_CANDIDATES]]
    order = np.argsort(-flat[places].astype(np.float32), kind="stable")[:_CANDIDATES]
    places = places[order]
    found, best = flat[places], ranks.max(0)
    if by_class:
        anchors, classes = np.divmod(places, ranks.shape[1])
    else:
        anchors, classes = places, ranks[places].argmax(1)
    if scores is not None:
        found, best = scores[found], scores[best]
    return best_detections(
        boxes[anchors],
        found,
        classes,
        best,
        max_boxes=max_boxes,
        overlap=overlap,
        by_class=by_class,
    )


def best_detections(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.int64],
    class_scores: NDArray[np.float32],
    *,
    max_boxes: int,
    overlap: float = OVERLAP,
    by_class: bool = True,
) -> Detections:
    """Drops duplicates, clips boxes to the image and drops those outside it.

    Args:
        boxes: (A, 4) `cxcywh`, relative to the image.
        scores: (A,) in descending order.
        classes: (A,).
        class_scores: (C,).
        max_boxes: Limit of the number of detections.
        overlap: See `without_duplicates`.
        by_class: Whether only boxes of the same class are duplicates.
    """
    low = (boxes[:, :2] - boxes[:, 2:] / 2).clip(0, 1)
    high = (boxes[:, :2] + boxes[:, 2:] / 2).clip(0, 1)
    inside = (high > low).all(1)  # False for NaN, too
    corners = np.concatenate((low, high), 1)[inside]
    groups = classes[inside] if by_class else np.zeros(len(corners), np.int64)
    best = without_duplicates(corners, groups, max_boxes, overlap)
    kept = np.flatnonzero(inside)[best]
    return Detections(
        np.concatenate(((low + high) / 2, high - low), 1)[kept].astype(np.float32),
        scores[kept].astype(np.float32),
        classes[kept].astype(np.int64),
        class_scores,
    )


def without_duplicates(
    corners: NDArray[np.float32],
    classes: NDArray[np.int64],
    max_boxes: int,
    overlap: float = OVERLAP,
) -> NDArray[np.int64]:
    """The indices of boxes that no better box of their class overlaps too much.

    Args:
        corners: (A, 4) left, top, right and bottom, the best box first.
        classes: (A,).
        max_boxes: Limit of the number of indices.
        overlap: The largest intersection over union; 1 keeps all.
    """
    areas = (corners[:, 2:] - corners[:, :2]).prod(1)
    left = np.arange(len(corners))
    kept: list[int] = []
    while len(left) and len(kept) < max_boxes:
        best, left = left[0], left[1:]
        kept.append(int(best))
        low = np.maximum(corners[best, :2], corners[left, :2])
        high = np.minimum(corners[best, 2:], corners[left, 2:])
        shared = (high - low).clip(0).prod(1)
        union = areas[best] + areas[left] - shared
        left = left[(shared <= overlap * union) | (classes[left] != classes[best])]
    return np.array(kept, np.int64)


def objects_of(found: Detections, names: Sequence[str]) -> list[Object]:
    """Detections as objects with names."""
    return [
        Object(names[number], (box[0], box[1], box[2], box[3]), score)
        for number, box, score in zip(
            found.classes.tolist(), found.boxes.tolist(), found.scores.tolist(), strict=True
        )
    ]


def open_graph(
    path: Path, *, threads: int = 0, providers: Sequence[str] = ("CPUExecutionProvider",)
) -> Any:
    """A session of ONNX Runtime.

    Args:
        path: The ONNX file.
        threads: Threads of ONNX Runtime; 0 for one per core.
        providers: Execution providers of ONNX Runtime, the preferred one first.

    Raises:
        ValueError: The file is missing or damaged, or ONNX Runtime is missing.
    """
    if not path.is_file():
        raise ValueError(f"{path}: file not found")
    runtime = optional("onnxruntime", "ngsan")
    errors = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    # A thread that waits for the next image must not keep a core busy.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # In a server, graphs share their memory; see ngsan.app.memory.
    options.add_session_config_entry("session.use_env_allocators", "1")
    try:
        return runtime.InferenceSession(path.read_bytes(), options, providers=[*providers])
    except (errors.Fail, errors.InvalidProtobuf, errors.InvalidGraph, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else "damaged"
        raise ValueError(f"{path}: ONNX Runtime cannot open it: {reason}") from None


def optional(package: str, install: str) -> Any:
    """Imports a package; raises a `ValueError` that says how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise ValueError(f"this needs {package}: pip install {install}") from None


def check_pixels(pixels: NDArray[np.uint8], size: int) -> None:
    """Raises a `ValueError` unless an image is (S, S, 3) of bytes."""
    if pixels.shape != (size, size, 3) or pixels.dtype != np.uint8:
        raise ValueError(
            f"pixels must be ({size}, {size}, 3) uint8, not {pixels.shape} {pixels.dtype}"
        )


def load_detector(
    name: str | None = None, *, threads: int | None = None, device: str = "cpu"
) -> Detector:
    """Opens a detector.

    Args:
        name: None for the one that comes with the package. "hf:NAME" for one of Hugging Face's
            transformers, by its name on the hub or a folder. "torchvision:NAME" for one of
            torchvision. Else an ONNX file of `benchmarks/convert_detector.py`.
        threads: Threads of ONNX Runtime; None for one per core.
        device: Where PyTorch runs a detector of another library.

    Raises:
        ValueError: There is no such detector, or a package is missing.
    """
    kind, _, which = (name or "").partition(":")
    if kind not in _LIBRARIES or not which:
        return OnnxDetector(name or SHIPPED_DETECTOR, threads=threads)
    optional("torch", "'ngsan[train]'")
    builders = import_module("ngsan.vision.torch_detectors")
    made: Detector = getattr(builders, _LIBRARIES[kind])(which, device)
    return made
