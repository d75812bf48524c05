"""Exports a captioner to ONNX, and lets nothing out that does not agree with PyTorch.

In 8 bits, the matrices are rounded to whole numbers of -127 to 127 times a scale for each column,
and so are the vectors that meet them, as they come (ONNX Runtime's dynamic quantisation). A quarter
of the memory is then read for every word, which is most of the time on a CPU.
"""

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

from ngsan import __version__
from ngsan.export.checking import ROUGH, check_export
from ngsan.export.graphs import write_graphs
from ngsan.export.placing import placed, refuse_foreign
from ngsan.export.tracing import OPSET
from ngsan.light.manifest import BACKBONE, DECODER, ENCODER, FILES, FORMAT, Manifest
from ngsan.models.saved_captioner import VOCABULARY, load_captioner

Precision = Literal["float32", "int8"]


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote, and how well it agrees with PyTorch."""

    folder: Path
    """Where it is."""

    sizes: dict[str, int]
    """Bytes of each file."""

    opset: int
    """Version of the ONNX operators."""

    saved_precision: str
    """Precision of the model's weights on the disk, such as "float16"."""

    precision: Precision
    """Precision of the export's matrices."""

    difference: float
    """Largest difference of logits between PyTorch and ONNX Runtime."""

    captions: int
    """Captions of random regions that both wrote."""

    same: int
    """How many of them are alike; all, but in 8 bits."""


def export_captioner(
    model_folder: str | Path, to: str | Path, *, precision: Precision = "float32"
) -> ExportReport:
    """Writes a captioner as ONNX graphs, and checks them against PyTorch.

    The folder appears whole and checked, or not at all.

    Args:
        model_folder: What `save_captioner` wrote.
        to: Where to; an export that is there is replaced, any other content is refused.
        precision: "float32", or "int8" for a quarter of the size and more speed on a CPU, at the
            price of captions that may differ here and there.

    Raises:
        ValueError: The model cannot be read, the target holds something else, a package is
            missing, or PyTorch and ONNX Runtime do not agree.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision: {precision!r} is not one of {', '.join(get_args(Precision))}")
    target = Path(to).resolve()
    refuse_foreign(target, "an export", FILES, (BACKBONE,))
    require_packages()
    captioner, config, vocabulary = load_captioner(model_folder)
    config.require_transformer("an export")
    saved = str(captioner.decoder.embed.weight.dtype).removeprefix("torch.")
    captioner.float()
    with placed(target) as partial:
        inputs, outputs = write_graphs(captioner, config, partial)
        vocabulary.save(partial / VOCABULARY)
        manifest = Manifest(
            format=FORMAT,
            ngsan=__version__,
            opset=OPSET,
            vocabulary=vocabulary.signature,
            inputs=inputs,
            outputs=outputs,
            sha256=checksums(partial, inputs),
            precision="float32",
            model=config,
        )
        manifest.save(partial)
        found = check_export(partial, captioner)
        if precision == "int8":
            _quantize(partial)
            replace(manifest, sha256=checksums(partial, inputs), precision=precision).save(partial)
            found = check_export(partial, captioner, tolerance=ROUGH)
        sizes = {name: (partial / name).stat().st_size for name in manifest.files}
    return ExportReport(target, sizes, OPSET, saved, precision, *found)


def require_packages() -> None:
    """Raises a `ValueError` unless all that an export needs is installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError as error:
            raise ValueError(f"export needs {package}: pip install 'ngsan[onnx]'") from error


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files, by name."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def _quantize(folder: Path) -> None:
    """Rounds the matrices of the graphs to 8 bits, in place.

    Note: to numbers without a sign, as the vectors are. The product of these with signed ones is
        wrong on CPUs that add pairs of them in 16 bits (x86-64 without VNNI), where sums saturate.
    """
    quantization = import_module("onnxruntime.quantization")
    rounded = folder / "rounded.onnx"
    logger = logging.getLogger()
    level = logger.level
    try:
        # It advises to simplify the graph beforehand, which these graphs do not need.
        logger.setLevel(logging.ERROR)
        for name in (ENCODER, DECODER):
            quantization.quantize_dynamic(
                folder / name,
                rounded,
                weight_type=quantization.QuantType.QUInt8,
                per_channel=True,
            )
            rounded.replace(folder / name)
    finally:
        logger.setLevel(level)
