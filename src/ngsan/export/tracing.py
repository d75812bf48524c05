"""Traces a module into an ONNX file."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

OPSET = 18
"""Version of the ONNX operators, the one that PyTorch exports to without conversion."""

Example = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Arguments of a graph, and for each its dynamic axes."""

_LARGEST = 2**31 - 2**20
"""Largest size of the weights in a file, in bytes; the format cannot hold 2 GiB."""


def write_graph(
    graph: nn.Module, example: Example, inputs: list[str], outputs: list[str], path: Path
) -> None:
    """Writes a module as a graph.

    Args:
        graph: The module, in evaluation mode.
        example: What to trace it with.
        inputs: Names of its inputs.
        outputs: Names of its outputs.
        path: The file to write.

    Raises:
        ValueError: It is too large for a file.
    """
    size = sum(part.numel() * part.element_size() for part in graph.state_dict().values())
    if size > _LARGEST:
        raise ValueError(
            f"the model's weights of {size / 2**30:.1f} GiB do not fit into {path.name}: an ONNX "
            "file holds less than 2 GiB"
        )
    arguments, free = example
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            graph,
            arguments,
            dynamo=True,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=free,
            verbose=False,
        )
        assert program is not None  # it is for dynamo=True
        _forget_origin(program.model)
        program.save(path, external_data=False)


def fix_inputs(path: Path, values: Mapping[str, NDArray[Any]]) -> None:
    """Makes inputs of a graph constants, in place.

    The exporter computes what depends on constants alone and would write the results, which are
    large; ONNX Runtime does so when it opens the graph.
    """
    onnx: Any = import_module("onnx")
    model = onnx.load(path)
    left = [item for item in model.graph.input if item.name not in values]
    del model.graph.input[:]
    model.graph.input.extend(left)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in values.items()
    )
    path.write_bytes(model.SerializeToString(deterministic=True))


def _forget_origin(model: Any) -> None:
    """Removes the source lines and file paths of this machine that tracing stored in each node."""
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        values.extend(node.outputs)
    for part in (model, model.graph, *values):
        part.metadata_props.clear()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences warnings that PyTorch's exporter prints for every model, and nothing else."""
    # It reports that torchvision is missing, which is not used here.
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # PyTorch copies objects of a class of its own that is deprecated.
            warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
            # Inputs share axes on purpose: `images` is the same number everywhere.
            warnings.filterwarnings("ignore", ".*shares the same shape constraints", UserWarning)
            yield
    finally:
        log.setLevel(level)
