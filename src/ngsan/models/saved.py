"""A model on the disk: a folder with its weights, configuration, vocabulary and scores.

`model.safetensors` decides. Its metadata say what belongs to the weights (the configuration, the
vocabulary, the scores) and end in a signature over them and over every tensor, so that replacing
this one file replaces the model. `config.yaml` and `vocabulary.json` must agree with it, or the
model is refused. `metrics.json` and `signature.json` repeat it for people and other programs and
are never read here: a kill between the weights and them leaves them a model behind, no more.
"""

import dataclasses
import hashlib
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ngsan.config import CaptionerConfig, ModelConfig, from_dict, to_yaml
from ngsan.durable import flush, make_folder, remove_partials, replacing, write_text, write_unseen
from ngsan.models.build import build_captioner
from ngsan.models.captioner import Captioner
from ngsan.models.rounded import ROUNDING, delicate_weights, restore_weights, round_weights
from ngsan.text.vocabulary import Vocabulary

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
VOCABULARY = "vocabulary.json"
METRICS = "metrics.json"
SIGNATURE = "signature.json"

FORMAT = 1
"""Version of the folder, as `signature.json` has it."""


def save_captioner(
    folder: str | Path,
    captioner: Captioner,
    config: CaptionerConfig,
    vocabulary: Vocabulary,
    *,
    run: Any | None = None,
    metrics: Mapping[str, Any] | None = None,
    task: str = "captioning",
    tensors: Mapping[str, Tensor] | None = None,
    rounded: bool = False,
) -> None:
    """Writes a captioner; a kill at any instant leaves the model that was there or this one.

    A model of another configuration or vocabulary is replaced in several steps; a kill among them
    may leave a folder that is refused, and never one that mixes the two.

    Args:
        folder: Where to; it is made if need be, and a model that is there is replaced. One process
            at a time may write to it.
        captioner: The model.
        config: What it was built from.
        vocabulary: Its words.
        run: The configuration of the whole run, a dataclass with a field `model`, to be written in
            place of the model's own; None when there is none.
        metrics: Its scores, as JSON values.
        task: What it was trained for.
        tensors: Weights to write in place of the captioner's, such as averaged ones.
        rounded: Whether large matrices are written in 8 bits, see `ngsan.models.rounded`.

    Raises:
        ValueError: The arguments do not belong together.
        OSError: A file could not be written, such as on a full disk.
    """
    if len(vocabulary) != config.vocab_size:
        raise ValueError(
            f"the vocabulary has {len(vocabulary)} ids, the model {config.vocab_size}: "
            "they do not belong together"
        )
    if run is not None and run.model != config:
        raise ValueError(f"run.model: {run.model} is not the model's configuration: {config}")
    state = captioner.state_dict()
    if tensors is not None:
        _check_fit(state, tensors, "tensors do not fit the captioner")
    weights = on_host(state if tensors is None else tensors)
    metadata = _describe(config, vocabulary, {} if metrics is None else metrics, task)
    if rounded:
        weights = on_host(round_weights(weights, delicate_weights(captioner)))
        metadata["rounding"] = ROUNDING
    metadata["signature"] = content_signature(weights, metadata)
    folder = Path(folder)
    make_folder(folder)
    for name in (CONFIG, WEIGHTS, VOCABULARY, METRICS, SIGNATURE):
        remove_partials(folder / name)
    with replacing(folder / WEIGHTS) as partial:
        # First of all, so that a full disk is noticed while the old model is as it was.
        write_unseen(partial, _serialize(weights, metadata), name=folder / WEIGHTS)
        _write_if_new(folder / CONFIG, to_yaml(ModelConfig(config) if run is None else run))
        if not _holds(folder / VOCABULARY, vocabulary):
            with replacing(folder / VOCABULARY) as words:
                vocabulary.save(words)
    _repeat(folder, metadata)


def load_captioner(folder: str | Path) -> tuple[Captioner, CaptionerConfig, Vocabulary]:
    """Reads a captioner that `save_captioner` wrote, in evaluation mode and in the saved precision.

    What was saved in 8 bits comes in single precision. Only the section `model` of `config.yaml`
    is read. `metrics.json` and `signature.json` may be missing or of the model before; see the top
    of this module.

    Raises:
        ValueError: The folder is no such model, is damaged, or its files do not belong together.
    """
    folder = Path(folder)
    _require_files(folder)
    config = _read_config(folder / CONFIG)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    if len(vocabulary) != config.vocab_size:
        raise ValueError(
            f"{folder}: {VOCABULARY} has {len(vocabulary)} ids and {CONFIG} says vocab_size: "
            f"{config.vocab_size}: they do not belong together"
        )
    metadata, tensors = _read_weights(folder / WEIGHTS)
    if metadata.get("vocabulary") != vocabulary.signature:
        raise ValueError(
            f"{folder}: {WEIGHTS} belongs to vocabulary {metadata.get('vocabulary')}, and "
            f"{VOCABULARY} is {vocabulary.signature}: they do not belong together"
        )
    _check_config(folder, config, metadata)
    captioner = build_captioner(config)
    _check_fit(captioner.state_dict(), tensors, f"{folder}: {WEIGHTS} does not fit {CONFIG}")
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        captioner.to(dtypes.pop())
    captioner.load_state_dict(tensors)
    return captioner.eval(), config, vocabulary


def copy_model(source: str | Path, target: str | Path) -> None:
    """Makes `target` hold the same model as `source`.

    A true copy, so that damage to one does not hit the other. The promises of `save_captioner`
    hold here too.

    Args:
        source: A model folder. Its weights are not checked; loading does that.
        target: Where to; it is made if need be, and a model that is there is replaced.

    Raises:
        ValueError: The source is no model.
    """
    source, target = Path(source), Path(target)
    _require_files(source)
    make_folder(target)
    if source.samefile(target):
        return
    for name in (CONFIG, WEIGHTS, VOCABULARY, METRICS, SIGNATURE):
        remove_partials(target / name)
    with replacing(target / WEIGHTS) as partial:
        shutil.copyfile(source / WEIGHTS, partial)
        flush(partial)
        metadata = _metadata_of(partial)
        for name in (CONFIG, VOCABULARY):
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

    It is read and not computed; `load_captioner` does that.

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
    config: CaptionerConfig, vocabulary: Vocabulary, metrics: Mapping[str, Any], task: str
) -> dict[str, str]:
    """The metadata of the weights' file, less the signature."""
    try:
        scores = json.dumps(dict(metrics), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metrics: {error}; give finite numbers and plain JSON values") from error
    return {
        "format": "pt",
        "task": task,
        "vocabulary": vocabulary.signature,
        # Spelled out rather than hashed: a key that is added later has its default in old files.
        "config": json.dumps(dataclasses.asdict(config), sort_keys=True),
        "metrics": scores,
    }


def _repeat(folder: Path, metadata: Mapping[str, str]) -> None:
    """Writes what the weights' file says to the files beside it."""
    metrics = json.loads(metadata["metrics"])
    names = ("signature", "task", "vocabulary")
    about = {"format": FORMAT, **{name: metadata[name] for name in names}}
    write_text(folder / METRICS, json.dumps(metrics, ensure_ascii=False, indent=2) + "\n")
    write_text(folder / SIGNATURE, json.dumps(about, ensure_ascii=False, indent=2) + "\n")


def _write_if_new(path: Path, text: str) -> None:
    """Writes a file unless it is there with that content."""
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def _holds(path: Path, vocabulary: Vocabulary) -> bool:
    """Whether a file is there and holds that vocabulary."""
    try:
        found = Vocabulary.load(path)
    except ValueError:
        return False
    return found.words == vocabulary.words and found.origin == vocabulary.origin


def _require_files(folder: Path) -> None:
    missing = [name for name in (CONFIG, VOCABULARY, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not a model: {' and '.join(missing)} missing")


def _read_config(path: Path) -> CaptionerConfig:
    """The section `model` of a configuration file, whatever else is in it."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or "model" not in values:
            raise ValueError("there is no section 'model'")
        return from_dict(CaptionerConfig, values["model"], "model")
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error


def _check_config(folder: Path, config: CaptionerConfig, metadata: Mapping[str, str]) -> None:
    """Refuses a configuration that is not that of the weights."""
    try:
        trained = from_dict(CaptionerConfig, json.loads(metadata.get("config", "")))
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: its configuration is not known: {error}") from error
    for key, value in dataclasses.asdict(trained).items():
        found = getattr(config, key)
        if found != value:
            raise ValueError(
                f"{folder}: {WEIGHTS} does not fit {CONFIG}: it was saved with {key}: {value}, and "
                f"{CONFIG} says model.{key}: {found}"
            )


def _check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], problem: str) -> None:
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
