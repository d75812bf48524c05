"""Where the entries of a training run are written: a file of JSON lines, and TensorBoard.

An entry is a mapping of JSON values. "event" says what it tells: start, step, before, epoch,
average, checkpoint, stop, end or note. All that watches a run reads the same entries.
"""

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Entry = Mapping[str, Any]
"""One thing that a run tells: JSON values by name."""

_BLOCK = 1 << 16
"""Bytes that are read at a time when the end of the last whole line is looked for."""

_PLACES = ("event", "phase", "epoch", "step", "of_epoch", "seconds_left")
"""Where in the run an entry stands, which is no curve to draw."""


class _Closed(ABC):
    """What is closed at the end of a `with`."""

    @abstractmethod
    def close(self) -> None:
        """Closes it."""

    def __enter__(self) -> Self:
        """Gives the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()


class JsonLines(_Closed):
    """A log with one JSON object a line, readable at any moment of the run.

    Lines go to the operating system one by one, so a killed run loses none of them.

    Example:
        with JsonLines(folder / "log.jsonl") as log:
            log.write({"event": "epoch", "epoch": 1, "metrics": {"CIDEr": 95.0}})
    """

    def __init__(self, path: str | Path, *, keep: int | None = None) -> None:
        """Opens a log to add lines to.

        A last line that was cut off by a kill is removed.

        Args:
            path: The file; it and its folder are made if missing.
            keep: For a run that is taken up again: the `position` when its state was saved. Lines
                after it tell of steps that will be done again, and are removed. A file that is
                shorter, or missing, is taken as it is: a run does not depend on its log.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = FileIO(path, "a+")
        try:
            size = self._file.seek(0, os.SEEK_END)
            self._position = _end_of_lines(self._file, size if keep is None else min(keep, size))
            self._file.truncate(self._position)
        except BaseException:
            self._file.close()
            raise

    @property
    def position(self) -> int:
        """Bytes of the log so far."""
        return self._position

    def write(self, entry: Entry) -> None:
        """Adds a line: the entry and its "time", in UTC to the second.

        Numbers that are not finite, which JSON cannot say, become null.

        Raises:
            OSError: The line could not be written, as on a full disk; the lines before are whole.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        values = _finite({"time": time, **entry})
        line = json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self._position)
            raise
        self._position += len(line)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _end_of_lines(file: FileIO, end: int) -> int:
    """The length of the whole lines among the first `end` bytes."""
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _finite(value: Any) -> Any:
    """The value with None in place of every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


class TensorBoard(_Closed):
    """Curves of a run for TensorBoard: what is learned step by step, and the metrics by epoch.

    Steps are drawn under "training", whole epochs under "epoch", their metrics under "validation",
    and metrics of averaged weights under "average".
    """

    def __init__(self, folder: str | Path, *, step: int = 0) -> None:
        """Opens a folder of events.

        Args:
            folder: Where TensorBoard will look.
            step: How many steps a run that is taken up again has done; curves drawn after it by
                the run before are hidden.

        Raises:
            ValueError: TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                f"curves for TensorBoard in {folder} need it installed: "
                'pip install "ngsan[tensorboard]"'
            ) from error
        # The first step that is hidden: the last one done stays.
        first = step + 1 if step > 0 else 0
        self._writer: Any = SummaryWriter(str(folder), purge_step=first)
        self._step = step

    def write(self, entry: Entry) -> None:
        """Draws the numbers of an entry at its step, or at the last one known."""
        self._step = entry.get("step", self._step)
        for name, value in _scalars(entry):
            self._writer.add_scalar(name, value, self._step)
        if entry.get("event") in ("epoch", "average", "end"):
            self._writer.flush()

    def close(self) -> None:
        """Writes what is left and closes the file."""
        self._writer.close()


def _scalars(entry: Entry) -> Iterator[tuple[str, float]]:
    """The numbers of an entry that make curves, by the curve's name."""
    event = entry.get("event")
    found: dict[str, Any] = {}
    if event in ("step", "before", "epoch"):
        group = "epoch" if event == "epoch" else "training"
        found |= {f"{group}/{name}": entry[name] for name in entry if name not in _PLACES}
    if event in ("epoch", "average"):
        group = "validation" if event == "epoch" else "average"
        metrics: Entry = entry.get("metrics") or {}
        found |= {f"{group}/{name}": value for name, value in metrics.items()}
    yield from ((name, value) for name, value in found.items() if _is_number(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
