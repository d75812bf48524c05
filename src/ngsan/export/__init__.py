"""Captioners as ONNX graphs: writing them, and running them without PyTorch's model code."""

from ngsan.export.loading import load
from ngsan.export.runtime import OnnxModel
from ngsan.export.write import ExportReport, export_captioner

__all__ = ["ExportReport", "OnnxModel", "export_captioner", "load"]
