"""Image captioning with normalized and geometry-aware self-attention (NG-SAN).

Public names are imported when first used, so `import ngsan` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngsan.config import CaptionerConfig as CaptionerConfig
    from ngsan.export import load as load
    from ngsan.export import load_clips as load_clips
    from ngsan.models import build_captioner as build_captioner

    __version__: str

__all__ = ["CaptionerConfig", "__version__", "build_captioner", "load", "load_clips"]

_PUBLIC = {
    "CaptionerConfig": "ngsan.config",
    "build_captioner": "ngsan.models",
    "load": "ngsan.export",
    "load_clips": "ngsan.export",
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
