"""A model on the disk, whatever its task: a folder with weights, configuration and companions.

`model.safetensors` decides. Its metadata say what belongs to the weights (the task, the
configuration, the companions such as a vocabulary, the scores) and end in a signature over them
and over every tensor, so that replacing this one file replaces the model. `config.yaml` and the
companions must agree with it, or the model is refused. `metrics.json` and `signature.json` repeat
it for people and other programs and are never read here: a kill between the weights and them
leaves them a model behind, no more.
"""

import dataclasses
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ngsan.config import from_dict, to_yaml
from ngsan.durable import flush, make_folder, remove_partials, replacing, write_text, write_unseen
from ngsan.models.rounded import ROUNDING, restore_weights

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
METRICS = "metrics.json"
SIGNATURE = "signature.json"

COMPANIONS = ("vocabulary", "tokenizer", "answers")
"""What models may have besides: each is a JSON file of that name."""

FORMAT = 1
"""Version of the folder, as `signature.json` has it."""

Config = TypeVar("Config")


class Companion(Protocol):
    """Something that a model cannot do without, such as its words."""

    @property
    def signature(self) -> str:
        """Text that differs for other content."""

    def to_json(self) -> str:
        """The content of its file."""


@dataclass(frozen=True)
class Stored(Generic[Config]):
    """What a model folder holds."""

    config: Config
    """What the model is to be built from."""

    tensors: dict[str, Tensor]
    """Its weights; what was rounded comes in single precision."""

    companions: dict[str, Any]
    """By name, as their loaders returned them."""


def write_model(
    folder: str | Path,
    tensors: Mapping[str, Tensor],
    config: Any,
    companions: Mapping[str, Companion],
    *,
    task: str,
    run: Any,
    metrics: Mapping[str, Any] | None = None,
    rounded: bool = False,
) -> None:
    """Writes a model; a kill at any instant leaves the model that was there or this one.

    A model of another configuration or with other companions is replaced in several steps; a kill
    among them may leave a folder that is refused, and never one that mixes the two.

    Args:
        folder: Where to; it is made if need be, and a model that is there is replaced. One process
            at a time may write to it.
        tensors: The weights.
        config: What the model was built from, a dataclass.
        companions: By name, of `COMPANIONS`.
        task: What it was trained for.
        run: The configuration to write: a dataclass with a field `model`.
        metrics: Its scores, as JSON values.
        rounded: Whether the weights are those of `ngsan.models.rounded.round_weights`.

    Raises:
        ValueError: The arguments do not belong together.
        OSError: A file could not be written, such as on a full disk.
    """
    if run.model != config:
        raise ValueError(f"run.model: {run.model} is not the model's configuration: {config}")
    weights = on_host(tensors)
    metadata = _describe(config, companions, {} if metrics is None else metrics, task)
    if rounded:
        metadata["rounding"] = ROUNDING
    metadata["signature"] = content_signature(weights, metadata)
    folder = Path(folder)
    make_folder(folder)
    for name in (CONFIG, WEIGHTS, METRICS, SIGNATURE, *map(companion_file, companions)):
        remove_partials(folder / name)
    with replacing(folder / WEIGHTS) as partial:
        # First of all, so that a full disk is noticed while the old model is as it was.
        write_unseen(partial, _serialize(weights, metadata), name=folder / WEIGHTS)
        _write_if_new(folder / CONFIG, to_yaml(run))
        for name, companion in companions.items():
            _write_if_new(folder / companion_file(name), companion.to_json())
    _repeat(folder, metadata)


def read_model(
    folder: str | Path,
    config: type[Config],
    loaders: Mapping[str, Callable[[Path], Companion]],
    *,
    task: str,
) -> Stored[Config]:
    """Reads what `write_model` wrote.

    Only the section `model` of `config.yaml` is read. `metrics.json` and `signature.json` may be
    missing or of the model before; see the top of this module.

    Args:
        folder: The model.
        config: Class of its configuration.
        loaders: Read the companions that it needs, by name; each raises a `ValueError` for a file
            that is not such a companion.
        task: What the model must have been trained for.

    Raises:
        ValueError: The folder is no such model, is damaged, or its files do not belong together.
    """
    folder = Path(folder)
    require_task(folder, task)
    _require_files(folder, loaders)
    found = _read_config(folder / CONFIG, config)
    companions = {name: load(folder / companion_file(name)) for name, load in loaders.items()}
    metadata, tensors = _read_weights(folder / WEIGHTS)
    for name, companion in companions.items():
        if metadata.get(name) != companion.signature:
            raise ValueError(
                f"{folder}: {WEIGHTS} belongs to {name} {metadata.get(name)}, and "
                f"{companion_file(name)} is {companion.signature}: they do not belong together"
            )
    _check_config(folder, found, config, metadata)
    return Stored(found, tensors, companions)


def companion_file(name: str) -> str:
    """The file of a companion."""
    return f"{name}.json"


def require_task(folder: Path, task: str) -> None:
    """Refuses a model that was trained for something else; what is no model is not looked at."""
    try:
        found = read_task(folder)
    except ValueError:
        return  # who reads the rest of it says what is wrong
    if found in TASKS and found != task:
        raise ValueError(f"{folder} is a model for {found}, and here one for {task} is needed")


TASKS = ("captioning", "translation", "answering")
"""What models are trained for."""


def copy_model(source: str | Path, target: str | Path) -> None:
    """Makes `target` hold the same model as `source`.

    A true copy, so that damage to one does not hit the other. The promises of `write_model`
    hold here too.

    Args:
        source: A model folder. Its weights are not checked; loading does that.
        target: Where to; it is made if need be, and a model that is there is replaced.

    Raises:
        ValueError: The source is no model.
    """
    source, target = Path(source), Path(target)
    _require_files(source, ())
    names = _companions_of(_metadata_of(source / WEIGHTS))
    _require_files(source, names)
    companions = [companion_file(name) for name in names]
    make_folder(target)
    if source.samefile(target):
        return
    for name in (CONFIG, WEIGHTS, METRICS, SIGNATURE, *companions):
        remove_partials(target / name)
    with replacing(target / WEIGHTS) as partial:
        shutil.copyfile(source / WEIGHTS, partial)
        flush(partial)
        metadata = _metadata_of(partial)
        for name in (CONFIG, *companions):
            _write_if_new(target / name, (source / name).read_text(encoding="utf-8"))
    _repeat(target, metadata)


def read_metrics(folder: str | Path) -> dict[str, Any]:
    """The scores that were saved with a model, as its weights' file has them; not checked.

    Raises:
        ValueError: There are no weights, or their file cannot be read.
    """
    path = Path(folder) / WEIGHTS
    try:
        metrics = json.loads(_metadata_of(path).get("metrics", ""))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: damaged or no weights: its metrics: {error}") from error
    if not isinstance(metrics, dict):
        raise ValueError(f"{path}: damaged or no weights: its metrics are {metrics!r}")
    return metrics


def read_task(folder: str | Path) -> str:
    """What a model was trained for, as its weights' file has it; not checked.

    Raises:
        ValueError: There are no weights, or their file cannot be read.
    """
    return _metadata_of(Path(folder) / WEIGHTS).get("task", "captioning")


def model_signature(folder: str | Path) -> str:
    """The signature of a model: equal for equal weights, configuration, vocabulary and scores.

    It is read and not computed; `read_model` does that.

    Raises:
        ValueError: There are no weights, or their file cannot be read.
    """
    return _metadata_of(Path(folder) / WEIGHTS)["signature"]


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them: on the CPU, contiguous, no two in the same memory."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        found[name] = tensor
    return found


def content_signature(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over metadata, other than a signature, and each tensor's name, type, shape, bytes.

    Unlike a checksum of the file it does not depend on the order in which the file has them.

    Args:
        tensors: From `on_host`, or loaded.
        metadata: Of the file.
    """
    rest = {key: value for key, value in metadata.items() if key != "signature"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _serialize(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file whose bytes follow from its content.

    The library writes the metadata in an order that changes from process to process.
    """
    raw = save(dict(tensors), dict(metadata))
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + raw[8 + size :]


def _describe(
    config: Any, companions: Mapping[str, Companion], metrics: Mapping[str, Any], task: str
) -> dict[str, str]:
    """The metadata of the weights' file, less the signature."""
    try:
        scores = json.dumps(dict(metrics), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metrics: {error}; give finite numbers and plain JSON values") from error
    return {
        "format": "pt",
        "task": task,
        # Spelled out rather than hashed: a key that is added later has its default in old files.
        "config": json.dumps(dataclasses.asdict(config), sort_keys=True),
        "metrics": scores,
        **{name: companion.signature for name, companion in companions.items()},
    }


def _repeat(folder: Path, metadata: Mapping[str, str]) -> None:
    """Writes what the weights' file says to the files beside it."""
    metrics = json.loads(metadata["metrics"])
    names = ("signature", "task", *_companions_of(metadata))
    about = {"format": FORMAT, **{name: metadata[name] for name in names}}
    write_text(folder / METRICS, json.dumps(metrics, ensure_ascii=False, indent=2) + "\n")
    write_text(folder / SIGNATURE, json.dumps(about, ensure_ascii=False, indent=2) + "\n")


def _companions_of(metadata: Mapping[str, str]) -> list[str]:
    """The companions that the metadata of weights name."""
    return [name for name in COMPANIONS if name in metadata]


def _write_if_new(path: Path, text: str) -> None:
    """Writes a file unless it is there with that content."""
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def _require_files(folder: Path, companions: Iterable[str]) -> None:
    needed = (CONFIG, *map(companion_file, companions), WEIGHTS)
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not a model: {' and '.join(missing)} missing")


def _read_config(path: Path, config: type[Config]) -> Config:
    """The section `model` of a configuration file, whatever else is in it."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or "model" not in values:
            raise ValueError("there is no section 'model'")
        return from_dict(config, values["model"], "model")
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error


def _check_config(
    folder: Path, found: Any, config: type[Config], metadata: Mapping[str, str]
) -> None:
    """Refuses a configuration that is not that of the weights."""
    try:
        trained: Any = from_dict(config, json.loads(metadata.get("config", "")))
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: its configuration is not known: {error}") from error
    for key, value in dataclasses.asdict(trained).items():
        mine = getattr(found, key)
        if mine != value:
            raise ValueError(
                f"{folder}: {WEIGHTS} does not fit {CONFIG}: it was saved with {key}: {value}, and "
                f"{CONFIG} says model.{key}: {mine}"
            )


def check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], problem: str) -> None:
    """Refuses tensors of other names or shapes than expected."""
    wanted, shapes = (
        {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for tensors in (expected, found)
    )
    if wanted != shapes:
        wrong = min(set(wanted.items()) ^ set(shapes.items()))[0]
        raise ValueError(
            f"{problem}: {wrong} is {shapes.get(wrong, 'absent')}, "
            f"expected {wanted.get(wrong, 'nothing of that name')}"
        )


def _read_weights(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata of a weights' file whose signature is right, and its tensors, not rounded."""
    try:
        content = path.read_bytes()  # at once, as the file may be replaced meanwhile
        metadata = _parse(io.BytesIO(content), len(content))
        tensors = load(content)
        if content_signature(tensors, metadata) != metadata["signature"]:
            raise ValueError("its content is not what its signature says")
        if "rounding" in metadata:
            if metadata["rounding"] != ROUNDING:
                raise ValueError(f"its rounding {metadata['rounding']!r} is not known here")
            tensors = restore_weights(tensors)
    except (SafetensorError, ValueError, OSError) as error:
        raise ValueError(f"{path}: damaged or no weights: {error}") from error
    return metadata, tensors


def _metadata_of(path: Path) -> dict[str, str]:
    """The metadata of a weights' file, whose tensors are not read."""
    try:
        with path.open("rb") as file:
            return _parse(file, path.stat().st_size)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: damaged or no weights: {error}") from error


def _parse(file: BinaryIO, size: int) -> dict[str, str]:
    """The metadata at the beginning of a safetensors file: a length of 8 bytes, then JSON."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= size - 8:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = file.read(length)
    if not header.rstrip(b" ").endswith(b"}"):  # it is padded with spaces and nothing else
        raise ValueError("the header does not end as it should")
    try:
        values = json.loads(header)
    except RecursionError as error:
        raise ValueError("the header is nested too deeply") from error
    metadata = values.get("__metadata__") if isinstance(values, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("signature"), str):
        raise ValueError("it has no signature in its metadata; save the model anew")
    return metadata
