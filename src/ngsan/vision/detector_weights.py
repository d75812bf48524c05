"""The backbone of the shipped detector as weights of our EfficientNet-Lite2.

The detector was trained on the boxes of COCO's train2017, and its graph holds weights in 8 bits.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ngsan.vision.backbone import ConvNorm
from ngsan.vision.detector import SHIPPED_DETECTOR, optional
from ngsan.vision.grid import GridBackbone

NAME = "efficientnet-lite2"
"""The only backbone with these weights."""


def load_detector_weights(backbone: GridBackbone, path: Path = SHIPPED_DETECTOR) -> None:
    """Loads the weights of the detector's backbone.

    Batch norms become scales of 1 and shifts by the detector's biases.

    Args:
        backbone: EfficientNet-Lite2 up to its last block.
        path: The detector's graph.

    Raises:
        ValueError: The backbone is another one, or the package onnx is missing.
    """
    layers = [part for part in backbone.network.modules() if isinstance(part, ConvNorm)]
    if backbone.name != NAME or getattr(backbone.network, "head", None) is not None:
        raise ValueError(
            f"vision.weights: the detector's backbone is {NAME}, and not {backbone.name}; set "
            "vision.weights to own"
        )
    kept = 1.0 + 1e-3  # with the norm's eps, a division by 1
    for layer, (weight, bias) in zip(layers, _convolutions(path, layers), strict=True):
        norm = layer.norm
        assert isinstance(norm, torch.nn.BatchNorm2d)
        with torch.no_grad():
            layer.conv.weight.copy_(torch.from_numpy(weight))
            norm.weight.fill_(kept**0.5)
            norm.bias.copy_(torch.from_numpy(bias))
            norm.running_mean.zero_()  # type: ignore[union-attr]
            norm.running_var.fill_(1.0)  # type: ignore[union-attr]


def _convolutions(
    path: Path, layers: list[ConvNorm]
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Weight and bias of each layer, on the way from the pixels to the last block."""
    optional("onnx", "'ngsan[train]'")
    graph = import_module("onnx").load(path).graph
    to_array = import_module("onnx.numpy_helper").to_array
    constants = {one.name: to_array(one) for one in graph.initializer}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    here = "pixels"
    for layer in layers:
        shape = tuple(layer.conv.weight.shape)
        node = _next_convolution(readers, constants, here, shape)
        # QLinearConv: x and its scale and zero, w and its scale and zero, y and its own, bias.
        scale = constants[node.input[4]].astype(np.float32)
        weight = constants[node.input[3]].astype(np.float32) * scale.reshape(-1, 1, 1, 1)
        bias = constants[node.input[8]] * scale * constants[node.input[1]]
        yield weight, bias.astype(np.float32)
        here = node.output[0]


def _next_convolution(
    readers: dict[str, list[Any]], constants: dict[str, Any], here: str, shape: tuple[int, ...]
) -> Any:
    """The convolution of a shape that reads a tensor, or reads the sum at a block's end."""
    for _ in range(2):
        for node in readers[here]:
            if node.op_type == "QLinearConv" and constants[node.input[3]].shape == shape:
                return node
        sums = [node for node in readers[here] if node.op_type == "QLinearAdd"]
        if not sums:
            break
        here = sums[0].output[0]
    raise ValueError(f"the detector's graph has no convolution of shape {shape} after {here}")
