"""What a training run shows: a line per epoch and, on a terminal, a live view of its progress.

The view reads the entries that `ngsan.train.log` describes. It skips what an entry lacks, so that
it never stops a run.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ngsan.train.log import Entry

REDRAW_SECONDS = 0.25
"""The live view is redrawn at most this often; the last step of an epoch always redraws it."""

LINE_SECONDS = 30.0
"""Without a terminal, a step is printed at most this often."""

_MEASURES: Mapping[str, Callable[[float], str]] = {
    "loss": "loss {:6.3f}".format,
    "reward": "reward {:.3f}".format,
    "greedy_reward": "greedy {:.3f}".format,
    "length": "length {:.1f}".format,
    "entropy": "entropy {:.2f}".format,
    "lr": "lr {:.3g}".format,
    "images_per_second": "{:,.0f} images/s".format,
    "tokens_per_second": "{:,.0f} tokens/s".format,
    "questions_per_second": "{:,.0f} questions/s".format,
    "seconds_left": lambda seconds: f"{_clock(seconds)} left",
}
"""How a measure of an entry is printed."""

_REWARDS = ("reward", "greedy_reward", "length", "entropy")
_SPEEDS = ("images_per_second", "tokens_per_second", "questions_per_second", "seconds_left")
_METRICS = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "CIDEr-D", "SPICE")
"""The metrics that are printed; if a run has none of them, its first four are."""


class TrainView:
    """Shows a run on a console.

    Example:
        with TrainView(Console()) as view:
            view.write({"event": "note", "text": "hello"})
    """

    def __init__(self, console: Console, *, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._is_live = console.is_terminal and console.is_interactive and not console.quiet
        self._live: Live | None = None
        self._shown = -math.inf
        self._run = _Progress()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restores the terminal; the progress of a run that did not end stays visible."""
        self._stop(leave=True)

    def write(self, entry: "Entry") -> None:
        """Shows an entry."""
        self._run.follow(entry)
        match entry.get("event"):
            case "start":
                self._print(*_start_lines(entry))
                self._draw()
            case "step":
                self._step()
            case "epoch":
                name = f"epoch {entry.get('epoch', '-')}"
                self._print(_epoch_line(entry, name), style="green" if entry.get("best") else "")
            case "average":
                self._print(_epoch_line(entry, f"average of {len(entry.get('epochs') or ())}"))
            case "before":
                measures = ", ".join(_measures(entry, _REWARDS))
                self._print(f"before {entry.get('phase')}: {measures}")
            case "stop":
                place = f"{entry.get('phase')} stops after epoch {entry.get('epoch')}"
                self._print(f"{place}: {entry.get('reason')}")
            case "note":
                self._print(str(entry.get("text", "")))
            case "end":
                self._stop(leave=False)
                self._print(*_end_lines(entry))

    def _step(self) -> None:
        waited = self._now() - self._shown
        if self._is_live and (waited >= REDRAW_SECONDS or self._run.is_epoch_done):
            self._draw()
        elif not self._is_live and waited >= LINE_SECONDS:
            self._print(self._run.line())
            self._shown = self._now()

    def _draw(self) -> None:
        if not self._is_live:
            return
        if self._live is None:
            # Drawn only from here: a thread that draws would take turns with the training.
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(self._run.panel(self._console.width), refresh=True)
        self._shown = self._now()

    def _stop(self, *, leave: bool) -> None:
        if self._live is not None:
            self._live.transient = not leave
            self._live.update(self._run.panel(self._console.width))
            self._live.stop()
            self._live = None

    def _print(self, *lines: str, style: str = "") -> None:
        """Prints lines above the live view."""
        self._console.print(Text("\n".join(lines), style), soft_wrap=True)
        if self._live is not None:
            self._draw()  # printing repeats the view as it was


class _Progress:
    """The progress of a run, as its entries report it."""

    def __init__(self) -> None:
        self._name = ""
        self._phases: list[tuple[str, int, int]] = []
        """Name, planned epochs, and steps per epoch."""
        self._phase: int | None = None
        """The index of the current phase; None before the first step."""
        self._first = 0
        """Epochs before this phase: fewer than planned if an earlier phase stopped."""
        self._epoch, self._epoch_step, self._step = 0, 0, 0
        self._last: Entry = {}
        self._saved: int | None = None
        self._is_validating = False

    def follow(self, entry: "Entry") -> None:
        """Reads an entry."""
        event = entry.get("event")
        if event == "start":
            names = [str(entry[key]) for key in ("model", "device") if entry.get(key)]
            self._name = " on ".join(names)
            self._phases = [
                (str(part.get("phase")), part.get("epochs") or 0, part.get("steps") or 0)
                for part in entry.get("phases") or ()
            ]
            self._phase = None
            self._step = entry.get("resumed_at") or 0
        elif event in ("step", "before"):
            self._enter(entry)
            self._epoch = (entry.get("epoch") or 0) + (event == "before")
            self._epoch_step = entry.get("epoch_step") or 0
            self._step = entry.get("step") or self._step
            self._last = entry
        elif event == "checkpoint":
            self._saved = entry.get("step")
        if event in ("step", "epoch"):
            self._is_validating = event == "step" and self.is_epoch_done

    def _enter(self, entry: "Entry") -> None:
        """Finds the phase of an entry, and the epochs before it if the phase is new."""
        names = [name for name, _, _ in self._phases]
        phase = names.index(entry["phase"]) if entry.get("phase") in names else None
        if phase is None or phase == self._phase:
            return
        done = (entry.get("epoch") or 0) - (entry.get("event") == "step")
        planned = sum(epochs for _, epochs, _ in self._phases[:phase])
        # A resumed run starts in the middle of a phase.
        self._first = min(planned, done) if self._phase is None else done
        self._phase = phase

    @property
    def is_epoch_done(self) -> bool:
        """Whether the last step was the last one of its epoch."""
        return self._phase is not None and self._epoch_step == self._phases[self._phase][2]

    @property
    def _epochs(self) -> int:
        """Epochs of the whole run: those done, and those still planned."""
        return self._first + sum(epochs for _, epochs, _ in self._phases[self._phase or 0 :])

    @property
    def _steps(self) -> int:
        """Steps of the whole run: those done, and those still planned."""
        if self._phase is None:
            return sum(epochs * steps for _, epochs, steps in self._phases)
        (_, epochs, steps), *later = self._phases[self._phase :]
        left = (self._first + epochs - self._epoch + 1) * steps - self._epoch_step
        return self._step + max(0, left + sum(epochs * steps for _, epochs, steps in later))

    def line(self) -> str:
        """The last step in one line."""
        measures = ", ".join(_measures(self._last, ("loss", "reward", "lr", *_SPEEDS)))
        return f"epoch {self._epoch}, step {self._step:,}: {measures}"

    def panel(self, width: int) -> Group:
        """The live view, at most `width` columns wide."""
        place = str(self._last.get("phase") or "preparing")
        if self._last:
            place += f", epoch {self._epoch}" + (f" of {self._epochs}" if self._epochs else "")
        if self._is_validating:
            place += ", validating"
        title = Text(place, "bold")
        saved = "" if self._saved is None else f"saved at step {self._saved:,}"
        for part in (self._name, saved):
            if part and len(title) + 3 + len(part) <= width:
                title.append(f"   {part}", "dim")
        lines = [
            Text("   ".join(_measures(self._last, names)), "cyan")
            for names in (("loss", "lr", *_SPEEDS), _REWARDS)
        ]
        return Group(title, self._bars(), *(line for line in lines if line))

    def _bars(self) -> Table:
        """How much of the run and of the epoch is done."""
        table = Table.grid(expand=True, padding=(0, 2, 0, 0))
        for ratio in (None, 1, None, None):
            table.add_column(no_wrap=True, ratio=ratio, justify="right" if not ratio else "left")
        epoch_steps = 0 if self._phase is None else self._phases[self._phase][2]
        for label, done, total in (
            ("run", self._step, self._steps),
            ("epoch", self._epoch_step, epoch_steps),
        ):
            share = f"{min(1.0, done / total):.0%}" if total else ""
            count = f"{done:,} of {total:,} steps" if total else f"{done:,} steps"
            bar = ProgressBar(total=total or 1, completed=done if total else 0)
            table.add_row(Text(label), bar, Text(share), Text(count))
        return table


def _measures(entry: "Entry", names: Sequence[str]) -> list[str]:
    """Measures of an entry as text; those that it lacks are skipped."""
    values = {name: entry.get(name) for name in names}
    return [_MEASURES[k](v) for k, v in values.items() if isinstance(v, int | float)]


def _metrics(metrics: Mapping[str, Any] | None) -> list[str]:
    metrics = metrics or {}
    names = [name for name in _METRICS if name in metrics] or list(metrics)[:4]
    numbers = {name: metrics[name] for name in names if isinstance(metrics[name], int | float)}
    return [f"{name} {value:.2f}" for name, value in numbers.items()]


def _epoch_line(entry: "Entry", name: str) -> str:
    """An epoch in one line: its phase, losses, metrics, time, and whether it is the best."""
    seconds = entry.get("seconds")
    parts = [f"{name:8}", f"{entry.get('phase') or '-':13}"]
    parts += _measures(entry, ("loss", "reward")) + _metrics(entry.get("metrics"))
    if isinstance(seconds, int | float):
        parts.append(f"{seconds:.1f} s" if seconds < 60 else _clock(seconds))
    return "  ".join(parts + ["best"] * bool(entry.get("best")))


def _start_lines(entry: "Entry") -> list[str]:
    """The model, the data and the plan of a run."""
    lines = [str(entry.get("model", "a model"))]
    if entry.get("parameters") is not None:
        lines[0] += f", {entry['parameters'] / 1e6:.1f} M parameters"
    if entry.get("device") is not None:
        lines[0] += f", on {entry['device']}"
    if (entry.get("processes") or 1) > 1:
        lines[0] += f" in {entry['processes']} processes"
    if entry.get("precision") is not None:
        lines[0] += f", {entry['precision']}"
    units = [unit for unit in ("images", "sentences", "questions") if entry.get(unit)]
    counts = [f"{entry[unit]:,} {unit}" for unit in units]
    counts += [
        f"{entry[f'validation_{unit}']:,} for validation"
        for unit in units
        if entry.get(f"validation_{unit}")
    ]
    plan = [
        f"{part.get('phase')}: {part.get('epochs')} epochs of {part.get('steps')} steps"
        for part in entry.get("phases") or ()
        if part.get("epochs") != 0
    ]
    lines += [", ".join(counts), ", then ".join(plan)]
    if entry.get("resumed_at") is not None:
        lines.append(f"resuming after step {entry['resumed_at']:,}")
    return [line for line in lines if line]


def _end_lines(entry: "Entry") -> list[str]:
    """The best epoch, the time, and where the model is."""
    lines = []
    best: Mapping[str, Any] = entry.get("best") or {}
    if best:
        # Averaged weights belong to no single epoch.
        which = f"epoch {best['epoch']}" if best.get("epoch") else "averaged weights"
        lines.append(f"best: {best.get('phase')}, {which}: {', '.join(_metrics(best['metrics']))}"
                     if best.get("metrics") else f"best: {best.get('phase')}, {which}")  # fmt: skip
    lines.append(f"done in {_clock(entry.get('seconds'))}")
    if entry.get("model"):
        lines[-1] += f"; the model is {entry['model']}"
    return lines


def _clock(seconds: object) -> str:
    """Seconds as 5:12 or 1:05:12."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
