"""Writes a model as ONNX graphs: an export, or a packed model.

An export holds the weights in its graphs, in single precision or in 8 bits: matrices are integers
times a scale for each column, and vectors are rounded to 8 bits as they come (ONNX Runtime's
dynamic quantization). Reading a quarter of the memory for every word saves most of the time on a
CPU.

A packed model is a model folder that PyTorch reads, and also an export whose graphs have no weights
of their own: ONNX Runtime is given those of the model, see `ngsan.export.external_weights`.

Both are compared with PyTorch before their folder appears.
"""

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from ngsan import __version__
from ngsan.atomic_io import replace_folder
from ngsan.config import config_class, from_dict
from ngsan.config.yaml_text import read_yaml_file
from ngsan.export.attention import write_attention
from ngsan.export.checking import ROUGH, check_export
from ngsan.export.external_weights import externalize_weights
from ngsan.export.graphs import write_graphs
from ngsan.export.tracing import OPSET
from ngsan.models.captioner import CaptionerModel
from ngsan.models.checkpoint import (
    CONFIG,
    METRICS,
    SIGNATURE,
    WEIGHTS,
    companion_file,
    copy_model,
    load_model,
    read_features,
    read_metrics,
    read_task,
    require_task,
    save_model,
)
from ngsan.models.quantize import absorb_norms
from ngsan.models.weights import metadata_of
from ngsan.predict.confidence import CONFIDENCE
from ngsan.predict.manifest import ATTENTION, BACKBONE, BIAS, FORMAT, TASKS, Manifest, read_weights

Precision = Literal["float32", "int8"]


@dataclass(frozen=True)
class Report:
    """What was written, and how well it agrees with PyTorch."""

    folder: Path
    sizes: dict[str, int]
    """Bytes of each file."""

    saved_precision: str
    """Precision of the weights that were read, such as "float16"."""

    precision: Precision
    """Precision of the matrices that were written."""

    difference: float
    """Largest difference of logits between PyTorch and ONNX Runtime."""

    captions: int
    """Captions, translations or answers that both made of random inputs."""

    same: int
    """How many of them are equal; all, but in 8 bits."""

    opset: int = OPSET
    """Version of the ONNX operators."""

    @property
    def size(self) -> int:
        """Bytes of the folder."""
        return sum(self.sizes.values())


def export_model(
    model_folder: str | Path, to: str | Path, *, precision: Precision = "float32"
) -> Report:
    """Writes a model as ONNX graphs, and checks them against PyTorch.

    The folder appears whole and checked, or not at all.

    Args:
        model_folder: A captioner, translator or answerer.
        to: The folder to write. An export that is there is replaced, any other content is an error.
        precision: "float32", or "int8" for a quarter of the size and more speed on a CPU; some
            captions may then differ.

    Raises:
        ValueError: The model cannot be read, the target holds something else, a package is
            missing, or PyTorch and ONNX Runtime do not agree.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision: {precision!r} is not one of {', '.join(get_args(Precision))}")
    target, source = Path(to).resolve(), Path(model_folder)
    task = require_task(source)
    _check_target(target, "an export", TASKS[task].files, (BACKBONE,))
    model, config, companions, saved = _load(source, task, "an export")
    with replace_folder(target) as partial:
        inputs, outputs = write_graphs(model, config, partial)
        for name, companion in companions.items():
            (partial / companion_file(name)).write_text(companion.to_json(), encoding="utf-8")
        manifest = _manifest(task, config, companions, inputs, outputs)
        manifest = _seal(manifest, partial, inputs)
        found = check_export(partial, model)
        if precision == "int8":
            _quantize(partial, manifest.graphs)
            _seal(replace(manifest, precision=precision), partial, inputs)
            found = check_export(partial, model, tolerance=ROUGH)
        sizes = {name: (partial / name).stat().st_size for name in manifest.files}
    return Report(target, sizes, saved, precision, *found)


def pack_model(model_folder: str | Path, to: str | Path, *, attention: bool = True) -> Report:
    """Writes a model in 8 bits, with graphs for ONNX Runtime that share its weights.

    The folder appears whole and checked, or not at all.

    Args:
        model_folder: A captioner, translator or answerer.
        to: The folder to write. A packed model that is there is replaced, any other content is
            an error.
        attention: Whether to add the graphs of `ngsan.export.attention` to a captioner.

    Raises:
        ValueError: As in `export_model`.
    """
    target, source = Path(to).resolve(), Path(model_folder)
    task = require_task(source)
    optional = (ATTENTION, BACKBONE, BIAS, CONFIDENCE, METRICS, SIGNATURE)
    _check_target(target, "a packed model", (*TASKS[task].files, WEIGHTS, CONFIG), optional)
    with replace_folder(target) as partial:
        path = source / WEIGHTS
        if path.is_file() and "rounding" in metadata_of(path):  # must not be rounded again
            copy_model(source, partial)
        else:
            _write_rounded(source, partial, task)
        model, config, companions, saved = _load(partial, task, "a packed model")
        inputs, outputs = write_graphs(model, config, partial)
        tensors = read_weights((partial / WEIGHTS).read_bytes())
        exact = task != "captioning"
        weights = {
            name: externalize_weights(partial / name, tensors, exact=exact) for name in inputs
        }
        if attention and isinstance(model, CaptionerModel):
            more = write_attention(model, config, partial, tensors)
            inputs, outputs, weights = inputs | more[0], outputs | more[1], weights | more[2]
        manifest = _manifest(task, config, companions, inputs, outputs)
        manifest = replace(manifest, precision="int8", weights=weights)
        _seal(manifest, partial, (*inputs, WEIGHTS))
        found = check_export(partial, model, tolerance=None if exact else ROUGH)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
    return Report(target, sizes, saved, "int8", *found)


def _check_target(target: Path, kind: str, files: Iterable[str], optional: Iterable[str]) -> None:
    """Raises a `ValueError` for a target that holds something else, or for a missing package.

    Args:
        target: Nothing, an empty folder, or a folder of the kind.
        kind: What it will be, in words.
        files: The files of a folder of the kind.
        optional: Further files that it may have.
    """
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file: {kind} is a folder")
    names = {path.name for path in target.iterdir()} if target.exists() else set[str]()
    foreign = sorted(names - set(files) - set(optional))
    if foreign or (names and not set(files) <= names):
        raise ValueError(
            f"{target} holds other files than {kind} "
            f"({', '.join(foreign or sorted(names))}): choose an empty or a new folder"
        )
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError as error:
            raise ValueError(f"export needs {package}: pip install 'ngsan[train]'") from error


def _load(folder: Path, task: str, kind: str) -> tuple[nn.Module, Any, dict[str, Any], str]:
    """The model in single precision, its configuration and companions, and its saved precision."""
    model, config, companions = load_model(folder, task)
    if task == "captioning":
        config.require_transformer(kind)
        config.require_cells(kind)
    saved = str(next(model.parameters()).dtype).removeprefix("torch.")
    return model.float(), config, companions, saved


def _manifest(
    task: str,
    config: Any,
    companions: dict[str, Any],
    inputs: dict[str, list[str]],
    outputs: dict[str, list[str]],
) -> Manifest:
    return Manifest(
        format=FORMAT,
        ngsan=__version__,
        opset=OPSET,
        task=task,
        companions={name: companion.signature for name, companion in companions.items()},
        inputs=inputs,
        outputs=outputs,
        sha256={},
        precision="float32",
        model=config,
    )


def _seal(manifest: Manifest, folder: Path, names: Iterable[str]) -> Manifest:
    """Writes the manifest with the checksums of files."""
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    sealed = replace(manifest, sha256=sums)
    sealed.save(folder)
    return sealed


def _write_rounded(source: Path, target: Path, task: str) -> None:
    """Copies a model in 8 bits."""
    model, config, companions = load_model(source, task)
    absorb_norms(model.float())
    content = read_yaml_file(source / CONFIG)
    run = from_dict(config_class(task), content) if set(content) > {"model"} else None
    save_model(
        target,
        model,
        config,
        companions,
        task=read_task(source),
        run=run,
        metrics=read_metrics(source),
        quantize=True,
        features=read_features(source),
    )


def _quantize(folder: Path, graphs: Iterable[str]) -> None:
    """Rounds the matrices of the graphs to 8 bits, in place.

    Note: The integers are unsigned, like those of the vectors. Products of unsigned with signed
        ones saturate on CPUs that add pairs of them in 16 bits (x86-64 without VNNI).
    """
    quantization = import_module("onnxruntime.quantization")
    rounded = folder / "rounded.onnx"
    logger = logging.getLogger()
    level = logger.level
    try:
        # It advises to simplify the graph beforehand, which these graphs do not need.
        logger.setLevel(logging.ERROR)
        for name in graphs:
            if name == BACKBONE:
                continue
            quantization.quantize_dynamic(
                folder / name,
                rounded,
                weight_type=quantization.QuantType.QUInt8,
                per_channel=True,
            )
            rounded.replace(folder / name)
    finally:
        logger.setLevel(level)
