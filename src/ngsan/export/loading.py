"""Opens a captioner, whatever runs it."""

from collections.abc import Sequence
from pathlib import Path

from ngsan.export.runtime import OnnxModel, Provider
from ngsan.light.manifest import DECODER, ENCODER, FILES, MANIFEST
from ngsan.models.saved import CONFIG, VOCABULARY, WEIGHTS, load_captioner
from ngsan.predict import Predictor, best_device


def load(
    folder: str | Path,
    *,
    device: str | None = None,
    threads: int | None = None,
    providers: Sequence[Provider] | None = None,
) -> Predictor:
    """Opens a captioner: an export, to be run by ONNX Runtime, or a model folder, by PyTorch.

    Args:
        folder: What `ngsan export` or `save_captioner` wrote.
        device: Of a model folder only: where it runs, such as "cuda", or "auto" for a GPU if there
            is one; None for the CPU.
        threads: Of an export only: threads of ONNX Runtime; None for one a core.
        providers: Of an export only: execution providers of ONNX Runtime, the preferred first;
            None for the CPU's.

    Raises:
        ValueError: The folder is neither, its files do not belong together, or an argument is not
            for its kind.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    names = {path.name for path in folder.iterdir()}
    if names & {MANIFEST, ENCODER, DECODER}:
        if device is not None:
            raise ValueError(
                f"device: {device!r} is for model folders, and {folder} is an export: "
                "providers choose where it runs"
            )
        model = OnnxModel(folder, threads=threads, providers=providers)
        return Predictor(model, model.vocabulary)
    if not names & {CONFIG, WEIGHTS}:
        raise ValueError(
            f"{folder} is neither a model ({CONFIG}, {VOCABULARY}, {WEIGHTS}) nor an export "
            f"({', '.join(FILES)})"
        )
    for name, value in {"threads": threads, "providers": providers}.items():
        if value is not None:
            raise ValueError(f"{name}: {value!r} is for exports, and {folder} is a model folder")
    captioner, _, vocabulary = load_captioner(folder)
    return Predictor(captioner.to(best_device(device or "cpu")), vocabulary)
