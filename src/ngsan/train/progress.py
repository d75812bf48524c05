"""Where a run stands."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Best:
    """The best model so far."""

    phase: str
    """Of which phase it is."""

    epoch: int
    """After which epoch of the run; 0 for weights that were averaged over several."""

    value: float
    """What it reached in the metric that decides."""

    metrics: dict[str, float]
    """All it reached."""


@dataclass
class Progress:
    """All that changes in a run besides the weights and what the optimizer remembers."""

    phase: int = 0
    """Which phase, from 0."""

    begun: bool = False
    """Whether the weights are already those that the phase begins with."""

    epoch: int = 0
    """Epochs of the phase that are done."""

    position: int = 0
    """Steps of the epoch that are done."""

    step: int = 0
    """Steps of the run that are done."""

    epochs_before: int = 0
    """Epochs that the phases before took."""

    sums: list[float] = field(default_factory=list)
    """What the steps of the epoch add up to."""

    best: Best | None = None
    """Of the whole run."""

    phase_best: Best | None = None
    """Of the phase."""

    waited: int = 0
    """Epochs since the phase's best."""

    seconds: float = 0.0
    """How long the run has taken."""

    log: int = 0
    """Bytes of the log."""

    done: bool = False
    """Whether the run is over."""

    @property
    def run_epoch(self) -> int:
        """Epochs of the run that are done."""
        return self.epochs_before + self.epoch

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Progress":
        """Takes up what `asdict` gave.

        Raises:
            ValueError: The values are not those of a run.
        """
        try:
            bests = {
                name: None if values[name] is None else Best(**values[name])
                for name in ("best", "phase_best")
            }
            return cls(**{**values, **bests})
        except (KeyError, TypeError) as error:
            raise ValueError(f"the saved progress is not that of this version: {error}") from error


def differences(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> list[str]:
    """What two nested mappings differ in, one line each with its dotted key."""
    lines = []
    for key in (*before, *(key for key in now if key not in before)):
        path = f"{where}.{key}" if where else str(key)
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differences(old, new, path)
        elif old != new:
            lines.append(f"{path}: {old!r} before, {new!r} now")
    return lines


def settings(
    config: Any, precision: str, data: Mapping[str, str], free: Sequence[str]
) -> dict[str, Any]:
    """All that decides what a run learns, as JSON values.

    Args:
        config: The run, a dataclass with sections `machine` and `data`.
        precision: Of the matrix products.
        data: Signatures of what is learned from; they stand for the folders, which may move.
        free: Dotted keys that may change, such as "data.folder".
    """
    values = asdict(config)
    values["machine"] = {"precision": precision}
    for key in free:
        *sections, last = key.split(".")
        inner = values
        for section in sections:
            inner = inner[section]
        del inner[last]
    values["data"]["signatures"] = dict(data)
    # As a state gives them back: a tuple has become a list.
    made: dict[str, Any] = json.loads(json.dumps(values))
    return made


class SettingsError(ValueError):
    """A run was to go on with other settings than it was begun with."""


def require_same(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Refuses to go on with other settings.

    Args:
        before: Those that the run was begun with.
        now: Those that it is to go on with.
        where: The run's folder.

    Raises:
        SettingsError: Something differs; names everything that does, or the task alone.
    """
    was, task = before.get("task"), now.get("task")
    if was is not None and was != task:  # then hardly a key is the same
        raise SettingsError(
            f"{where}: the run that was begun there is one of {was}, not of {task}; begin another "
            "run in another folder"
        )
    lines = differences(before, now)
    if lines:
        listed = "".join(f"\n  {line}" for line in lines)
        raise SettingsError(
            f"{where}: the run was begun with other settings, so it cannot go on with "
            f"these; put them back, or begin another run in another folder:{listed}"
        )
