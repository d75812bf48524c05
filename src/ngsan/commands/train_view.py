"""What a person sees of a training run: a row for each epoch and, on a terminal, a live view.

The view reads the entries that `ngsan.train.log` describes. What an entry lacks is left out, so
that the view never stands in the way of a run.
"""

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ngsan.commands.train_progress import REWARDS, Progress
from ngsan.commands.train_words import aligned, end_lines, fit, measures, row_cells, start_lines
from ngsan.train.log import Entry

REDRAW_SECONDS = 0.25
"""Steps redraw the live view at most this often; only the last of an epoch always does."""

LINE_SECONDS = 30.0
"""Without a terminal, steps are told at most this often."""

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
        self._run = Progress()
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
                self._say(*start_lines(entry))
                self._draw()
            case "step":
                self._step()
            case "epoch":
                self._row(entry, entry.get("epoch"), entry.get("phase"))
            case "average":
                epochs = entry.get("epochs") or [None]
                self._row(entry, epochs[-1], f"average of {len(epochs)}")
            case "before":
                self._say(f"before {entry.get('phase')}: {', '.join(measures(entry, REWARDS))}")
            case "stop":
                place = f"{entry.get('phase')} stops after epoch {entry.get('epoch')}"
                self._say(f"{place}: {entry.get('reason')}")
            case "note":
                self._say(str(entry.get("text", "")))
            case "end":
                self._stop(leave=False)
                self._say(*end_lines(entry))

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
        row = row_cells(entry, epoch, phase, rewarded="reward" in (*entry, *self._heads))
        width = self._console.width
        heads, gap = fit(list(row), width if self._is_live else max(width, _PLAIN_WIDTH))
        style = "green" if entry.get("best") else ""
        rows = [Text(aligned({head: row[head] for head in heads}, gap), style)]
        if heads != self._heads:
            # The mark explains itself and needs no head.
            names = {head: "" if head == "best" else head for head in heads}
            rows.insert(0, Text(aligned(names, gap), "bold"))
        self._heads = heads
        self._print(rows)

    def _print(self, lines: list[Text]) -> None:
        self._console.print(Text("\n").join(lines), soft_wrap=True)
        if self._live is not None:
            self._draw()  # printing repeats the view as it was
