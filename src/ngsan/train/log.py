"""The log of a training run: a file of JSON lines, TensorBoard, and the meter of its steps.

An entry is a mapping of JSON values. Its "event" is start, step, before, epoch, average,
checkpoint, stop, end or note. Everything that watches a run reads the same entries.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngsan.train.task import Phase, Progress

Entry = Mapping[str, Any]
Listener = Callable[[Entry], None]

LOG = "log.jsonl"

REMEDY = (
    "check the features with ngsan data inspect, or start another run with a lower "
    "schedule.peak_lr, with --init_from the best model so far"
)
"""The advice when the loss or a weight is NaN or infinite."""

_BLOCK = 1 << 16
"""Bytes that are read at a time to find the end of the last complete line."""

_POSITIONS = ("event", "phase", "epoch", "step", "epoch_step", "seconds_left")
"""Fields that are the position of an entry in the run; they make no curves."""


class JsonLines:
    """A log with one JSON object per line, readable at any moment of the run.

    Lines go to the operating system one by one, so a killed run loses none of them.

    Example:
        with closing(JsonLines(folder / "log.jsonl")) as log:
            log.write({"event": "epoch", "epoch": 1, "metrics": {"CIDEr": 95.0}})
    """

    def __init__(self, path: str | Path, *, keep: int | None = None) -> None:
        """Opens a log to append to; a last line that a kill cut off is removed.

        Args:
            path: The file; it and its folder are created if missing.
            keep: For a resumed run: `position` when its state was saved. Later lines are about
                steps that will be repeated, and are removed. A shorter or missing file is used as
                it is: a run does not depend on its log.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
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
        """Appends a line: the entry and its "time", in UTC to the second.

        NaN and infinity, which JSON does not have, become null.

        Raises:
            OSError: The line could not be written, as on a full disk; the lines before are intact.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        values = _finite({"time": now, **entry})
        line = json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._file.truncate(self._position)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._position += len(line)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _end_of_lines(file: FileIO, end: int) -> int:
    """The length of the complete lines among the first `end` bytes."""
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


class TensorBoard:
    """Curves of a run for TensorBoard.

    Steps are drawn under "training", epochs under "epoch", their metrics under "validation", and
    metrics of averaged weights under "average".
    """

    def __init__(self, folder: str | Path, *, step: int = 0) -> None:
        """Opens a folder of events.

        Args:
            folder: The folder for TensorBoard.
            step: Steps of a resumed run so far; curves after it are hidden.

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
        # The first step to hide: the last one done stays.
        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step > 0 else 0)
        self._step = step

    def write(self, entry: Entry) -> None:
        """Draws the numbers of an entry at its step, or at the last known one."""
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
        found |= {f"{group}/{name}": entry[name] for name in entry if name not in _POSITIONS}
    if event in ("epoch", "average"):
        group = "validation" if event == "epoch" else "average"
        metrics: Entry = entry.get("metrics") or {}
        found |= {f"{group}/{name}": value for name, value in metrics.items()}
    for name, value in found.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def open_log(
    output: Path, progress: Progress | None, listen: Listener, stack: ExitStack, *, board: bool
) -> tuple[Listener, Callable[[], int]]:
    """Opens the log of a run.

    Args:
        output: The run's folder.
        progress: The saved progress of a run to resume; None for a new run.
        listen: Receives every entry, too.
        stack: Closes the files.
        board: Whether to write for TensorBoard, too.

    Returns:
        A function that logs an entry, and one that returns the length of the log.
    """
    keep = 0 if progress is None else progress.log
    lines = stack.enter_context(closing(JsonLines(output / LOG, keep=keep)))
    listeners = [lines.write, listen]
    if board:
        step = 0 if progress is None else progress.step
        curves = stack.enter_context(closing(TensorBoard(output / "tensorboard", step=step)))
        listeners.append(curves.write)

    def log(entry: Entry) -> None:
        for listener in listeners:
            listener(entry)

    return log, lambda: lines.position


class DeferredNumbers:
    """Numbers on a device, copied to the host without waiting."""

    def __init__(self, numbers: Tensor) -> None:
        """Starts the copy."""
        self._event: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._numbers = numbers

    def read(self) -> list[float]:
        """Waits for the copy and returns the numbers."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._numbers.tolist()
        return values


class Meter:
    """Adds up the sums of an epoch's steps and logs them now and then."""

    def __init__(
        self,
        phase: Phase,
        progress: Progress,
        log: Listener,
        *,
        log_steps: int,
        device: torch.device,
    ) -> None:
        """Continues an epoch at its current position.

        Args:
            phase: The phase.
            progress: The progress of the run, which the loop updates.
            log: Receives the entries.
            log_steps: Steps between two entries.
            device: The device of the sums.
        """
        self._phase, self._progress, self._log_steps = phase, progress, log_steps
        self._log, self._logged = log, phase.done(progress.position)
        self._epoch: Tensor | None = None
        if progress.sums:
            self._epoch = torch.tensor(progress.sums, dtype=torch.double, device=device)
        self._recent: Tensor | None = None
        self._count, self._since = 0, time.perf_counter()
        self._waiting: tuple[DeferredNumbers, dict[str, Any]] | None = None

    def add(self, row: Tensor, lr: float) -> None:
        """Adds the sums of a step that `progress` already counts."""
        self._epoch = row.clone() if self._epoch is None else self._epoch + row
        self._recent = row if self._recent is None else self._recent + row
        self._count += 1
        progress, phase = self._progress, self._phase
        if progress.step % self._log_steps and progress.position < phase.steps:
            return
        seconds = (time.perf_counter() - self._since) / self._count
        done = phase.done(progress.position)
        steps_done = progress.epoch * phase.steps + progress.position
        known = {
            "step": progress.step,
            "epoch_step": progress.position,
            "lr": lr,
            f"{phase.unit}_per_second": (done - self._logged) / (seconds * self._count),
            "seconds_left": seconds * max(0, phase.config.epochs * phase.steps - steps_done),
        }
        self.flush()
        self._waiting = DeferredNumbers(self._recent), known
        if not self._recent.is_cuda or progress.position == phase.steps:
            self.flush()
        self._recent, self._count, self._since = None, 0, time.perf_counter()
        self._logged = done

    def flush(self) -> None:
        """Logs what waits for the device: to read a number at once would stall it."""
        if self._waiting is None:
            return
        (numbers, known), self._waiting = self._waiting, None
        values = self._phase.numbers(numbers.read())
        self._require_finite(values)
        entry = {"event": "step", "phase": self._phase.name, "epoch": self._progress.run_epoch + 1}
        self._log({**entry, **known, **values})

    def epoch_sums(self) -> list[float]:
        """The sums of the epoch so far; waits for the device.

        Raises:
            ValueError: A value is NaN or infinite.
        """
        self.flush()
        sums: list[float] = [] if self._epoch is None else self._epoch.tolist()
        self._require_finite(self._phase.numbers(sums) if sums else {})
        return sums

    def _require_finite(self, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise ValueError(
                    f"the {name} is {value} by step {self._progress.step} ({self._phase.name}, "
                    f"epoch {self._progress.run_epoch + 1}): {REMEDY}"
                )
