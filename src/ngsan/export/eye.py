"""Writes the second eye: an ImageNet network that no caption has trained, as one ONNX graph.

The weights are in 8 bits, a scale for each output channel, and become floats once, when ONNX
Runtime opens the graph. All products are in single precision, so results do not depend on the
instructions of a CPU: products in 8 bits saturate on those without VNNI.

Shapes: `B` images, `S` side of an image, `C` channels of the network's head.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ngsan.export.tracing import write_graph
from ngsan.models.quantize import MIN_ROW, MIN_SIZE, quantize_rows, sensitive_weights
from ngsan.vision.backbone import build_backbone, fold_norms
from ngsan.vision.grid import GridBackbone

SIZE = 256
"""S, for which the network's features are made; training copies have this size."""

POOLED = 8
"""Vectors of an image: the mean and the maximum of each of its quarters."""


class EyeGraph(nn.Module):
    """From pixels to the mean and maximum of the features of each quarter of an image."""

    def __init__(self, backbone: GridBackbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """(B, S, S, 3) bytes to (B, 8, C): four means, row by row, and then four maxima."""
        cells = self.backbone(images.permute(0, 3, 1, 2))  # (B, N, C)
        side = self.backbone.size // 32
        grid = cells.transpose(1, 2).unflatten(2, (side, side))  # (B, C, S / 32, S / 32)
        half = side // 2
        pooled = F.avg_pool2d(grid, half), F.max_pool2d(grid, half)
        return torch.cat([one.flatten(2) for one in pooled], 2).transpose(1, 2)


def build_eye() -> EyeGraph:
    """The network with its published ImageNet weights, for inference, in single precision."""
    backbone = build_backbone("efficientnet-lite2", size=SIZE, top="head")
    eye = EyeGraph(backbone).eval().requires_grad_(False)
    fold_norms(eye)
    return eye


def write_eye(path: Path) -> None:
    """Writes the graph with weights in 8 bits.

    Args:
        path: The file.

    Raises:
        ValueError: The package with the weights is missing.
    """
    eye = build_eye()
    images = torch.zeros(2, SIZE, SIZE, 3, dtype=torch.uint8)
    example = (images,), ({0: torch.export.Dim("images")},)
    write_graph(eye, example, ["images"], ["features"], path)
    narrow_weights(path, {f"{name}" for name in sensitive_weights(eye)})


def narrow_weights(path: Path, sensitive: set[str]) -> None:
    """Stores the weights of a graph in 8 bits, or in half precision, in place.

    Which become what is decided as in `ngsan.models.quantize`. The nodes that make them floats
    again have constant inputs only, so ONNX Runtime runs them once, when it opens the graph.

    Args:
        path: A graph with weights in single precision.
        sensitive: Names of weights to keep in half precision.
    """
    onnx: Any = import_module("onnx")
    model = onnx.load(path)
    graph, nodes = model.graph, []
    weights = list(graph.initializer)
    del graph.initializer[:]

    def keep(name: str, value: NDArray[Any]) -> str:
        graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def widen(name: str, value: NDArray[Any], output: str) -> None:
        to = onnx.TensorProto.FLOAT
        nodes.append(onnx.helper.make_node("Cast", [keep(name, value)], [output], to=to))

    for weight in weights:
        name, value = weight.name, onnx.numpy_helper.to_array(weight)
        if value.dtype != np.float32 or value.ndim < 2:
            graph.initializer.append(weight)
        elif name in sensitive or value.size <= MIN_SIZE or value[0].size < MIN_ROW:
            widen(f"{name}.half", value.astype(np.float16), name)
        else:
            numbers, scale = quantize_rows(torch.from_numpy(value.copy()))
            widen(f"{name}.numbers", numbers.numpy(), f"{name}.wide")
            beside = scale.numpy().reshape(-1, *[1] * (value.ndim - 1))
            factors = [f"{name}.wide", keep(f"{name}.scale", beside)]
            nodes.append(onnx.helper.make_node("Mul", factors, [name]))
    nodes += list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    path.write_bytes(model.SerializeToString(deterministic=True))
