"""Opens a captioner, whatever runs it; torch is imported only when it is to run one."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ngsan.light.clips import ClipCaptioner
from ngsan.light.manifest import DECODER, ENCODER, FILES, MANIFEST, Manifest
from ngsan.light.photos import PhotoCaptioner
from ngsan.light.weights import WEIGHTS

if TYPE_CHECKING:
    from ngsan.config import CaptionerConfig
    from ngsan.export.runtime import Provider
    from ngsan.models.captioner import Captioner
    from ngsan.predict import Predictor
    from ngsan.text.vocabulary import Vocabulary

SHIPPED = Path(__file__).parents[1] / "shipped" / "coco"
"""The model of photographs that comes with the package."""

SHIPPED_CLIPS = SHIPPED.parent / "clips"
"""The model of clips, which sees through the backbone of that of photographs."""


@overload
def load(
    folder: None = None, *, device: str | None = ..., threads: int | None = ...
) -> PhotoCaptioner: ...


@overload
def load(
    folder: str | Path,
    *,
    device: str | None = ...,
    threads: int | None = ...,
    providers: "Sequence[Provider] | None" = ...,
) -> Any: ...


def load(
    folder: str | Path | None = None,
    *,
    device: str | None = None,
    threads: int | None = None,
    providers: "Sequence[Provider] | None" = None,
) -> "PhotoCaptioner | ClipCaptioner | Predictor":
    """Opens a captioner: the one that comes with the package, or one in a folder.

    Args:
        folder: What `ngsan pack`, `ngsan export` or `save_captioner` wrote; None for the model of
            photographs that comes with the package.
        device: Where PyTorch runs it, such as "cuda", or "auto" for a GPU if there is one. None for
            the CPU, where packed and exported models run on ONNX Runtime.
        threads: Of ONNX Runtime only: its threads; None for one a core.
        providers: Of an export of regions only: execution providers of ONNX Runtime, the preferred
            first; None for the CPU's.

    Returns:
        A `PhotoCaptioner`, whose `caption` takes photographs; of a model of clips, a
        `ClipCaptioner`, whose `caption` takes those; of any other model without a backbone, a
        `Predictor`, whose `caption` takes regions.

    Raises:
        ValueError: The folder holds no model, its files do not belong together, or an argument is
            not for its kind.
    """
    path = _folder(folder)
    if not _is_export(path):
        captioner, config, vocabulary = _load_torch(path, device, threads, providers)
        if config.backbone != "none":
            return _on_torch(captioner, vocabulary)
        from ngsan.predict import Predictor

        predictor = Predictor(captioner, vocabulary)
        return _of_clips(predictor, config, None) if config.frame_grid else predictor
    model = Manifest.load(path).model
    if model.frame_grid and device in (None, "cpu") and providers is None:
        return ClipCaptioner.open(path, SHIPPED, threads=threads)
    if model.frame_grid and (path / WEIGHTS).is_file():
        from ngsan.predict import Predictor

        captioner, config, vocabulary = _load_torch(path, device, None, providers)
        return _of_clips(Predictor(captioner, vocabulary), config, threads)
    if model.backbone == "none":
        return load_predictor(path, device=device, threads=threads, providers=providers)
    if providers is not None:
        raise ValueError(f"providers: {providers!r} is for exports of regions, and {path} is not")
    if (path / WEIGHTS).is_file() and (
        device not in (None, "cpu") or find_spec("onnxruntime") is None
    ):
        # Packed models hold the weights as PyTorch takes them, too.
        captioner, _, vocabulary = _load_torch(path, device, threads, None)
        return _on_torch(captioner, vocabulary)
    if device not in (None, "cpu"):
        raise _no_device(device, path)
    return PhotoCaptioner.open(path, threads=threads)


def load_photos(
    folder: str | Path | None = None, *, device: str | None = None, threads: int | None = None
) -> PhotoCaptioner:
    """Opens a captioner of photographs; the arguments are those of `load`.

    Raises:
        ValueError: As in `load`, or it is a captioner of regions.
    """
    captioner = load(_folder(folder), device=device, threads=threads)
    if not isinstance(captioner, PhotoCaptioner):
        kind = "clips" if isinstance(captioner, ClipCaptioner) else "regions"
        raise ValueError(f"model: {folder} is a model of {kind} and not of photographs")
    return captioner


def load_clips(
    folder: str | Path | None = None, *, device: str | None = None, threads: int | None = None
) -> ClipCaptioner:
    """Opens a captioner of clips: the one that comes with the package, or one in a folder.

    Args:
        folder: None for the model that comes with the package, which knows moving shapes only.
        device: Where PyTorch runs the captioner, see `load`; the frames are looked at by ONNX
            Runtime.
        threads: Threads of ONNX Runtime; None for one a core.

    Raises:
        ValueError: As in `load`, or it is no captioner of clips from video files.
    """
    path = SHIPPED_CLIPS if folder is None else Path(folder)
    captioner = load(_folder(path), device=device, threads=threads)
    if not isinstance(captioner, ClipCaptioner):
        kind = "photographs" if isinstance(captioner, PhotoCaptioner) else "regions or frames"
        raise ValueError(
            f"model: {path} is a model of {kind}, and not of clips from video files, which say "
            "model.frame_grid"
        )
    return captioner


def load_predictor(
    folder: str | Path,
    *,
    device: str | None = None,
    threads: int | None = None,
    providers: "Sequence[Provider] | None" = None,
) -> "Predictor":
    """Opens a captioner for features, or for pixels as tensors; the arguments are those of `load`.

    Raises:
        ValueError: As in `load`.
    """
    from ngsan.predict import Predictor

    path = _folder(folder)
    if _is_export(path):
        if device is not None:
            raise _no_device(device, path)
        from ngsan.export.runtime import OnnxModel

        model = OnnxModel(path, threads=threads, providers=providers)
        return Predictor(model, model.vocabulary)
    captioner, _, vocabulary = _load_torch(path, device, threads, providers)
    return Predictor(captioner, vocabulary)


def _folder(folder: str | Path | None) -> Path:
    path = SHIPPED if folder is None else Path(folder)
    if path.is_dir():
        return path
    if folder is None:
        raise ValueError(
            f"this installation comes without a model ({path} is not there): name the folder of one"
        )
    raise ValueError(f"{path}: there is no such folder")


def _is_export(path: Path) -> bool:
    return any((path / name).exists() for name in (MANIFEST, ENCODER, DECODER))


def _no_device(device: str | None, path: Path) -> ValueError:
    return ValueError(
        f"device: {device!r} is for model folders, and {path} is an export: providers choose where "
        "it runs"
    )


def _load_torch(
    path: Path,
    device: str | None,
    threads: int | None,
    providers: "Sequence[Provider] | None",
) -> "tuple[Captioner, CaptionerConfig, Vocabulary]":
    if find_spec("torch") is None:
        raise ValueError(f"PyTorch is to run {path} and is not installed: pip install torch")
    from ngsan.models.folder import CONFIG
    from ngsan.models.saved_captioner import VOCABULARY, load_captioner
    from ngsan.predict import best_device

    if not any((path / name).exists() for name in (CONFIG, WEIGHTS)):
        raise ValueError(
            f"{path} is neither a model ({CONFIG}, {VOCABULARY}, {WEIGHTS}) nor an export "
            f"({', '.join(FILES)})"
        )
    for name, value in {"threads": threads, "providers": providers}.items():
        if value is not None:
            raise ValueError(f"{name}: {value!r} is for ONNX Runtime, and PyTorch runs {path}")
    captioner, config, vocabulary = load_captioner(path)
    return captioner.to(best_device(device or "cpu")), config, vocabulary


def _of_clips(
    predictor: "Predictor", config: "CaptionerConfig", threads: int | None
) -> ClipCaptioner:
    from ngsan.light.model import LightModel

    return ClipCaptioner(LightModel(SHIPPED, threads=threads), predictor, config)


def _on_torch(captioner: "Captioner", vocabulary: "Vocabulary") -> PhotoCaptioner:
    from ngsan.predict.photos import TorchPhotos

    return PhotoCaptioner(TorchPhotos(captioner, vocabulary))
