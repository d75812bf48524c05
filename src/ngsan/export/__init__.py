"""Captioners as ONNX graphs: writing them, and running them without PyTorch's model code."""

from ngsan.export.loading import load
from ngsan.export.pack import PackReport, pack_captioner
from ngsan.export.runtime import OnnxModel
from ngsan.export.write import ExportReport, export_captioner

__all__ = [
    "ExportReport",
    "OnnxModel",
    "PackReport",
    "export_captioner",
    "load",
    "pack_captioner",
]
