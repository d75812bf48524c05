"""Models on the disk: a folder with weights, configuration and companions, for every task.

`model.safetensors` decides. Its metadata name what belongs to the weights (the task, the
configuration, companions such as a vocabulary, the scores) and end in a signature over them and
over every tensor, so that replacing this one file replaces the model. `config.yaml` and the
companions must agree with it, or the model is rejected. `metrics.json` and `signature.json` repeat
it for other programs and are never read here: a kill before they are written leaves them one model
behind.
"""

import dataclasses
import json
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ngsan.atomic_io import (
    flush,
    make_folder,
    remove_partials,
    replace_file,
    write_text,
    write_unseen,
)
from ngsan.config import AnswererConfig, CaptionerConfig, TranslatorConfig, from_dict, to_yaml
from ngsan.config.yaml_text import read_yaml_file
from ngsan.models.build import build_model
from ngsan.models.quantize import SCHEME, quantize_weights, sensitive_weights
from ngsan.models.weights import (
    check_fit,
    content_signature,
    metadata_of,
    on_host,
    read_weights,
    serialize,
)
from ngsan.text.subwords import Subwords
from ngsan.text.vocabulary import Vocabulary

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
METRICS = "metrics.json"
SIGNATURE = "signature.json"

FORMAT = 1
"""Version of the folder, as `signature.json` has it."""


class Companion(Protocol):
    """What a model needs besides its weights, such as its vocabulary."""

    @property
    def signature(self) -> str:
        """Text that differs for other content."""

    def to_json(self) -> str:
        """The content of its file."""


@dataclass(frozen=True)
class Task:
    """What the models of a task consist of."""

    config: type[Any]
    """Class of their configuration."""

    companions: Mapping[str, tuple[Callable[[Path], Any], str]]
    """By name (the file is `NAME.json`): how it is read, and the key of the configuration that must
    equal its number of entries."""

    usage: str
    """The commands and functions that use such models."""


TASKS = {
    "captioning": Task(
        CaptionerConfig,
        {"vocabulary": (Vocabulary.load, "vocab_size")},
        "`ngsan caption` and `ngsan evaluate`, or ngsan.load in Python",
    ),
    "translation": Task(
        TranslatorConfig,
        {"tokenizer": (Subwords.load, "vocab_size")},
        "`ngsan translate` and `ngsan evaluate`, or ngsan.load_translator in Python",
    ),
    "answering": Task(
        AnswererConfig,
        {
            "vocabulary": (Vocabulary.load, "vocab_size"),
            "answers": (Vocabulary.load, "answers"),
        },
        "`ngsan answer` and `ngsan evaluate`, or ngsan.load_answerer in Python",
    ),
}
"""What a model may have been trained for."""

COMPANIONS = ("vocabulary", "tokenizer", "answers")
"""The companions of all tasks, in the order of the metadata."""


class Checkpoint(NamedTuple):
    """What a model folder holds."""

    tensors: dict[str, Tensor]
    """The weights; what was quantized comes in single precision."""

    config: Any
    """What the model is to be built from."""

    companions: dict[str, Any]
    """The vocabulary, the tokenizer or the answers, by name."""


def save_model(
    folder: str | Path,
    model: nn.Module,
    config: Any,
    companions: Mapping[str, Companion],
    *,
    run: Any = None,
    metrics: Mapping[str, Any] | None = None,
    task: str | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    quantize: bool = False,
    features: str = "",
) -> None:
    """Writes a model; a kill at any instant leaves the model that was there or this one.

    A model of another configuration or with other companions is replaced in several steps; a kill
    among them may leave a folder that is rejected, and never one that mixes the two.

    Args:
        folder: Where to; it is made if need be, and a model that is there is replaced. One process
            at a time may write to it.
        model: The captioner, translator or answerer.
        config: What it was built from.
        companions: Its vocabulary, tokenizer or answers, by name.
        run: The configuration of the whole run, a dataclass with a field `model`, to be written in
            place of the model's own; None when there is none.
        metrics: Its scores, as JSON values.
        task: What it was trained for, if not the task of its configuration.
        tensors: Weights to write in place of the model's, such as averaged ones.
        quantize: Whether large matrices are written in 8 bits, see `ngsan.models.quantize`.
        features: What made the features that a model of regions was trained on, as their store
            describes it; so others can be made for it.

    Raises:
        ValueError: The arguments do not match.
        OSError: A file could not be written, such as on a full disk.
    """
    kind = next(name for name, known in TASKS.items() if isinstance(config, known.config))
    _check_sizes(config, companions, TASKS[kind])
    if not getattr(config, "is_resolved", True):
        raise ValueError(
            f"backbone: {config.backbone} decides on keys that are not set; "
            "ngsan.models.resolve_backbone sets them"
        )
    weights = model.state_dict()
    if tensors is not None:
        check_fit(weights, tensors, "tensors do not fit the model")
        weights = dict(tensors)
    if run is not None and run.model != config:
        raise ValueError(f"run.model: {run.model} is not the model's configuration: {config}")
    if quantize:
        weights = quantize_weights(weights, sensitive_weights(model))
    weights = on_host(weights)
    metadata = _describe(config, companions, metrics or {}, task or kind)
    if quantize:
        metadata["rounding"] = SCHEME
    if features:
        metadata["features"] = features
    metadata["signature"] = content_signature(weights, metadata)
    folder = Path(folder)
    make_folder(folder)
    for name in (CONFIG, WEIGHTS, METRICS, SIGNATURE, *map(companion_file, companions)):
        remove_partials(folder / name)
    with replace_file(folder / WEIGHTS) as partial:
        # First of all, so that a full disk is noticed while the old model is as it was.
        write_unseen(partial, serialize(weights, metadata), name=folder / WEIGHTS)
        _write_if_new(folder / CONFIG, _alone(config) if run is None else to_yaml(run))
        for name, companion in companions.items():
            _write_if_new(folder / companion_file(name), companion.to_json())
    _repeat(folder, metadata)


def load_model(folder: str | Path, task: str | None = None) -> tuple[Any, Any, dict[str, Any]]:
    """Reads a model in evaluation mode, in the saved precision; quantized ones in single precision.

    Args:
        folder: What `save_model` wrote.
        task: What it must have been trained for; None for anything.

    Returns:
        model: The `CaptionerModel`, `TranslatorModel` or `AnswererModel`.
        config: What it was built from.
        companions: Its vocabulary, tokenizer or answers, by name.

    Raises:
        ValueError: The folder has no model of this task, is damaged, or its files do not belong
            together.
    """
    tensors, config, companions = read_checkpoint(folder, task)
    total = sum(tensor.numel() for tensor in tensors.values())
    if getattr(config, "decoder", "transformer") == "transformer":
        least = config.layers * config.dim * max(config.dim, config.hidden_dim)
        if least > total:  # before memory is taken for a model that does not fit
            raise ValueError(
                f"{folder}: {WEIGHTS} does not fit {CONFIG}: {total:,} numbers for "
                f"{config.layers} layers of width {config.dim} and {config.hidden_dim}"
            )
    problem = f"{folder}: {WEIGHTS} does not fit {CONFIG}"
    if getattr(config, "backbone_config", ""):  # likewise
        with torch.device("meta"):
            check_fit(build_model(config).state_dict(), tensors, problem)
    model = build_model(config)
    check_fit(model.state_dict(), tensors, problem)
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(tensors)
    return model.eval(), config, companions


def read_checkpoint(folder: str | Path, task: str | None = None) -> Checkpoint:
    """Reads and verifies what `save_model` wrote, without building the model.

    Only the section `model` of `config.yaml` is read. `metrics.json` and `signature.json` may be
    missing or of the model before; see the top of this module.

    Raises:
        ValueError: As in `load_model`.
    """
    folder = Path(folder)
    kind = require_task(folder, task)
    loaders = {name: read for name, (read, _) in TASKS[kind].companions.items()}
    _require_files(folder, loaders)
    config = _read_config(folder / CONFIG, TASKS[kind].config)
    companions = {name: read(folder / companion_file(name)) for name, read in loaders.items()}
    metadata, tensors = read_weights(folder / WEIGHTS)
    for name, companion in companions.items():
        if metadata.get(name) != companion.signature:
            raise ValueError(
                f"{folder}: {WEIGHTS} belongs to {name} {metadata.get(name)}, and "
                f"{companion_file(name)} is {companion.signature}: they do not match"
            )
    _check_config(folder, config, metadata)
    _check_sizes(config, companions, TASKS[kind], f"{folder}: ")
    return Checkpoint(tensors, config, companions)


def copy_model(source: str | Path, target: str | Path) -> None:
    """Makes `target` hold the same model as `source`.

    A true copy, so that damage to one does not hit the other. The promises of `save_model` hold
    here, too.

    Args:
        source: A model folder. Its weights are not checked; loading does that.
        target: Where to; it is made if need be, and a model that is there is replaced.

    Raises:
        ValueError: The source is not a model.
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
    with replace_file(target / WEIGHTS) as partial:
        shutil.copyfile(source / WEIGHTS, partial)
        flush(partial)
        metadata = metadata_of(partial)
        for name in (CONFIG, *companions):
            _write_if_new(target / name, (source / name).read_text(encoding="utf-8"))
    _repeat(target, metadata)


def companion_file(name: str) -> str:
    """The file of a companion."""
    return f"{name}.json"


def read_metrics(folder: str | Path) -> dict[str, Any]:
    """The scores that were saved with a model, from its weights' metadata; not verified.

    Raises:
        ValueError: The weights are missing or cannot be read.
    """
    path = Path(folder) / WEIGHTS
    try:
        metrics = json.loads(metadata_of(path).get("metrics", ""))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: damaged or no weights: its metrics: {error}") from error
    if not isinstance(metrics, dict):
        raise ValueError(f"{path}: damaged or no weights: its metrics are {metrics!r}")
    return metrics


def read_features(folder: str | Path) -> str:
    """What made the features that a model was trained on; "" if it is not known.

    Raises:
        ValueError: The weights are missing or cannot be read.
    """
    return metadata_of(Path(folder) / WEIGHTS).get("features", "")


def read_task(folder: str | Path) -> str:
    """What a model was trained for, from its weights' metadata; not verified.

    Raises:
        ValueError: The weights are missing or cannot be read.
    """
    return metadata_of(Path(folder) / WEIGHTS).get("task", "captioning")


def require_task(folder: str | Path, wanted: str | None = None) -> str:
    """The key of `TASKS` by which to read a folder; rejects a model for another task than `wanted`.

    Captioners may have been trained under other names.
    """
    try:
        found = read_task(folder)
    except ValueError:  # reading the rest says what is wrong
        return wanted or "captioning"
    if found not in TASKS:
        return wanted or "captioning"
    if wanted not in (None, found):
        raise ValueError(
            f"{folder} is a model for {found}, not for {wanted}; use it with {TASKS[found].usage}"
        )
    return found


def model_signature(folder: str | Path) -> str:
    """The signature of a model: equal for equal weights, configuration, companions and scores.

    It is read and not computed; `load_model` does that.

    Raises:
        ValueError: The weights are missing or cannot be read.
    """
    return metadata_of(Path(folder) / WEIGHTS)["signature"]


def _check_sizes(
    config: Any, companions: Mapping[str, Companion], task: Task, where: str = ""
) -> None:
    """Rejects companions whose size is not that of the model."""
    if companions.keys() != task.companions.keys():
        raise ValueError(
            f"{where}the model needs {' and '.join(task.companions)}, not "
            f"{' and '.join(companions) or 'nothing'}"
        )
    for name, (_, key) in task.companions.items():
        companion: Any = companions[name]
        size = len(companion.words if name == "answers" else companion)
        if size != getattr(config, key):
            raise ValueError(
                f"{where}the {name} has {size} entries and the model {getattr(config, key)}: they "
                "do not match"
            )


def _describe(
    config: Any, companions: Mapping[str, Companion], metrics: Mapping[str, Any], task: str
) -> dict[str, str]:
    """The metadata of the weights' file, without the signature."""
    try:
        scores = json.dumps(dict(metrics), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metrics: {error}; pass finite numbers and plain JSON values") from error
    return {
        "format": "pt",
        "task": task,
        # Spelled out rather than hashed: a key that is added later has its default in old files.
        "config": json.dumps(dataclasses.asdict(config), sort_keys=True),
        "metrics": scores,
        **{name: companion.signature for name, companion in companions.items()},
    }


def _repeat(folder: Path, metadata: Mapping[str, str]) -> None:
    """Writes what the weights' metadata say to the files beside them."""
    metrics = json.loads(metadata["metrics"])
    names = ("signature", "task", *_companions_of(metadata))
    about = {"format": FORMAT, **{name: metadata[name] for name in names}}
    write_text(folder / METRICS, json.dumps(metrics, ensure_ascii=False, indent=2) + "\n")
    write_text(folder / SIGNATURE, json.dumps(about, ensure_ascii=False, indent=2) + "\n")


def _companions_of(metadata: Mapping[str, str]) -> list[str]:
    """The companions that the metadata of weights name."""
    return [name for name in COMPANIONS if name in metadata]


def _write_if_new(path: Path, text: str) -> None:
    """Writes a file unless it has that content already."""
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def _require_files(folder: Path, companions: Iterable[str]) -> None:
    needed = (CONFIG, *map(companion_file, companions), WEIGHTS)
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not a model: {' and '.join(missing)} missing")


def _alone(config: Any) -> str:
    """The configuration file of a model without a training run."""
    return f"# The model.\nmodel:\n{textwrap.indent(to_yaml(config), '  ')}"


def _read_config(path: Path, config: type[Any]) -> Any:
    """The section `model` of a configuration file, whatever else is in it."""
    try:
        values = read_yaml_file(path)
        if not isinstance(values, dict) or "model" not in values:
            raise ValueError("no section 'model'")
        return from_dict(config, values["model"], "model")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _check_config(folder: Path, found: Any, metadata: Mapping[str, str]) -> None:
    """Rejects a configuration that is not that of the weights."""
    try:
        trained: Any = from_dict(type(found), json.loads(metadata.get("config", "")))
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: its configuration is not known: {error}") from error
    for key, value in dataclasses.asdict(trained).items():
        mine = getattr(found, key)
        if mine != value:
            raise ValueError(
                f"{folder}: {WEIGHTS} does not fit {CONFIG}: it was saved with {key}: {value}, and "
                f"{CONFIG} says model.{key}: {mine}"
            )
