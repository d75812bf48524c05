"""The encoder of regions in numpy, for the maps of small models.

ONNX Runtime runs the models; its graphs return what the decoder needs and no maps.

Shapes: `N` regions, `D` model width, `H` heads, `K` head width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.config import CaptionerConfig
from ngsan.light.manifest import Manifest
from ngsan.light.weights import SCALE, WEIGHTS, Made, read_weights
from ngsan.studio.bias import Bias, Floats, apply_linear, encoder_prefix, read_linear

_EPSILON = 1e-5


@dataclass(frozen=True)
class LayerMaps:
    """What one layer's attention looked at."""

    inputs: Floats
    """(N, D) what queries, keys, values and the bias are made of."""

    content: Floats
    """(H, N, N) the content scores, QK^T / sqrt(K)."""

    bias: Floats | None
    """(H, N, N) the geometric bias, or None without one."""

    weights: Floats
    """(H, N, N) after the softmax; a row sums to one."""


class NumpyEncoder:
    """The encoder of a model of regions, for one image at a time. Several threads may use it."""

    def __init__(self, state: Mapping[str, NDArray[Any]], config: CaptionerConfig) -> None:
        """Takes the weights.

        Args:
            state: By name, in single precision.
            config: What the model was built from.

        Raises:
            ValueError: The model is of a kind that is not known here.
        """
        known = {
            "norm": ("none", "instance"),
            "norm_of": ("query",),
            "norm_place": ("pre",),
            "backbone": ("none",),
        }
        for name, values in known.items():
            if getattr(config, name) not in values:
                raise ValueError(
                    f"{name}: {getattr(config, name)!r} is not known to the encoder without torch, "
                    f"only {' and '.join(values)}"
                )
        if "absolute" in config.geometry_terms:
            raise ValueError("absolute geometry is not known to the encoder without torch")
        self.config = config
        self.biases = [Bias.of(state, config, layer) for layer in range(config.layers)]
        self._state = state
        self._prefix = encoder_prefix(config)

    @classmethod
    def open(cls, folder: str | Path) -> "NumpyEncoder":
        """Reads the weights of a packed model.

        Raises:
            ValueError: The folder is no packed model or damaged, or of a kind not known here.
        """
        config, state = read_state(folder)
        return cls(state, config)

    def maps(self, features: Floats, boxes: Floats) -> list[LayerMaps]:
        """Encodes an image.

        Args:
            features: (N, feature_dim).
            boxes: (N, 4) `cxcywh`.

        Returns:
            The maps of each layer.
        """
        x = np.maximum(apply_linear(features, self._linear("embed")), 0)
        found = []
        for layer in range(self.config.layers):
            at = f"layers.{layer}."
            y = self._norm(x, f"{at}attention_residual.norm")
            maps, attended = self._attend(y, boxes, layer)
            found.append(maps)
            x = x + attended
            y = self._norm(x, f"{at}feedforward_residual.norm")
            wide = np.maximum(apply_linear(y, self._linear(f"{at}feedforward.widen")), 0)
            x = x + apply_linear(wide, self._linear(f"{at}feedforward.narrow"))
        return found

    def _attend(self, y: Floats, boxes: Floats, layer: int) -> tuple[LayerMaps, Floats]:
        at = f"layers.{layer}.attention."
        query, key, value = (
            apply_linear(y, self._linear(at + name)) for name in ("query", "key", "value")
        )
        if self.config.norm == "instance":
            query = (query - query.mean(0)) / np.sqrt(query.var(0) + _EPSILON)
        query, key, value = (self._split(part) for part in (query, key, value))
        content = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(query.shape[-1]))
        of_layer = self.biases[layer]
        bias = None if of_layer is None else of_layer.of_pairs(boxes, y)
        weights = softmax(content if bias is None else content + bias)
        joined = (weights @ value).transpose(1, 0, 2).reshape(y.shape)
        return LayerMaps(y, content, bias, weights), apply_linear(
            joined, self._linear(f"{at}output")
        )

    def _split(self, x: Floats) -> Floats:
        return x.reshape(len(x), self.config.heads, -1).transpose(1, 0, 2)  # (H, N, K)

    def _norm(self, x: Floats, name: str) -> Floats:
        weight, shift = self._linear(name)
        centred = x - x.mean(-1, keepdims=True)
        variance = np.square(centred).mean(-1, keepdims=True)
        normed: Floats = centred / np.sqrt(variance + _EPSILON) * weight
        return normed if shift is None else normed + shift

    def _linear(self, name: str) -> tuple[Floats, Floats | None]:
        return read_linear(self._state, self._prefix + name)


def softmax(scores: Floats) -> Floats:
    """Over the last axis."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares: Floats = powers / powers.sum(-1, keepdims=True)
    return shares


def read_state(
    folder: str | Path, *, part: str = "encoder."
) -> tuple[CaptionerConfig, dict[str, NDArray[np.float32]]]:
    """The configuration and the weights of a packed model, in single precision, without torch.

    Args:
        folder: What `ngsan pack` wrote.
        part: How the names of the weights begin that are read.

    Raises:
        ValueError: The folder is no packed model, or damaged.
    """
    folder = Path(folder)
    manifest = Manifest.load(folder)
    if not manifest.weights:
        raise ValueError(f"{folder} is no packed model: its weights are in its graphs")
    tensors = read_weights(manifest.content(folder / WEIGHTS))
    names = [name for name in tensors if name.startswith(part) and not name.endswith(SCALE)]
    return manifest.model, {name: Made(name, "floats").of(tensors) for name in names}
