"""The saved state of a training run: its settings, and the files of a state.

A state is a folder `step-00001234` with `progress.json`, a file of tensors per group, and a sealed
`manifest.json` with the size and SHA-256 of every other file. It is filled under another name and
then renamed, and the one before it is kept: a kill at any moment leaves a complete state, and
damage to the newest one leaves another. Nothing is pickled.
"""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ngsan.atomic_io import flush_folder, make_folder, read_sealed, seal, write_unseen
from ngsan.models.weights import on_host

FORMAT = 2
"""Version of a state's files."""

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
_TENSORS = ".safetensors"

_STATE = re.compile(r"step-([0-9]{8,})(?:-([0-9]+))?")
_PARTIAL = re.compile(r"partial-[0-9]+")
_GROUP = re.compile(r"[a-z0-9_-]+")


class SettingsError(ValueError):
    """A run was resumed with other settings than it was started with."""


def settings(
    config: Any, precision: str, data: Mapping[str, str], free: Sequence[str]
) -> dict[str, Any]:
    """Everything that decides the result of a run, as JSON values.

    Args:
        config: The run, a dataclass with sections `runtime` and `data`.
        precision: Precision of the matrix products.
        data: Signatures of the data; they identify the data instead of the folders.
        free: Dotted keys that may change, such as "data.folder".
    """
    values = asdict(config)
    values["runtime"] = {"precision": precision}
    remove_keys(values, free)
    values["data"]["signatures"] = dict(data)
    # As a state gives them back: a tuple becomes a list.
    made: dict[str, Any] = json.loads(json.dumps(values))
    return made


def remove_keys(values: dict[str, Any], dotted: Sequence[str]) -> None:
    """Removes dotted keys from nested dictionaries."""
    for key in dotted:
        *sections, last = key.split(".")
        inner = values
        for section in sections:
            inner = inner[section]
        del inner[last]


def differences(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> list[str]:
    """The differences of two nested mappings, one line each with its dotted key."""
    lines = []
    for key in (*before, *(key for key in now if key not in before)):
        path = f"{where}.{key}" if where else str(key)
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differences(old, new, path)
        elif old != new:
            lines.append(f"{path}: {old!r} before, {new!r} now")
    return lines


def require_same(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Raises a `SettingsError` that names every difference, or the task alone.

    Args:
        before: The settings that the run was started with.
        now: The settings that it is resumed with.
        where: The run's folder.
    """
    was, task = before.get("task"), now.get("task")
    if was is not None and was != task:  # then hardly a key is the same
        raise SettingsError(
            f"{where}: the run there has task {was}, not {task}; start another run in another "
            "folder"
        )
    lines = differences(before, now)
    if lines:
        listed = "".join(f"\n  {line}" for line in lines)
        raise SettingsError(
            f"{where}: the run was started with other settings and cannot be resumed with these; "
            f"restore them, or start another run in another folder:{listed}"
        )


@dataclass(frozen=True)
class TrainingState:
    """All that a run needs to continue."""

    progress: Mapping[str, Any]
    """Its progress, as JSON values."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """Tensors on the CPU, by group and name."""


def write_state(
    folder: str | Path,
    number: int,
    progress: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, Tensor]],
) -> Path:
    """Writes a state; it becomes the newest one, and only the one before it is kept besides.

    Args:
        folder: The folder of the run's states; created if needed. It has one writer at a time.
        number: Steps of the run so far. States of later steps, left by a run that had to go back,
            are removed; there may be a state of the same step already.
        progress: JSON values; tuples are read back as lists.
        tensors: By group and name, on any device. A group's name is a file's: a-z, 0-9, _ and -.

    Returns:
        The folder of the state: `step-` and the number, with a further number if there was a state
        of that step.

    Raises:
        ValueError: The progress is not plain JSON, or a group's name cannot be a file's.
        OSError: It could not be written, such as on a full disk; older states are untouched.
    """
    folder = Path(folder)
    if number < 0:
        raise ValueError(f"number: {number} must be at least 0")
    _check_plain(progress, "progress")
    for group in tensors:
        if not _GROUP.fullmatch(group):
            raise ValueError(f"group {group!r}: use only a-z, 0-9, _ and - in its name")
    partial = folder / f"partial-{os.getpid()}"
    target = folder / f"step-{number:08d}"
    try:
        make_folder(folder)
        for path in folder.iterdir():
            if _PARTIAL.fullmatch(path.name):  # left half written or half removed by a kill
                shutil.rmtree(path, ignore_errors=True)
        partial.mkdir()
        _fill(partial, progress, tensors)
        same = [revision for found, revision, _ in _states(folder) if found == number]
        if same:
            target = folder / f"{target.name}-{max(same) + 1}"
        partial.rename(target)
        flush_folder(folder)
    except OSError as error:
        raise OSError(error.errno, _failure(folder, target, error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _keep_two(folder, target)
    return target


def _fill(
    folder: Path, progress: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Writes the files of a state and flushes them to the disk."""
    files = {}

    def put(name: str, content: bytes) -> None:
        files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        write_unseen(folder / name, content)

    for group, named in tensors.items():
        put(group + _TENSORS, save(on_host(named)))
    put(PROGRESS, json.dumps(progress, indent=1).encode())
    manifest = seal({"format": FORMAT, "files": files})
    write_unseen(folder / MANIFEST, manifest.encode())
    flush_folder(folder)


def read_state(folder: str | Path, on_damage: Callable[[str], None]) -> TrainingState | None:
    """Reads the newest complete state.

    Args:
        folder: The folder of the run's states.
        on_damage: Called for each damaged state that is skipped, with the file and the problem.

    Returns:
        The state; None if there is none at all.

    Raises:
        ValueError: There are states but none is complete; names each with its problem.
    """
    problems: list[str] = []
    for _, _, state in reversed(_states(Path(folder))):
        if problems:
            on_damage(f"{problems[-1]}; resuming from the state before")
        try:
            return _read(state)
        except (ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
            problems.append(f"{state}: {error}")
    if problems:
        raise ValueError(f"no training state of {folder} is complete: {'; '.join(problems)}")
    return None


def _read(state: Path) -> TrainingState:
    """Reads a state; a `ValueError` names the damaged file and the problem."""
    try:
        manifest = read_sealed(state / MANIFEST)
    except OSError as error:
        raise ValueError(_unreadable(MANIFEST, error)) from error
    except ValueError as error:
        raise ValueError(str(error).replace(f"{state}/", "")) from error
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} has format {manifest.get('format')!r}, supported: {FORMAT}")
    contents = {}
    for name, entry in manifest["files"].items():
        try:
            content = (state / name).read_bytes()
        except OSError as error:
            raise ValueError(_unreadable(name, error)) from error
        if len(content) != entry["bytes"]:
            raise ValueError(f"{name} has {len(content)} bytes instead of {entry['bytes']}")
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise ValueError(f"{name} was changed or damaged")
        contents[name] = content
    progress = json.loads(contents.pop(PROGRESS, b"null"))
    if not isinstance(progress, dict):
        raise ValueError(f"{PROGRESS} has no keys and values")
    groups = {name.removesuffix(_TENSORS): load(content) for name, content in contents.items()}
    return TrainingState(progress, groups)


def _unreadable(name: str, error: OSError) -> str:
    missing = isinstance(error, FileNotFoundError)
    return f"{name} is missing" if missing else f"{name} cannot be read: {error.strerror}"


def _states(folder: Path) -> list[tuple[int, int, Path]]:
    """The states of a folder, the newest last: step, revision and path."""
    if not folder.is_dir():
        return []
    found = ((_STATE.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(name[1]), int(name[2] or 0), path) for name, path in found if name)


def _check_plain(value: object, where: str) -> None:
    """Rejects what JSON would not give back, such as numbers as keys or infinity."""
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{where}: {value} is not finite")
        case None | bool() | int() | float() | str():
            return
        case list() | tuple():
            for index, item in enumerate(value):
                _check_plain(item, f"{where}[{index}]")
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"{where}: the key {key!r} is not a string")
                _check_plain(item, f"{where}.{key}")
        case _:
            raise ValueError(f"{where}: {value!r} is not a JSON value")


def _keep_two(folder: Path, newest: Path) -> None:
    """Removes all states but the newest and the one before it."""
    states = [path for _, _, path in _states(folder)]
    place = states.index(newest)
    for path in states[place + 1 :] + states[: max(place - 1, 0)]:
        # Renamed first: half a state would look like a damaged one.
        gone = folder / f"partial-{os.getpid()}"
        with suppress(OSError):  # what cannot be removed now is tried again at the next state
            path.rename(gone)
            shutil.rmtree(gone)


def _failure(folder: Path, target: Path, error: OSError) -> str:
    """The message when a state could not be written."""
    states = _states(folder)
    rest = f"{states[-1][2]} is intact" if states else "no earlier one exists"
    name = f"{Path(error.filename).name} of " if error.filename else ""
    return f"{name}the training state {target} could not be written: {error.strerror}; {rest}"
