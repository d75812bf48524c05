"""The graphs of an export opened with ONNX Runtime, also those of a packed model."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ngsan.light.manifest import Manifest
from ngsan.light.weights import WEIGHTS, read_weights

Provider = str | tuple[str, dict[str, Any]]
"""An execution provider of ONNX Runtime: its name, or its name and options."""


def open_graphs(
    folder: Path,
    manifest: Manifest,
    *,
    threads: int | None = None,
    providers: Sequence[Provider] | None = None,
) -> dict[str, Any]:
    """Opens the graphs of an export, after a check that they are those that were exported.

    Args:
        folder: The export.
        manifest: Its own.
        threads: Threads of ONNX Runtime; None for one a core.
        providers: Execution providers, the preferred first; None for the CPU's.

    Returns:
        Sessions of ONNX Runtime by file.

    Raises:
        ValueError: A file is damaged, or ONNX Runtime cannot do what is asked.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads: {threads} must be at least 1")
    contents = {name: manifest.content(folder / name) for name in manifest.graphs}
    runtime = onnxruntime()
    _check_providers(runtime, providers)
    tensors = read_weights(manifest.content(folder / WEIGHTS)) if manifest.weights else {}
    state = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    refused = (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NotImplemented,
    )
    sessions = {}
    for name, content in contents.items():
        made = {what: how.of(tensors) for what, how in manifest.made(name).items()}
        values = [runtime.OrtValue.ortvalue_from_numpy(value) for value in made.values()]
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        # Threads of one graph that wait for the next image must not keep another's core busy.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            if made:
                options.add_external_initializers(list(made), values)
            sessions[name] = runtime.InferenceSession(
                content, options, providers=list(providers or ["CPUExecutionProvider"])
            )
        except refused as error:
            raise ValueError(
                f"{folder}: onnxruntime {runtime.__version__} cannot open the graphs: {error}"
            ) from error
    return sessions


def onnxruntime() -> Any:
    """The package.

    Raises:
        ValueError: It is not installed, or cannot be imported.
    """
    try:
        return import_module("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ValueError("this model needs onnxruntime: pip install onnxruntime") from error
    except ImportError as error:
        cause: BaseException | None = error
        while cause is not None:  # what its own code makes of Ctrl-C
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            cause = cause.__cause__ or cause.__context__
        raise ValueError(f"onnxruntime cannot be imported: {error}") from error


def _check_providers(runtime: Any, providers: Sequence[Provider] | None) -> None:
    available = runtime.get_available_providers()
    for provider in providers or ():
        name = provider if isinstance(provider, str) else provider[0]
        if name not in available:
            raise ValueError(
                f"providers: {name!r} is not in this build of onnxruntime, which has "
                f"{', '.join(available)}"
            )
