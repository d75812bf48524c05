"""The files of an export: the manifest that says which belong together, weights, sessions.

An exported captioner is a folder of four files: `encoder.onnx` turns the regions of images into
keys and values, `decoder.onnx` adds one word to every caption, `vocabulary.json` has the words, and
`export.json` is the manifest. A captioner of photographs also has `backbone.onnx`, which makes the
regions. A translator has `tokenizer.json` in place of the vocabulary. An answerer has the one graph
`answerer.onnx`, and `answers.json` beside the vocabulary. The graphs of a packed model hold no
weights; these are in `model.safetensors`, and `Made` says of each how it is made from the file.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ngsan.atomic_io import read_small
from ngsan.config import AnswererConfig, CaptionerConfig, TranslatorConfig, from_dict
from ngsan.text.vocabulary import Vocabulary
from ngsan.threads import SMALL_MODEL, check_threads

BACKBONE = "backbone.onnx"
ENCODER = "encoder.onnx"
DECODER = "decoder.onnx"
ATTENTION = "attention.onnx"
BIAS = "bias.onnx"
MANIFEST = "export.json"
VOCABULARY = "vocabulary.json"
ANSWERER = "answerer.onnx"
WEIGHTS = "model.safetensors"

FILES = (MANIFEST, ENCODER, DECODER, VOCABULARY)
"""The files of an exported captioner of regions."""

FORMAT = 2
"""Version of the files, and of the inputs and outputs of the graphs."""


@dataclass(frozen=True)
class Task:
    """The parts of the exports of a task."""

    config: type
    """Class of the model's configuration."""

    graphs: tuple[str, ...]
    """Files of the graphs, without the backbone."""

    companions: tuple[str, ...]
    """Names of the JSON files with words."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that every export of the task has."""
        return (MANIFEST, *self.graphs, *(f"{name}.json" for name in self.companions))


TASKS = {
    "captioning": Task(CaptionerConfig, (ENCODER, DECODER), ("vocabulary",)),
    "translation": Task(TranslatorConfig, (ENCODER, DECODER), ("tokenizer",)),
    "answering": Task(AnswererConfig, (ANSWERER,), ("vocabulary", "answers")),
}
Provider = str | tuple[str, dict[str, Any]]
"""An execution provider of ONNX Runtime: its name, or its name and options."""


MAX_GRAPH = 1 << 31
"""Bytes of the largest ONNX file, a limit of its format."""

SCALE = ".scale"
"""Suffix of the name of a quantized matrix for the name of its scales."""

_KINDS = {"F32": np.float32, "F16": np.float16, "I8": np.int8, "I64": np.int64}

Way = Literal["same", "floats"]


@dataclass(frozen=True)
class Made:
    """How a weight of a packed graph is made from `model.safetensors`."""

    tensor: str
    """Name of the tensor in the file."""

    way: Way = "same"
    """"same": as it is. "floats": in single precision, integers times their scales."""

    transposed: bool = False
    """Whether it is transposed."""

    def __post_init__(self) -> None:
        if self.way not in get_args(Way):
            raise ValueError(f"way: {self.way!r} is not one of {', '.join(get_args(Way))}")

    def of(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The weight; raises a `ValueError` if a tensor is missing."""
        found = _get(tensors, self.tensor)
        if self.way == "floats":
            floats = found.astype(np.float32)
            if found.dtype == np.int8:
                scale = _get(tensors, self.tensor + SCALE)
                floats *= scale.reshape(-1, *[1] * (found.ndim - 1))
            found = floats
        return np.ascontiguousarray(found.T if self.transposed else found)


@dataclass(frozen=True)
class Manifest:
    """The content of `export.json`."""

    format: int
    """`FORMAT` when it was written."""

    ngsan: str
    """Version of ngsan that wrote it."""

    opset: int
    """Version of the ONNX operators."""

    task: str
    """What the model was trained for, a key of `TASKS`."""

    companions: dict[str, str]
    """Signatures of the vocabulary, the tokenizer or the answers, by name."""

    inputs: dict[str, list[str]]
    """Names of the inputs of each graph, in order, by file."""

    outputs: dict[str, list[str]]
    """Names of the outputs of each graph, in order, by file."""

    sha256: dict[str, str]
    """SHA-256 of each graph, by file."""

    precision: str
    """Precision of the matrices: "float32" or "int8"."""

    model: Any
    """What the model was built from. A captioner with a backbone takes images of `image_size`,
    whose `grid` of cells has the boxes of `cell_boxes`."""

    weights: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """The fields of a `Made` by file and by name of a weight; empty unless the model is packed."""

    seal: str = ""
    """SHA-256 of everything else."""

    @property
    def graphs(self) -> tuple[str, ...]:
        """The files that are graphs."""
        backbone = getattr(self.model, "backbone", "none") != "none"
        return (*([BACKBONE] if backbone else []), *TASKS[self.task].graphs)

    @property
    def files(self) -> tuple[str, ...]:
        """All files that belong to it and are read with it."""
        optional = [name for name in (ATTENTION, BIAS) if name in self.sha256]
        words = (f"{name}.json" for name in self.companions)
        weights = [WEIGHTS] if self.weights else []
        return (MANIFEST, *self.graphs, *optional, *words, *weights)

    def save(self, folder: Path) -> None:
        """Writes `export.json`, sealed."""
        content = dataclasses.asdict(self)
        text = json.dumps({**content, "seal": _seal(content)}, indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    def made(self, graph: str) -> dict[str, Made]:
        """How each weight of a packed graph is made, by name."""
        return {name: from_dict(Made, how) for name, how in self.weights.get(graph, {}).items()}

    @classmethod
    def load(cls, folder: Path, task: str = "captioning") -> "Manifest":
        """Reads `export.json`.

        Args:
            folder: The export.
            task: What the model must have been trained for.

        Raises:
            ValueError: A file is missing, or this one is damaged, of another format or task.
        """
        path = folder / MANIFEST
        if not path.is_file():
            _require(folder, TASKS[task].files)
        try:
            content = json.loads(read_small(path))
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}: damaged: {error}; export again") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise ValueError(
                f"{path}: format {found!r} is not supported, only {FORMAT}; export again"
            )
        absent = [item.name for item in dataclasses.fields(cls) if item.name not in content]
        if absent:
            raise ValueError(f"{path}: {', '.join(absent)} missing; export again")
        unknown = content.keys() - {item.name for item in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"{path}: unknown key {min(unknown)!r}; export again")
        if content["seal"] != _seal(content):
            raise ValueError(f"{path}: damaged: its content does not match its seal")
        if content["task"] != task:
            raise ValueError(f"{folder} is a model for {content['task']}, not for {task}")
        _require(folder, TASKS[task].files)
        try:
            config: Any = from_dict(TASKS[task].config, content["model"], "model")
            manifest = cls(**{**content, "model": config})
        except ValueError as error:
            raise ValueError(f"{path}: {error}; export again") from error
        _require(folder, manifest.files)
        return manifest

    def content(self, path: Path) -> bytes:
        """The bytes of a graph or of the weights; raises a `ValueError` if they were changed."""
        content = read_small(path, MAX_GRAPH)
        if hashlib.sha256(content).hexdigest() != self.sha256.get(path.name):
            raise ValueError(
                f"{path} is damaged or from another export: its SHA-256 is not the one in "
                f"{MANIFEST}; export again"
            )
        return content

    def words(self, path: Path) -> Vocabulary:
        """The vocabulary; raises a `ValueError` if it is not the one that was exported."""
        vocabulary: Vocabulary = self.companion(path, Vocabulary.load)
        if len(vocabulary) != self.model.vocab_size:
            raise ValueError(
                f"{path} has {len(vocabulary)} ids and the model {self.model.vocab_size}: they do "
                "not match"
            )
        return vocabulary

    def companion(self, path: Path, load: Callable[[Path], Any]) -> Any:
        """Reads a vocabulary, tokenizer or list of answers, which must be the exported one."""
        found = load(path)
        if found.signature != self.companions.get(path.stem):
            raise ValueError(
                f"{path} ({found.signature}) is not the {path.stem} of the export "
                f"({self.companions.get(path.stem)})"
            )
        return found


def _seal(content: dict[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _require(folder: Path, files: tuple[str, ...]) -> None:
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not an export: {' and '.join(missing)} missing")


def cell_boxes(side: int) -> NDArray[np.float32]:
    """(N, 4) the cells of a grid of side x side, row by row: `cxcywh`, relative to the image."""
    centres = (np.arange(side, dtype=np.float32) + 0.5) / side
    y, x = np.meshgrid(centres, centres, indexing="ij")
    sides = np.full(side * side, 1 / side)
    return np.stack((x.ravel(), y.ravel(), sides, sides), 1).astype(np.float32)


def layer_names(what: str, layers: int) -> list[str]:
    """The names of a graph's keys, and then of its values, in every layer: `word_keys_0` etc."""
    return [f"{what}_{part}_{layer}" for part in ("keys", "values") for layer in range(layers)]


def _get(tensors: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in tensors:
        raise ValueError(f"{WEIGHTS} has no {name}")
    return tensors[name]


def read_weights(content: bytes) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file by name, as read-only views of `content`.

    Note: The safetensors library would copy the tensors, which takes longer than a caption.

    Raises:
        ValueError: The file is damaged, or has a dtype that packed models do not use.
    """
    try:
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        _check_places(header, len(content) - start)
        return {
            name: _tensor(content, start, **about)
            for name, about in header.items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"{WEIGHTS}: damaged or not packed weights: {error}") from error


def _check_places(header: dict[str, Any], size: int) -> None:
    """Rejects tensors that share bytes, or leave some out."""
    places = sorted(
        tuple(about["data_offsets"]) for name, about in header.items() if name != "__metadata__"
    )
    last = 0
    for first, end in places:
        if first != last or end < first:
            raise ValueError(f"a tensor begins at byte {first}, and the one before ends at {last}")
        last = end
    if last != size:
        raise ValueError(f"the last tensor ends at byte {last} of {size}")


def _tensor(
    content: bytes, start: int, *, dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    first, last = data_offsets
    kind, count = np.dtype(_KINDS[dtype]), math.prod(shape)
    if first < 0 or last - first != count * kind.itemsize:
        raise ValueError(f"bytes {first} to {last} for a tensor of {shape} {dtype}")
    return np.frombuffer(content, kind, count, start + first).reshape(shape)


def open_graphs(
    folder: Path,
    manifest: Manifest,
    *,
    threads: int | None = None,
    providers: Sequence[Provider] | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Opens the graphs of an export after checking that they are those that were exported.

    Args:
        folder: The export.
        manifest: Its own.
        threads: Threads of ONNX Runtime; None chooses by the size of the model.
        providers: Execution providers, the preferred first; None for the CPU's.
        names: Files of the graphs; None for those that every use of the model needs.

    Returns:
        Sessions of ONNX Runtime by file.

    Raises:
        ValueError: A file is damaged, a provider is not available, or ONNX Runtime rejects a graph.
    """
    if threads is not None:
        check_threads(threads)
    contents = {name: manifest.content(folder / name) for name in names or manifest.graphs}
    runtime = onnxruntime()
    _check_providers(runtime, providers)
    tensors = read_weights(manifest.content(folder / WEIGHTS)) if manifest.weights else {}
    state = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    errors = (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NotImplemented,
    )
    size = sum(tensor.size for tensor in tensors.values()) or sum(map(len, contents.values())) // 4
    sessions = {}
    for name, content in contents.items():
        made = {what: how.of(tensors) for what, how in manifest.made(name).items()}
        values = [runtime.OrtValue.ortvalue_from_numpy(value) for value in made.values()]
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or int(size < SMALL_MODEL)
        # A thread that waits for the next image must not keep a core busy.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # In a server, graphs share their memory; see ngsan.app.memory.
        options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            if made:
                options.add_external_initializers(list(made), values)
            sessions[name] = runtime.InferenceSession(
                content, options, providers=list(providers or ["CPUExecutionProvider"])
            )
        except errors as error:
            raise ValueError(
                f"{folder}: onnxruntime {runtime.__version__} cannot open the graphs: {error}"
            ) from error
    return sessions


def needs_torch(folder: Path, device: str | None) -> bool:
    """Whether PyTorch is to run a model, rather than ONNX Runtime.

    Args:
        folder: The model.
        device: What the caller asked for; None and "cpu" prefer ONNX Runtime, and so does "auto"
            where there is no GPU.
    """
    if not (folder / MANIFEST).is_file():
        return True
    if device == "auto" and find_spec("torch") is not None:
        import torch

        return torch.cuda.is_available()
    return device not in (None, "cpu", "auto")


def require_torch(folder: Path, providers: Sequence[Provider] | None = None) -> None:
    """Raises a `ValueError` unless PyTorch is installed, which has no execution providers."""
    if find_spec("torch") is None:
        raise ValueError(f"{folder} needs PyTorch: pip install 'ngsan[train]'")
    if providers is not None:
        raise ValueError(f"providers: {providers!r} is for ONNX Runtime, and PyTorch runs {folder}")


def onnxruntime() -> Any:
    """The package; raises a `ValueError` if it cannot be imported."""
    try:
        return import_module("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ValueError("this model needs onnxruntime: pip install onnxruntime") from error
    except ImportError as error:
        cause: BaseException | None = error
        while cause is not None:  # its own code turns Ctrl-C into an ImportError
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
