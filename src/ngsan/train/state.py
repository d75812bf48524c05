"""The state of a training run on the disk, from which an interrupted run goes on.

A state is a folder `step-00001234` with the tensors of each group, `progress.json`, and
`manifest.json` with the size and SHA-256 of every other file. It is filled under another name and
then renamed, and the one before it is kept: a kill at any instant leaves a whole state, and damage
to the newest one leaves another. Nothing is pickled.
"""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ngsan.durable import flush_folder, make_folder, write_unseen
from ngsan.models.weights import on_host

FORMAT = 1
"""Version of a state's files."""

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
_TENSORS = ".safetensors"

_STATE = re.compile(r"step-([0-9]{8,})(?:-([0-9]+))?")
_PARTIAL = re.compile(r"partial-[0-9]+")
_GROUP = re.compile(r"[a-z0-9_-]+")


@dataclass(frozen=True)
class TrainingState:
    """All that a run needs to go on."""

    progress: Mapping[str, Any]
    """Where it stands, as JSON values."""

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
        folder: Where the run has its states; it is made if need be. One process at a time may
            write to it.
        number: The step after which the run stands. States of later steps, which a run leaves
            that had to go back, are removed; a state of the same step may be there.
        progress: Where the run stands, as JSON values; tuples are read back as lists.
        tensors: By group and name, on any device. A group's name is a file's: a-z, 0-9, _ and -.

    Returns:
        The folder of the state, `step-` and the number; if there was one of that step, with a
        further number.

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
        _clear(folder)
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
    _keep(folder, target)
    return target


def read_state(folder: str | Path, on_damage: Callable[[str], None]) -> TrainingState | None:
    """Reads the newest state that is whole.

    Args:
        folder: Where the run has its states.
        on_damage: Told of each damaged state that is passed over: what is wrong with which file.

    Returns:
        The state; None if there is none at all.

    Raises:
        ValueError: There are states but none is whole; names each with what is wrong.
    """
    problems: list[str] = []
    for _, _, state in reversed(_states(Path(folder))):
        if problems:
            on_damage(f"{problems[-1]}; going on from the state before")
        try:
            return _read(state)
        except (ValueError, SafetensorError) as error:
            problems.append(f"{state}: {error}")
    if problems:
        raise ValueError(f"no training state of {folder} is whole: {'; '.join(problems)}")
    return None


def _states(folder: Path) -> list[tuple[int, int, Path]]:
    """The states of a folder, the newest last: step, revision and path."""
    if not folder.is_dir():
        return []
    found = ((_STATE.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(name[1]), int(name[2] or 0), path) for name, path in found if name)


def _fill(
    folder: Path, progress: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Writes the files of a state and sends them to the disk."""
    files = {}

    def put(name: str, content: bytes) -> None:
        files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        write_unseen(folder / name, content)

    for group, named in tensors.items():
        put(group + _TENSORS, save(on_host(named)))
    put(PROGRESS, json.dumps(progress, indent=1).encode())
    manifest: dict[str, Any] = {"format": FORMAT, "files": files}
    manifest["sha256"] = _checksum(manifest)
    write_unseen(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    flush_folder(folder)


def _checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest's content, less this checksum itself."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read(state: Path) -> TrainingState:
    """Reads a state; a `ValueError` says which file is damaged and how."""
    contents = {name: _checked(state, name, about) for name, about in _manifest(state).items()}
    progress = _object(PROGRESS, contents.pop(PROGRESS, b""))
    groups = {name.removesuffix(_TENSORS): load(content) for name, content in contents.items()}
    return TrainingState(progress, groups)


def _manifest(state: Path) -> dict[str, dict[str, Any]]:
    """The files of a state by name, each with its size and checksum."""
    manifest = _object(MANIFEST, _content(state, MANIFEST))
    if manifest.get("sha256") != _checksum(manifest):
        raise ValueError(f"{MANIFEST} is not as it was written")
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} has format {manifest.get('format')!r}, known is {FORMAT}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    return files


def _checked(state: Path, name: str, about: Mapping[str, Any]) -> bytes:
    """The content of a file that is as its manifest says."""
    content = _content(state, name)
    if len(content) != about["size"]:
        raise ValueError(f"{name} has {len(content)} bytes, {about['size']} were written")
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise ValueError(f"{name} is not as it was written")
    return content


def _content(state: Path, name: str) -> bytes:
    try:
        return (state / name).read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{name} is missing") from None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error


def _object(name: str, content: bytes) -> dict[str, Any]:
    """A JSON object from a file's content."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{name} has no keys and values")
    return value


def _check_plain(value: object, where: str) -> None:
    """Refuses what JSON would not give back, such as numbers as keys or infinity."""
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{where}: {value} is not a finite number")
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
            raise ValueError(f"{where}: {value!r} is no JSON value")


def _clear(folder: Path) -> None:
    """Removes what killed runs left half written or half removed."""
    for path in folder.iterdir():
        if _PARTIAL.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _keep(folder: Path, newest: Path) -> None:
    """Removes all states but the newest and the one before it."""
    states = [path for _, _, path in _states(folder)]
    place = states.index(newest)
    for path in states[place + 1 :] + states[: max(place - 1, 0)]:
        # At once out of sight: half a state would be taken for a damaged one.
        gone = folder / f"partial-{os.getpid()}"
        with suppress(OSError):  # what cannot be removed now is tried again at the next state
            path.rename(gone)
            shutil.rmtree(gone)


def _failure(folder: Path, target: Path, error: OSError) -> str:
    """What to say when a state could not be written."""
    states = _states(folder)
    rest = f"{states[-1][2]} is intact" if states else "there is no earlier one"
    name = f"{Path(error.filename).name} of " if error.filename else ""
    return f"{name}the training state {target} could not be written: {error.strerror}; {rest}"
