"""Captioners as ONNX graphs: writing them, and running them without PyTorch's model code.

Names are imported when first used: opening an export need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngsan.export.loading import load as load
    from ngsan.export.loading import load_clips as load_clips
    from ngsan.export.loading import load_predictor as load_predictor
    from ngsan.export.pack import PackReport as PackReport
    from ngsan.export.pack import pack_captioner as pack_captioner
    from ngsan.export.runtime import OnnxModel as OnnxModel
    from ngsan.export.write import ExportReport as ExportReport
    from ngsan.export.write import export_captioner as export_captioner

__all__ = [
    "ExportReport",
    "OnnxModel",
    "PackReport",
    "export_captioner",
    "load",
    "load_clips",
    "load_predictor",
    "pack_captioner",
]

_PUBLIC = {
    "ExportReport": "ngsan.export.write",
    "OnnxModel": "ngsan.export.runtime",
    "PackReport": "ngsan.export.pack",
    "export_captioner": "ngsan.export.write",
    "load": "ngsan.export.loading",
    "load_clips": "ngsan.export.loading",
    "load_predictor": "ngsan.export.loading",
    "pack_captioner": "ngsan.export.pack",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ngsan.export' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
