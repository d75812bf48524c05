"""Image captioning with normalized and geometry-aware self-attention (NG-SAN).

    import ngsan

    captioner = ngsan.load()  # the model of photographs that comes with the package
    caption = captioner.caption("photo.jpg")
    print(caption, caption.log_probability)

`load`, `load_translator` and `load_answerer` open models, and `score` scores captions. `finetune`
learns from your own photographs, and the `build_` functions build new models, both with PyTorch:
pip install 'ngsan[train]'.
"""

# Public names are imported when first used, so `import ngsan` stays quick and needs no torch.

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngsan.config import CaptionerConfig as CaptionerConfig
    from ngsan.config import DecodingConfig as DecodingConfig
    from ngsan.finetuning.run import finetune as finetune
    from ngsan.metrics import score as score
    from ngsan.models import build_captioner as build_captioner
    from ngsan.models.build import build_answerer as build_answerer
    from ngsan.models.build import build_translator as build_translator
    from ngsan.predict.answerer import Answerer as Answerer
    from ngsan.predict.answerer import load_answerer as load_answerer
    from ngsan.predict.captioner import Caption as Caption
    from ngsan.predict.captioner import Captioner as Captioner
    from ngsan.predict.captioner import load as load
    from ngsan.predict.translator import Translator as Translator
    from ngsan.predict.translator import load_translator as load_translator

    __version__: str

# Set before ONNX Runtime is imported anywhere: it would keep counts of its use in a file of the
# user's and send them to its makers. Set it to 0 to allow that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_PUBLIC = {
    "Answerer": "ngsan.predict.answerer",
    "Caption": "ngsan.predict.captioner",
    "Captioner": "ngsan.predict.captioner",
    "CaptionerConfig": "ngsan.config",
    "DecodingConfig": "ngsan.config",
    "Translator": "ngsan.predict.translator",
    "build_answerer": "ngsan.models",
    "build_captioner": "ngsan.models",
    "build_translator": "ngsan.models",
    "finetune": "ngsan.finetuning.run",
    "load": "ngsan.predict.captioner",
    "load_answerer": "ngsan.predict.answerer",
    "load_translator": "ngsan.predict.translator",
    "score": "ngsan.metrics",
}

__all__ = [
    "Answerer",
    "Caption",
    "Captioner",
    "CaptionerConfig",
    "DecodingConfig",
    "Translator",
    "__version__",
    "build_answerer",
    "build_captioner",
    "build_translator",
    "finetune",
    "load",
    "load_answerer",
    "load_translator",
    "score",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ngsan' has no attribute {name!r}")
    try:
        return getattr(import_module(_PUBLIC[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        # An AttributeError, so that `help(ngsan)` works without torch.
        raise AttributeError(f"ngsan.{name} needs PyTorch: pip install 'ngsan[train]'") from error


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    # Imported here, as it takes longer than all else of this module.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ngsan")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+source"
