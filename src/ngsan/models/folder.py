"""A model on the disk, whatever its task: a folder with weights, configuration and companions.

`model.safetensors` decides. Its metadata say what belongs to the weights (the task, the
configuration, the companions such as a vocabulary, the scores) and end in a signature over them
and over every tensor, so that replacing this one file replaces the model. `config.yaml` and the
companions must agree with it, or the model is refused. `metrics.json` and `signature.json` repeat
it for people and other programs and are never read here: a kill between the weights and them
leaves them a model behind, no more.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import yaml
from torch import Tensor

from ngsan.config import from_dict, to_yaml
from ngsan.durable import flush, make_folder, remove_partials, replacing, write_text, write_unseen
from ngsan.models.rounded import ROUNDING, round_weights
from ngsan.models.weights import (
    content_signature,
    metadata_of,
    on_host,
    read_weights,
    serialize,
)

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
    delicate: Collection[str] = (),
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
        rounded: Whether large matrices are written in 8 bits, see `ngsan.models.rounded`.
        delicate: Names of matrices that are not.

    Raises:
        ValueError: The arguments do not belong together.
        OSError: A file could not be written, such as on a full disk.
    """
    if run.model != config:
        raise ValueError(f"run.model: {run.model} is not the model's configuration: {config}")
    weights = on_host(round_weights(tensors, delicate) if rounded else tensors)
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
        write_unseen(partial, serialize(weights, metadata), name=folder / WEIGHTS)
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
    metadata, tensors = read_weights(folder / WEIGHTS)
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
        raise ValueError(
            f"{folder} is a model for {found}, and here one for {task} is needed; such a model is "
            f"for {TASKS[found]}"
        )


TASKS = {
    "captioning": "`ngsan caption` and `ngsan evaluate`, or ngsan.load in Python",
    "translation": "`ngsan translate` and `ngsan evaluate`, or ngsan.open_translator in Python",
    "answering": "`ngsan answer` and `ngsan evaluate`, or ngsan.QuestionAnswerer.load in Python",
}
"""What models are trained for, and what uses them."""


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
    names = _companions_of(metadata_of(source / WEIGHTS))
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
        metadata = metadata_of(partial)
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
        metrics = json.loads(metadata_of(path).get("metrics", ""))
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
    return metadata_of(Path(folder) / WEIGHTS).get("task", "captioning")


def model_signature(folder: str | Path) -> str:
    """The signature of a model: equal for equal weights, configuration, vocabulary and scores.

    It is read and not computed; `read_model` does that.

    Raises:
        ValueError: There are no weights, or their file cannot be read.
    """
    return metadata_of(Path(folder) / WEIGHTS)["signature"]


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
