"""Image captioning with normalized and geometry-aware self-attention (NG-SAN).

Public names are imported when first used, so `import ngsan` stays quick.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngsan.config import CaptionerConfig as CaptionerConfig
    from ngsan.export import load as load
    from ngsan.export import load_clips as load_clips
    from ngsan.models import build_captioner as build_captioner
    from ngsan.models.build_answerer import build_answerer as build_answerer
    from ngsan.models.build_translator import build_translator as build_translator
    from ngsan.predict.answers import QuestionAnswerer as QuestionAnswerer
    from ngsan.predict.translating import open_translator as open_translator

    __version__: str

# Here, as it must be before ONNX Runtime is imported anywhere: that keeps counts of its use in a
# file of the user's and sends them to its makers, unless told not to. Whoever wants that says 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "CaptionerConfig",
    "QuestionAnswerer",
    "__version__",
    "build_answerer",
    "build_captioner",
    "build_translator",
    "load",
    "load_clips",
    "open_translator",
]

_PUBLIC = {
    "CaptionerConfig": "ngsan.config",
    "QuestionAnswerer": "ngsan.predict.answers",
    "build_answerer": "ngsan.models.build_answerer",
    "build_captioner": "ngsan.models",
    "build_translator": "ngsan.models.build_translator",
    "load": "ngsan.export",
    "load_clips": "ngsan.export",
    "open_translator": "ngsan.predict.translating",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ngsan' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    # Imported here, as it takes longer than all else of this module.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ngsan")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+source"
