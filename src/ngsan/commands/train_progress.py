"""How far a training run has come."""

from dataclasses import dataclass

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ngsan.commands.train_words import measures
from ngsan.train.log import Entry

REWARDS = ("reward", "greedy_reward", "length", "entropy")
"""Measures of self-critical learning."""

_SPEEDS = ("images_per_second", "tokens_per_second", "questions_per_second")
"""How fast a run is, each task by what it counts."""

_PANEL = (("loss", "rate", *_SPEEDS, "seconds_left"), REWARDS)
"""The lines of measures in the live view."""

_LINE = ("loss", "reward", "rate", *_SPEEDS, "seconds_left")
"""What is said of a step where there is no terminal."""


@dataclass(frozen=True)
class _Phase:
    """A phase as it is planned."""

    name: str
    epochs: int
    steps: int
    """Of an epoch."""


class Progress:
    """How far a run has come, as its entries tell."""

    def __init__(self) -> None:
        """Knows nothing yet."""
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
        told = ", ".join(measures(self._last, _LINE))
        return f"epoch {self._epoch}, step {self._step:,}: {told}"

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
        lines = [Text("   ".join(measures(self._last, names)), "cyan") for names in _PANEL]
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
