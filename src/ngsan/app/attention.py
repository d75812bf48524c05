"""Runs the graphs of attention and geometric bias of a captioner.

Packed models hold them as ONNX files; for any other model folder, torch computes the same. See
`ngsan.export.attention` for inputs and outputs.

Shapes: `L` layers, `H` heads, `N` regions, `D` model width, `T` words, `M` pairs of regions, `S`
steps of a surface's side.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ngsan.config import PLUS_ONE, CaptionerConfig
from ngsan.predict.manifest import (
    ATTENTION,
    BACKBONE,
    BIAS,
    MANIFEST,
    VOCABULARY,
    Manifest,
    cell_boxes,
    open_graphs,
)
from ngsan.text.vocabulary import BOUNDARY, Vocabulary

if TYPE_CHECKING:
    from ngsan.models import CaptionerModel

Floats = NDArray[np.float32]

Graph = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]
"""Computes named outputs from named inputs."""

SMALLEST_RATIO = 1e-3
"""What a size ratio of 0 is drawn as; `relative_geometry` clamps distances at the same value."""

RANGE = (0.0, 3.0)
"""Range of the axes of the figures in the paper's appendix."""

FIXED_VALUES = (0.5, 1.0, 2.0)
"""Values at which the other two numbers are fixed."""


class AttentionModel:
    """Computes the attention of a captioner. It is thread-safe."""

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        config: CaptionerConfig,
        vocabulary: Vocabulary,
        cells: Floats | None = None,
    ) -> None:
        """Wraps graphs; `open` reads them from a model folder.

        Args:
            graphs: By file name: ATTENTION, and, if the model has them, BIAS and BACKBONE.
            config: The model's configuration.
            vocabulary: Its words.
            cells: (N, 4) boxes of the cells that the backbone returns, row by row.
        """
        self._graphs, self.config, self.vocabulary = graphs, config, vocabulary
        self.has_bias, self.cell_boxes = BIAS in graphs, cells

    @classmethod
    def open(cls, folder: str | Path, *, threads: int | None = None) -> "AttentionModel":
        """Opens a model folder.

        Args:
            folder: What `ngsan pack` or `ngsan train` wrote.
            threads: Threads of ONNX Runtime; None for one per core.

        Raises:
            ValueError: The folder does not hold such a model, or a file is damaged.
        """
        folder = Path(folder)
        manifest = Manifest.load(folder) if (folder / MANIFEST).is_file() else None
        if manifest is None or ATTENTION not in manifest.sha256:
            return _open_torch(folder)
        names = [name for name in (BACKBONE, ATTENTION, BIAS) if name in manifest.sha256]
        sessions = open_graphs(folder, manifest, threads=threads, names=names)

        def graph(name: str) -> Graph:
            outputs, inputs = manifest.outputs[name], manifest.inputs[name]

            def run(given: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
                values = sessions[name].run(outputs, {key: given[key] for key in inputs})
                return dict(zip(outputs, values, strict=True))

            return run

        graphs = {name: graph(name) for name in names}
        config, vocabulary = manifest.model, manifest.words(folder / VOCABULARY)
        cells = cell_boxes(config.grid) if BACKBONE in graphs else None
        return cls(graphs, config, vocabulary, cells)

    def cell_features(self, square: NDArray[np.uint8]) -> Floats:
        """(N, F) of the cells of a photograph, (image_size, image_size, 3)."""
        found: Floats = self._graphs[BACKBONE]({"images": square[None]})["features"][0]
        return found

    def maps(
        self, features: Floats, boxes: Floats | None = None, words: Sequence[int] = ()
    ) -> Mapping[str, NDArray[Any]]:
        """The outputs of `attention.onnx` for one image.

        Args:
            features: (N, F).
            boxes: (N, 4) `cxcywh`.
            words: The ids of a caption, without its end.
        """
        given: dict[str, NDArray[Any]] = {
            "features": features[None].astype(np.float32),
            "mask": np.ones((1, len(features)), np.bool_),
            "words": np.array([[BOUNDARY, *words]], np.int64),
        }
        if boxes is not None:
            given["boxes"] = boxes[None].astype(np.float32)
        found = self._graphs[ATTENTION](given)
        return {name: value[0] for name, value in found.items()}

    def mean_inputs(self, images: Iterable[tuple[Floats, Floats | None]]) -> Floats:
        """(L, D) the mean input of each layer's bias over all regions of some images.

        Q' and K' are linear in it, so it gives the mean Q' and K'.

        Args:
            images: Features and boxes of each.

        Raises:
            ValueError: The list is empty, or the model has no bias.
        """
        self._require_bias()
        total, count = np.zeros(()), 0
        for features, boxes in images:
            inputs = self.maps(features, boxes)["inputs"]  # (L, N, D)
            total, count = total + inputs.sum(1, dtype=np.float64), count + inputs.shape[1]
        if not count:
            raise ValueError("the mean query needs at least one image")
        return (total / count).astype(np.float32)

    def bias(self, boxes: Floats, inputs: Floats) -> Floats:
        """The geometric bias of pairs of regions: (M, 2, 4) and (L, 2, D) to (L, H, M)."""
        self._require_bias()
        given = {"boxes": boxes.astype(np.float32), "inputs": inputs.astype(np.float32)}
        found: Floats = self._graphs[BIAS](given)["bias"]
        return found

    def surfaces(
        self,
        *,
        layer: int = 0,
        head: int | None = 0,
        query: Floats | None = None,
        key: Floats | None = None,
        steps: int = 31,
        two_sided: bool = False,
    ) -> "Surfaces":
        """The bias as a function of relative geometry: the two figures of the paper's appendix.

        The first has dx = |xi - xj| / wi and dy = |yi - yj| / hi as its axes at fixed dw = wi / wj
        = dh = hi / hj, the second dw and dh at fixed dx = dy. Zero is drawn as 1e-3. The boxes of
        such pairs are given to the graph.

        Note: With signed geometry the bias depends on the side, too. The surfaces then have region
            j to the right of and below region i; two-sided ones have i in the middle and j
            anywhere, with y pointing down.

        Args:
            layer: From 0.
            head: From 0, or None for the mean of the heads.
            query: (L, D) inputs of region i; None for the part of the bias that does not depend on
                it.
            key: (L, D) inputs of region j, or None.
            steps: Values of each axis.
            two_sided: Whether the position's axes range from -3 to 3.

        Raises:
            ValueError: The model has no bias, layer or head of that number, or `steps` is wrong.
        """
        self._require_bias()
        config = self.config
        if PLUS_ONE in config.geometry_terms:
            raise ValueError(f"geometry: surfaces of {PLUS_ONE} are not supported")
        check_index("layer", layer, config.layers)
        if head is not None:
            check_index("head", head, config.heads)
        if not 2 <= steps <= 201:
            raise ValueError(f"steps: {steps} is not one of 2 to 201")
        nothing = np.zeros((config.layers, config.dim), np.float32)
        pair = [nothing if given is None else given for given in (query, key)]
        offsets = (-RANGE[1], RANGE[1]) if two_sided else RANGE
        places = np.linspace(*offsets, steps)
        ratios = np.maximum(np.linspace(*RANGE, steps), SMALLEST_RATIO)
        grids: list[tuple[Any, ...]]
        grids = [(places, places[:, None], fixed, fixed) for fixed in FIXED_VALUES]
        grids += [(fixed, fixed, ratios, ratios[:, None]) for fixed in FIXED_VALUES]
        boxes = np.concatenate([_pairs(*grid) for grid in grids])
        bias = self.bias(boxes, np.stack(pair, 1))[layer]  # (H, 6 S S)
        chosen = bias.mean(0) if head is None else bias[head]
        tables = chosen.astype(np.float64).round(6).reshape(2, len(FIXED_VALUES), steps, steps)
        position, size = (
            {f"{fixed:g}": table.tolist() for fixed, table in zip(FIXED_VALUES, part, strict=True)}
            for part in tables
        )
        kind = "+".join(term for term in config.geometry_terms if term != "absolute")
        return Surfaces(kind, RANGE, steps, position, size, offsets)

    def _require_bias(self) -> None:
        if not self.has_bias:
            raise ValueError(f"geometry: {self.config.geometry}: this model has no geometric bias")


@dataclass(frozen=True)
class Surfaces:
    """The bias of one head, or of the mean of the heads, over geometry."""

    kind: str
    """The terms of the bias, such as "content-independent" or "query"."""

    range: tuple[float, float]
    """First and last value of the axes; for the position see `offsets`."""

    steps: int
    """S."""

    position: dict[str, list[list[float]]]
    """By dw = dh: (S, S) over dy (rows) and dx (columns)."""

    size: dict[str, list[list[float]]]
    """By dx = dy: (S, S) over dh (rows) and dw (columns)."""

    offsets: tuple[float, float] = RANGE
    """First and last value of the position's axes."""


def check_index(name: str, value: int, count: int) -> None:
    """Raises a `ValueError` unless a number is one of 0 to `count` - 1."""
    if not 0 <= value < count:
        raise ValueError(f"{name}: {value} is not one of 0 to {count - 1}")


def attention_shares(maps: Mapping[str, NDArray[Any]]) -> tuple[Floats, Floats | None]:
    """What content and geometry contribute to the weights of the encoder.

    Args:
        maps: Of `AttentionModel.maps`.

    Returns:
        content: (L, H, N, N) the weights that the content scores alone would give.
        geometry: (L, H, N, N) the bias, shifted in every row, which no softmax notices, such that
            the weights are `content` times its exponential; None without a bias.
    """
    scores = maps["content"].astype(np.float64)
    content = scores - _log_sum(scores)
    if "bias" not in maps:
        return np.exp(content).astype(np.float32), None
    geometry = maps["bias"] - _log_sum(content + maps["bias"])
    return np.exp(content).astype(np.float32), geometry.astype(np.float32)


def _log_sum(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithm of the sum of exponentials over the last axis, which is kept."""
    largest = scores.max(-1, keepdims=True)
    found: NDArray[np.float64] = largest + np.log(np.exp(scores - largest).sum(-1, keepdims=True))
    return found


def _pairs(dx: Any, dy: Any, dw: Any, dh: Any) -> Floats:
    """(S S, 2, 4) boxes of pairs; i is a box of width and height 1, and j lies at (dx, dy)."""
    parts = np.broadcast_arrays(dx, dy, 1 / np.asarray(dw), 1 / np.asarray(dh), 0.0, 1.0)
    x, y, width, height, zero, one = (part.ravel() for part in parts)
    first, second = (zero, zero, one, one), (x, y, width, height)
    return np.stack([np.stack(first, -1), np.stack(second, -1)], 1).astype(np.float32)


def _open_torch(folder: Path) -> AttentionModel:
    if find_spec("torch") is None:
        raise ValueError(
            f"{folder} has no graphs of attention: pip install 'ngsan[train]', or pack the model "
            "again with ngsan pack"
        )
    from ngsan.models.checkpoint import load_model

    captioner, config, companions = load_model(folder, "captioning")
    return from_torch(captioner, config, companions["vocabulary"])


def from_torch(
    captioner: "CaptionerModel", config: CaptionerConfig, vocabulary: Vocabulary
) -> AttentionModel:
    """The same graphs, computed by torch."""
    from ngsan.export.attention import torch_graphs

    config.require_transformer("an attention map")
    graphs, cells = torch_graphs(captioner)
    return AttentionModel(graphs, config, vocabulary, cells)
