"""What a person sees of a training run: a row for each epoch and, on a terminal, a live view.

The view reads the entries that `ngsan.train.log` describes. What an entry lacks is left out, so
that the view never stands in the way of a run.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ngsan.train.log import Entry

REDRAW_SECONDS = 0.25
"""Steps redraw the live view at most this often; only the last of an epoch always does."""

LINE_SECONDS = 30.0
"""Without a terminal, steps are told at most this often."""

_MEASURES: Mapping[str, Callable[[float], str]] = {
    "loss": "loss {:6.3f}".format,
    "rate": "rate {:.3g}".format,
    "images_per_second": "{:,.0f} images/s".format,
    "seconds_left": lambda seconds: f"{_clock(seconds)} left",
    "reward": "reward {:.3f}".format,
    "greedy_reward": "greedy {:.3f}".format,
    "length": "length {:.1f}".format,
    "entropy": "entropy {:.2f}".format,
}
"""How what is measured of the training is said."""

_PANEL = (
    ("loss", "rate", "images_per_second", "seconds_left"),
    ("reward", "greedy_reward", "length", "entropy"),
)
"""The lines of measures in the live view; the second is of self-critical learning only."""

_LINE = ("loss", "reward", "rate", "images_per_second", "seconds_left")
"""What is said of a step where there is no terminal."""

_METRICS = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "CIDEr-D", "SPICE")
"""What is shown of the metrics; if a run has none of them, its first four are."""

_WIDTHS = {"epoch": 5, "phase": 13, "loss": 6, "reward": 6, "best": 4, "time": 7}
"""Widths of columns; a metric's is six, or its name's."""

_DISPENSABLE = ("time", "METEOR", "SPICE", "ROUGE-L", "phase", "reward", "loss", "BLEU-4")
"""Columns that a narrow terminal does without, the first to go first."""

_PLAIN_WIDTH = 80
"""Characters that a row may have at least where there is no terminal."""


class TrainView:
    """Shows a run on a console.

    Example:
        with TrainView(Console()) as view:
            view.write({"event": "note", "text": "hello"})
    """

    def __init__(self, console: Console, *, now: Callable[[], float] = time.monotonic) -> None:
        """Takes the console to print on, and a clock that counts seconds."""
        self._console = console
        self._now = now
        self._is_live = console.is_terminal and console.is_interactive
        self._live: Live | None = None
        self._shown = -math.inf
        self._run = _Run()
        self._heads: list[str] = []

    def __enter__(self) -> Self:
        """Gives the view."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hands the terminal back; how far a run came that did not end stays to be read."""
        self._stop(leave=True)

    def write(self, entry: Entry) -> None:
        """Shows an entry."""
        self._run.follow(entry)
        match entry.get("event"):
            case "start":
                self._say(*_start_lines(entry))
                self._draw()
            case "step":
                self._step()
            case "epoch":
                self._row(entry, entry.get("epoch"), entry.get("phase"))
            case "average":
                epochs = entry.get("epochs") or [None]
                self._row(entry, epochs[-1], f"average of {len(epochs)}")
            case "before":
                self._say(f"before {entry.get('phase')}: {', '.join(_measures(entry, _PANEL[1]))}")
            case "stop":
                place = f"{entry.get('phase')} stops after epoch {entry.get('epoch')}"
                self._say(f"{place}: {entry.get('reason')}")
            case "note":
                self._say(str(entry.get("text", "")))
            case "end":
                self._stop(leave=False)
                self._say(*_end_lines(entry))

    def _step(self) -> None:
        """Redraws the live view, or tells of the step, if it is time to."""
        waited = self._now() - self._shown
        if self._is_live and (waited >= REDRAW_SECONDS or self._run.is_epoch_done):
            self._draw()
        elif not self._is_live and waited >= LINE_SECONDS:
            self._say(self._run.line())
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

    def _say(self, *lines: str) -> None:
        """Prints lines to stay, above the live view."""
        self._heads = []
        self._print([Text(line) for line in lines])

    def _row(self, entry: Entry, epoch: object, phase: object) -> None:
        """Prints the row of an epoch, under a head if none stands right above."""
        # Averaged weights have no reward, but their row belongs to those above.
        cells = _cells(entry, epoch, phase, rewarded="reward" in (*entry, *self._heads))
        width = self._console.width
        heads, gap = _fit(list(cells), width if self._is_live else max(width, _PLAIN_WIDTH))
        style = "green" if entry.get("best") else ""
        rows = [Text(_aligned({head: cells[head] for head in heads}, gap), style)]
        if heads != self._heads:
            # The mark explains itself and needs no head.
            names = {head: "" if head == "best" else head for head in heads}
            rows.insert(0, Text(_aligned(names, gap), "bold"))
        self._heads = heads
        self._print(rows)

    def _print(self, lines: list[Text]) -> None:
        self._console.print(Text("\n").join(lines), soft_wrap=True)
        if self._live is not None:
            self._draw()  # printing repeats the view as it was


@dataclass(frozen=True)
class _Phase:
    """A phase as it is planned."""

    name: str
    epochs: int
    steps: int
    """Of an epoch."""


class _Run:
    """How far a run has come, as its entries tell."""

    def __init__(self) -> None:
        self._name = ""
        self._phases: tuple[_Phase, ...] = ()
        self._at: int | None = None
        """Which of the phases it is in; None before the first step."""
        self._first = 0
        """Epochs that were done before this phase: fewer than planned, if another one stopped."""
        self._epoch, self._of_epoch, self._step = 0, 0, 0
        self._last: Entry = {}
        self._saved: int | None = None
        self._is_validating = False

    def follow(self, entry: Entry) -> None:
        """Takes note of an entry."""
        event = entry.get("event")
        if event == "start":
            self._name = " on ".join(
                str(entry[key]) for key in ("model", "device") if entry.get(key)
            )
            self._phases = tuple(
                _Phase(str(part.get("phase")), part.get("epochs") or 0, part.get("steps") or 0)
                for part in entry.get("phases") or ()
            )
            self._at = None
            self._step = entry.get("resumed_at") or 0
        elif event in ("step", "before"):
            self._enter(entry)
            self._epoch = (entry.get("epoch") or 0) + (event == "before")
            self._of_epoch = entry.get("of_epoch") or 0
            self._step = entry.get("step") or self._step
            self._last = entry
        elif event == "checkpoint":
            self._saved = entry.get("step")
        if event in ("step", "epoch"):
            self._is_validating = event == "step" and self.is_epoch_done

    def _enter(self, entry: Entry) -> None:
        """Finds the phase of an entry, and what was done before it if it is a new one."""
        names = [phase.name for phase in self._phases]
        name = entry.get("phase")
        at = names.index(name) if name in names else None
        if at is None or at == self._at:
            return
        done = (entry.get("epoch") or 0) - (entry.get("event") == "step")
        planned = sum(phase.epochs for phase in self._phases[:at])
        # A run that is taken up again comes into the middle of a phase.
        self._first = min(planned, done) if self._at is None else done
        self._at = at

    @property
    def is_epoch_done(self) -> bool:
        """Whether the last step was the last one of its epoch."""
        return self._at is not None and self._of_epoch == self._phases[self._at].steps

    @property
    def _epochs(self) -> int:
        """Epochs of the whole run: those done, and those that are left by the plan."""
        return self._first + sum(phase.epochs for phase in self._phases[self._at or 0 :])

    @property
    def _steps(self) -> int:
        """Steps of the whole run: those done, and those that are left by the plan."""
        if self._at is None:
            return sum(phase.epochs * phase.steps for phase in self._phases)
        phase, *later = self._phases[self._at :]
        left = (self._first + phase.epochs - self._epoch + 1) * phase.steps - self._of_epoch
        return self._step + max(0, left + sum(part.epochs * part.steps for part in later))

    def line(self) -> str:
        """The last step in one line."""
        measures = ", ".join(_measures(self._last, _LINE))
        return f"epoch {self._epoch}, step {self._step:,}: {measures}"

    def panel(self, width: int) -> Group:
        """The live view in that many columns."""
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
        lines = [Text("   ".join(_measures(self._last, names)), "cyan") for names in _PANEL]
        return Group(title, self._bars(), *(line for line in lines if line))

    def _bars(self) -> Table:
        """How much is done of the run, and of the epoch."""
        table = Table.grid(expand=True, padding=(0, 2, 0, 0))
        for ratio in (None, 1, None, None):
            table.add_column(no_wrap=True, ratio=ratio, justify="right" if not ratio else "left")
        of_epoch = 0 if self._at is None else self._phases[self._at].steps
        for label, done, total in (
            ("run", self._step, self._steps),
            ("epoch", self._of_epoch, of_epoch),
        ):
            share = f"{min(1.0, done / total):.0%}" if total else ""
            count = f"{done:,} of {total:,} steps" if total else f"{done:,} steps"
            bar = ProgressBar(total=total or 1, completed=done if total else 0)
            table.add_row(Text(label), bar, Text(share), Text(count))
        return table


def _measures(entry: Entry, names: Sequence[str]) -> list[str]:
    """Measures of an entry in words; those that it lacks are left out."""
    found = []
    for name in names:
        value = entry.get(name)
        if isinstance(value, int | float):
            found.append(_MEASURES[name](value))
    return found


def _cells(entry: Entry, epoch: object, phase: object, *, rewarded: bool) -> dict[str, str]:
    """The cells of an epoch's row by their heads."""
    cells = {"epoch": "-" if epoch is None else str(epoch), "phase": str(phase or "-")}
    cells["loss"] = _number(entry.get("loss"), ".3f")
    if rewarded:
        cells["reward"] = _number(entry.get("reward"), ".3f")
    cells |= _metrics(entry.get("metrics"))
    seconds = entry.get("seconds")
    is_short = isinstance(seconds, int | float) and seconds < 60
    cells["best"] = "best" if entry.get("best") else ""
    cells["time"] = f"{seconds:.1f} s" if is_short else _clock(seconds)
    return cells


def _metrics(metrics: Mapping[str, Any] | None) -> dict[str, str]:
    """The metrics that are shown, by name."""
    metrics = metrics or {}
    names = [name for name in _METRICS if name in metrics] or list(metrics)[:4]
    return {name: _number(metrics[name], ".2f") for name in names}


def _width(head: str) -> int:
    return _WIDTHS.get(head, max(6, len(head)))


def _fit(heads: list[str], room: int) -> tuple[list[str], int]:
    """The columns that have room, and the gap between them."""
    for head in ("", *_DISPENSABLE):
        heads = [name for name in heads if name != head]
        for gap in (2, 1):
            if sum(_width(name) for name in heads) + gap * (len(heads) - 1) <= room:
                return heads, gap
    return heads, 1


def _aligned(cells: Mapping[str, str], gap: int) -> str:
    """A row: words to the left, numbers to the right."""
    words = ("phase", "best")
    parts = (
        cell.ljust(_width(head)) if head in words else cell.rjust(_width(head))
        for head, cell in cells.items()
    )
    return (" " * gap).join(parts).rstrip()


def _start_lines(entry: Entry) -> list[str]:
    """What is trained, on what, and how long."""
    lines = [str(entry.get("model", "a model"))]
    if entry.get("parameters") is not None:
        lines[0] += f", {entry['parameters'] / 1e6:.1f} M parameters"
    if entry.get("device") is not None:
        lines[0] += f", on {entry['device']}"
    if (entry.get("processes") or 1) > 1:
        lines[0] += f" in {entry['processes']} processes"
    if entry.get("precision") is not None:
        lines[0] += f", {entry['precision']}"
    counts = {"{} images": "images", "{} for validation": "validation_images"}
    found = [form.format(f"{entry[key]:,}") for form, key in counts.items() if entry.get(key)]
    plan = [
        f"{part.get('phase')}: {part.get('epochs')} epochs of {part.get('steps')} steps"
        for part in entry.get("phases") or ()
        if part.get("epochs") != 0
    ]
    lines += [", ".join(found), ", then ".join(plan)]
    if entry.get("resumed_at") is not None:
        lines.append(f"goes on after step {entry['resumed_at']:,}")
    return [line for line in lines if line]


def _end_lines(entry: Entry) -> list[str]:
    """The best that was reached, and where it is."""
    lines = []
    best: Mapping[str, Any] = entry.get("best") or {}
    scores = ", ".join(f"{name} {value}" for name, value in _metrics(best.get("metrics")).items())
    if best:
        # Weights that were averaged are of no one epoch.
        which = f"epoch {best['epoch']}" if best.get("epoch") else "averaged weights"
        lines.append(f"best: {best.get('phase')}, {which}: {scores}")
    lines.append(f"done in {_clock(entry.get('seconds'))}")
    if entry.get("model"):
        lines[-1] += f"; the model is {entry['model']}"
    return lines


def _number(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else "-"


def _clock(seconds: object) -> str:
    """Seconds as 5:12 or 1:05:12."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
