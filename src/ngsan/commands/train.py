"""`ngsan train`: trains a captioner, by cross-entropy and then self-critically."""

import signal
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from ngsan.commands.command_line import Parser, config_parser, take_config, task_of
from ngsan.commands.train_view import TrainView
from ngsan.config import TrainConfig, run_class
from ngsan.plots import plot_curves, read_curve
from ngsan.train.log import Entry

DESCRIPTION = """Trains a captioner, by cross-entropy and then self-critically; with --task, or a
file that has that key, a translator (translation) or a model that answers questions (answering),
whose keys --help shows then. The best model is the output folder itself; the best of each phase,
the log, the curve and the state from which an interrupted run goes on are in it, too."""

_CURVE = "curve.png"
_BETWEEN_CURVES = 60.0


def make_parser(run: type[Any] = TrainConfig) -> Parser:
    """The command line for runs of a class."""
    parser = config_parser(run, "train", DESCRIPTION)
    parser.add_argument("--output", metavar="DIR", type=str, required=True, help="where to")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run that is in the folder, if there is one; it ends as if it had "
        "never been interrupted",
    )
    return parser


def train(config: Any, output: str, *, resume: bool) -> None:
    """Trains, and shows how it goes."""
    from ngsan.train.machine import leave_others
    from ngsan.train.run import InterruptedRunError
    from ngsan.train.run import train as run_training

    curve = _CurveDrawer(Path(output), config.validation.metric)
    try:
        with TrainView(Console()) as view:

            def listen(entry: Entry) -> None:
                view.write(entry)
                text = curve.write(entry)
                if text:
                    view.write({"event": "note", "text": text})

            run_training(config, output, resume=resume, listen=listen)
    except InterruptedRunError as error:
        if error.first:
            name = signal.Signals(error.number).name
            print(
                f"ngsan train: stopped by {name}; the state is saved, --resume goes on",
                file=sys.stderr,
            )
        sys.exit(128 + error.number)
    finally:
        leave_others()


class _CurveDrawer:
    """Draws the metric by epoch, now and then and at the end (Figure 3 of the paper)."""

    def __init__(self, output: Path, metric: str) -> None:
        """Takes the run's folder and the metric."""
        self._output, self._metric = output, metric
        self._drawn, self._epochs = -_BETWEEN_CURVES, 0

    def write(self, entry: Entry) -> str:
        """Draws if it is time; returns what should be told, if anything."""
        late = time.monotonic() - self._drawn >= _BETWEEN_CURVES
        if entry["event"] != "end" and not (entry["event"] == "epoch" and late):
            return ""
        from ngsan.train.keeping import LOG

        try:
            found = read_curve(self._output / LOG, self._metric, "")
            plot_curves({self._metric: [found]}, self._output / _CURVE)
        except (ValueError, OSError) as error:
            return str(error) if entry["event"] == "end" else ""
        self._drawn = time.monotonic()
        return f"the curve is in {self._output / _CURVE}" if entry["event"] == "end" else ""


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    run = run_class(task_of(arguments))
    parser = make_parser(run)
    options = parser.parse_args(arguments)
    config = take_config(parser, options, run)
    train(config, options.output, resume=options.resume)
