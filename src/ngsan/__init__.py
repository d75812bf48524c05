"""Image captioning with normalized and geometry-aware self-attention (NG-SAN).

Public names are imported when first used, so `import ngsan` stays quick.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngsan.config import CaptionerConfig as CaptionerConfig
    from ngsan.export import load as load
    from ngsan.models import build_captioner as build_captioner

__all__ = ["CaptionerConfig", "__version__", "build_captioner", "load"]

try:
    __version__ = version("ngsan")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

_PUBLIC = {
    "CaptionerConfig": "ngsan.config",
    "build_captioner": "ngsan.models",
    "load": "ngsan.export",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ngsan' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
