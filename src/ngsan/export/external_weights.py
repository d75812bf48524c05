"""Moves the weights out of graphs; they are made from the model's own file when it is opened.

A weight of a graph is found among the saved ones by its bytes, whatever name tracing gave it and
whether it was transposed. Products with an 8-bit matrix are computed in whole numbers: each vector
is rounded to 7 bits, with a scale of its own. That is closer to PyTorch than one scale for all
vectors, and the caption of an image does not depend on the others of its batch.

Note: 8 bits would be a little closer, but x86-64 CPUs without VNNI add pairs of products in 16
    bits, which two of 8 bits exceed and two of 7 by 8 bits do not.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngsan.predict.manifest import SCALE, WEIGHTS, Made, Way

_LARGEST_CONSTANT = 1 << 14
"""Bytes up to which a constant that is not a weight stays in its graph."""

_RUNTIME = "com.microsoft"

_MASK = "mask"
"""Name of the input that marks real regions."""


def externalize_weights(
    path: Path, tensors: Mapping[str, NDArray[Any]], *, exact: bool = False
) -> dict[str, dict[str, Any]]:
    """Replaces the weights of a graph by external ones, in place.

    Args:
        path: A graph that was traced from these weights.
        tensors: The content of `model.safetensors`.
        exact: Whether products are computed in single precision, from the matrices of 8 bits.

    Returns:
        The fields of a `Made` by the name of each external weight.

    Raises:
        ValueError: The graph has a large constant that is not among the weights.
    """
    onnx: Any = import_module("onnx")
    model = onnx.load(path)
    work = _Externalizer(onnx, model.graph, _known(tensors), tensors, exact)
    work.run()
    if not any(item.domain == _RUNTIME for item in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(_RUNTIME, 1))
    path.write_bytes(model.SerializeToString(deterministic=True))
    return {name: asdict(made) for name, made in work.made.items()}


class _Source(NamedTuple):
    """Where a weight of a graph comes from."""

    tensor: str
    quantized: bool
    transposed: bool


class _Externalizer:
    """Rewrites one graph."""

    def __init__(
        self,
        onnx: Any,
        graph: Any,
        known: Mapping[tuple[Any, ...], _Source],
        tensors: Mapping[str, NDArray[Any]],
        exact: bool,
    ) -> None:
        self._exact = exact
        self.made: dict[str, Made] = {}
        self._onnx, self._graph, self._known, self._tensors = onnx, graph, known, tensors
        self._declared: dict[str, Any] = {}
        self._kept: list[Any] = []
        self._has_row = False
        self._constants: set[str] = set()
        self._columns: set[str] = set()
        self._quantized: dict[str, tuple[str, str]] = {}  # names of step and zero, by vectors
        self._positive = {node.output[0] for node in graph.node if node.op_type == "Relu"}
        self._axes = {
            item.name: onnx.numpy_helper.to_array(item).tolist()
            for item in graph.initializer
            if item.data_type == onnx.TensorProto.INT64
        }
        self._shapes = {
            item.name: [
                axis.dim_param or axis.dim_value for axis in item.type.tensor_type.shape.dim
            ]
            for item in (*graph.input, *graph.value_info)
        }

    def run(self) -> None:
        sources = {}
        for weight in self._graph.initializer:
            source = self._known.get(_key(self._onnx.numpy_helper.to_array(weight)))
            if source is not None:
                sources[weight.name] = source
            elif weight.ByteSize() > _LARGEST_CONSTANT:
                raise ValueError(
                    f"{weight.name} {list(weight.dims)} of the graph is not among the weights of "
                    f"{WEIGHTS}"
                )
            else:
                self._kept.append(weight)
        nodes = list(self._graph.node)
        del self._graph.node[:]
        for node in nodes:
            self._graph.node.extend(self._replaced(node, sources))
        del self._graph.initializer[:]
        self._graph.initializer.extend([*self._kept, *self._declared.values()])

    def _replaced(self, node: Any, sources: Mapping[str, _Source]) -> Iterator[Any]:
        """The nodes that replace a node."""
        found = {name: sources[name] for name in node.input if name in sources}
        quantized = {name: source for name, source in found.items() if source.quantized}
        (name, source), *more = quantized.items() or [("", _Source("", False, False))]
        places = [place for place, given in enumerate(node.input) if given == name and not more]
        if node.op_type == "MatMul" and places == [1] and source.transposed and not self._exact:
            yield from self._product(node, name, source.tensor)
        elif node.op_type == "Gather" and places == [0] and not source.transposed:
            yield from self._lookup(node, name, source.tensor)
        elif node.op_type in ("ReduceSum", "ReduceMean") and self._sums_regions(node):
            yield from self._steady_sum(node)
        else:
            for name, (tensor, _, transposed) in found.items():
                way: Way = "same" if self._tensors[tensor].dtype == np.float32 else "floats"
                self._declare(name, Made(tensor, way, transposed))
            yield node

    def _sums_regions(self, node: Any) -> bool:
        """Whether a node sums or averages (B, N, C) over N to (B, 1, C)."""
        keeps = all(item.i == 1 for item in node.attribute if item.name == "keepdims")
        shape = self._shapes.get(node.input[0], [])
        if not keeps or self._axes.get(node.input[1]) != [1] or len(shape) != 3:
            return False
        if node.op_type == "ReduceMean":
            return isinstance(shape[1], int)
        return shape[:2] == self._shapes.get(_MASK) and shape[2] != 1

    def _steady_sum(self, node: Any) -> Iterator[Any]:
        """A sum over regions, whose padding holds zeros, as a product with the mask.

        ONNX Runtime sums a single image in another order than several. The last digits then
        differ, and more than these where numbers are quantized afterwards.
        """
        make, reals, row = self._onnx.helper.make_node, f"{_MASK}.reals", f"{_MASK}.row"
        if node.op_type == "ReduceMean":
            count = self._shapes[node.input[0]][1]
            row = self._constant(f"mean.{count}", np.full((1, count), 1 / count, np.float32))
        elif not self._has_row:
            self._has_row = True
            axis = self._constant(f"{_MASK}.axis", np.array([1]))
            yield make("Cast", [_MASK], [reals], to=self._onnx.TensorProto.FLOAT)
            yield make("Unsqueeze", [reals, axis], [row])
        yield make("MatMul", [row, node.input[0]], [node.output[0]])

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        """Adds a small constant, once."""
        if name not in self._constants:
            self._constants.add(name)
            self._kept.append(self._onnx.numpy_helper.from_array(value, name))
        return name

    def _product(self, node: Any, name: str, tensor: str) -> Iterator[Any]:
        """A product of quantized vectors with a quantized matrix, in whole numbers."""
        make, vectors, output = self._onnx.helper.make_node, node.input[0], node.output[0]
        if vectors not in self._quantized:
            yield from self._quantize(vectors)
        columns = f"{name}.columns"
        if columns not in self._columns:  # ONNX Runtime transposes when it opens the graph
            self._columns.add(columns)
            numbers = self._declare(f"{name}.numbers", Made(tensor))
            yield make("Transpose", [numbers], [columns])
        scales = self._declare(f"{name}.scale", Made(tensor + SCALE))
        step, zero = self._quantized[vectors]
        yield make(
            "MatMulIntegerToFloat",
            [f"{vectors}.numbers", columns, step, scales, zero],
            [f"{output}.shares"],
            domain=_RUNTIME,
        )
        yield make("Mul", [f"{output}.shares", f"{vectors}.largest"], [output])

    def _quantize(self, vectors: str) -> Iterator[Any]:
        """Rounds vectors, (..., K), to shares of the largest size of a number in each."""
        make, positive = self._onnx.helper.make_node, vectors in self._positive
        kind, levels, middle = ("positive", 127, 0) if positive else ("signed", 63, 64)
        step = self._constant(f"{kind}.step", np.array(1 / levels, np.float32))
        zero = self._constant(f"{kind}.zero", np.array(middle, np.uint8))
        tiny = self._constant("tiny", np.array(np.finfo(np.float32).tiny))
        last = self._constant("last", np.array([-1]))
        self._quantized[vectors] = step, zero
        sizes = vectors if positive else f"{vectors}.sizes"
        if not positive:
            yield make("Abs", [vectors], [sizes])
        yield make("ReduceMax", [sizes, last], [f"{vectors}.most"], keepdims=1)
        yield make("Max", [f"{vectors}.most", tiny], [f"{vectors}.largest"])  # never 0
        yield make("Div", [vectors, f"{vectors}.largest"], [f"{vectors}.shares"])
        yield make("QuantizeLinear", [f"{vectors}.shares", step, zero], [f"{vectors}.numbers"])

    def _lookup(self, node: Any, name: str, tensor: str) -> Iterator[Any]:
        """Rows of a quantized matrix, converted to floats one by one."""
        make = self._onnx.helper.make_node
        output = node.output[0]
        numbers = self._declare(f"{name}.numbers", Made(tensor))
        scales = self._declare(f"{name}.scale", Made(tensor + SCALE))
        last = self._constant("last", np.array([-1]))
        yield make("Gather", [numbers, node.input[1]], [f"{output}.numbers"])
        yield make(
            "Cast", [f"{output}.numbers"], [f"{output}.reals"], to=self._onnx.TensorProto.FLOAT
        )
        yield make("Gather", [scales, node.input[1]], [f"{output}.scale"])
        yield make("Unsqueeze", [f"{output}.scale", last], [f"{output}.factor"])
        yield make("Mul", [f"{output}.reals", f"{output}.factor"], [output])

    def _declare(self, name: str, made: Made) -> str:
        """Declares an external weight."""
        if name not in self._declared:
            value = made.of(self._tensors)
            weight = self._onnx.TensorProto(name=name, dims=value.shape)
            weight.data_type = self._onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            weight.data_location = self._onnx.TensorProto.EXTERNAL
            weight.external_data.add(key="location", value=WEIGHTS)
            self._declared[name], self.made[name] = weight, made
        return name


def _known(tensors: Mapping[str, NDArray[Any]]) -> dict[tuple[Any, ...], _Source]:
    """The saved weights by their values; matrices also by the values of their transpose."""
    found: dict[tuple[Any, ...], _Source] = {}
    for name, tensor in tensors.items():
        if tensor.dtype == np.int64:  # counts of updates of norms, which no graph reads
            continue
        quantized = tensor.dtype == np.int8
        value = Made(name, "floats").of(tensors)
        found.setdefault(_key(value), _Source(name, quantized, False))
        if value.ndim == 2:
            found.setdefault(_key(value.T), _Source(name, quantized, True))
    return found


def _key(value: NDArray[Any]) -> tuple[Any, ...]:
    digest = hashlib.sha256(np.ascontiguousarray(value).data).digest()
    return value.dtype.str, value.shape, digest
