"""Numbers that steps report, added up and told every now and then."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ngsan.train.keeping import REMEDY
from ngsan.train.log import Entry
from ngsan.train.progress import Progress
from ngsan.train.task import Phase


class Later:
    """Numbers on a device, on their way to the host while it goes on."""

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
        """The numbers, when they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._numbers.tolist()
        return values


class Meter:
    """Adds up what steps report, and tells it every now and then."""

    def __init__(
        self,
        phase: Phase,
        progress: Progress,
        listen: Callable[[Entry], None],
        *,
        log_steps: int,
        device: torch.device,
    ) -> None:
        """Takes up an epoch where it stands.

        Args:
            phase: What is trained.
            progress: Where the run stands; the loop keeps it up to date.
            listen: Told what steps report.
            log_steps: Steps from one report to the next.
            device: Where the numbers are.
        """
        self._phase, self._progress, self._log_steps = phase, progress, log_steps
        self._listen, self._told = listen, phase.done(progress.position)
        self._epoch: Tensor | None = None
        if progress.sums:
            self._epoch = torch.tensor(progress.sums, dtype=torch.double, device=device)
        self._lately: Tensor | None = None
        self._count, self._since = 0, time.perf_counter()
        self._waiting: tuple[Later, dict[str, Any]] | None = None

    def add(self, row: Tensor, rate: float) -> None:
        """Takes in a step that has just been counted."""
        self._epoch = row.clone() if self._epoch is None else self._epoch + row
        self._lately = row if self._lately is None else self._lately + row
        self._count += 1
        progress = self._progress
        if progress.step % self._log_steps and progress.position < self._phase.steps:
            return
        seconds = (time.perf_counter() - self._since) / self._count
        done = self._phase.done(progress.position)
        known = {
            "step": progress.step,
            "of_epoch": progress.position,
            "rate": rate,
            f"{self._phase.unit}_per_second": (done - self._told) / (seconds * self._count),
            "seconds_left": seconds * self._steps_left(),
        }
        self.flush()
        self._waiting = Later(self._lately), known
        if not self._lately.is_cuda or progress.position == self._phase.steps:
            self.flush()
        self._lately, self._count, self._since = None, 0, time.perf_counter()
        self._told = done

    def flush(self) -> None:
        """Reports what waits for the device: to read a number at once would keep it waiting."""
        if self._waiting is None:
            return
        (later, known), self._waiting = self._waiting, None
        numbers = self._phase.numbers(later.read())
        self._require_finite(numbers)
        self._listen(
            {
                "event": "step",
                "phase": self._phase.name,
                "epoch": self._progress.run_epoch + 1,
                **known,
                **numbers,
            }
        )

    def epoch_sums(self) -> list[float]:
        """What the epoch adds up to so far; waits for the device.

        Raises:
            ValueError: A number is not finite.
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

    def _steps_left(self) -> int:
        """Steps to the end of the phase."""
        done = self._progress.epoch * self._phase.steps + self._progress.position
        return max(0, self._phase.config.epochs * self._phase.steps - done)
