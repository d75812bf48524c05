"""`ngsan train`: trains a captioner, a translator or a question answerer."""

import argparse
import signal
import time
from pathlib import Path
from typing import Any

from ngsan.cli.keys import keys_of, keys_of_recipe, run_values, with_keys
from ngsan.cli.output import open_console, warn
from ngsan.cli.parser import Command, Parser, UsageError
from ngsan.cli.train_view import TrainView
from ngsan.config import recipe_names
from ngsan.plots import plot_curves, read_curve

_CURVE = "curve.png"
_BETWEEN_CURVES = 60.0

SHORT = {
    "data": "data.folder",
    "images": "vision.images",
    "device": "runtime.device",
    "threads": "runtime.threads",
    "seed": "seed",
    "init-from": "init_from",
}
"""Keys of a run that are options of their own."""


def add_run_options(parser: Parser, *names: str) -> None:
    """Adds the options of `SHORT` with those names, and `--config`."""
    helps = {
        "images": "folder of photographs, or of .tar files of them, for models with a backbone",
        "threads": "CPU threads of each process; 0: by the size of the model",
        "seed": "seed of the weights, the order of the data, dropout and sampling",
        "init-from": "model folder to initialise the weights from",
    }
    for name in names:
        about: dict[str, Any] = {"metavar": "DIR"} if name == "init-from" else {}
        if name in helps:
            about["help"] = helps[name]
        if name == "threads":
            about["type"] = int
        parser.option(name, **about)
    parser.option("config", action="append", default=[])


def short_keys(options: argparse.Namespace, kind: type[Any], *names: str) -> dict[str, Any]:
    """The keys of a kind of run that are set by those options of `SHORT`."""
    keys = {}
    for name in names:
        key, value = SHORT[name], getattr(options, name.replace("-", "_"))
        if value is not None and key not in keys_of(kind):
            raise UsageError(f"--{name} does not apply to the task of this recipe")
        if value is not None:
            keys[key] = value
    return keys


def _add_options(parser: Parser) -> None:
    parser.add_argument(
        "recipe",
        metavar="RECIPE_OR_FILE",
        help=f"a YAML file, or one of {', '.join(recipe_names())}",
    )
    parser.option("output", metavar="DIR", required=True, help="folder of the run and its model")
    parser.option("resume", help="continue the run in the folder, if there is one")
    add_run_options(parser, *SHORT)


def _run(options: argparse.Namespace) -> int:
    kind, values = run_values(options.recipe, options.config)
    keys = {**short_keys(options, kind, *SHORT), **options.keys}
    config: Any = with_keys(kind, values, keys, "ngsan train")
    from ngsan.train.distributed import leave_others
    from ngsan.train.run import InterruptedRunError
    from ngsan.train.run import train as run_training

    curve = _CurveDrawer(Path(options.output), config.validation.metric)
    try:
        with TrainView(open_console()) as view:

            def listen(entry: Any) -> None:
                view.write(entry)
                text = curve.write(entry)
                if text:
                    view.write({"event": "note", "text": text})

            run_training(config, options.output, resume=options.resume, listen=listen)
    except InterruptedRunError as error:
        if error.first:
            name = signal.Signals(error.number).name
            warn(f"ngsan train: stopped by {name}; the state is saved, continue with --resume")
        return 128 + error.number
    finally:
        leave_others()
    return 0


class _CurveDrawer:
    """Draws the metric by epoch, once a minute and at the end (Figure 2 of the paper)."""

    def __init__(self, output: Path, metric: str) -> None:
        self._output, self._metric = output, metric
        self._drawn = -_BETWEEN_CURVES

    def write(self, entry: Any) -> str:
        """Draws if it is time; returns a message if there is one."""
        late = time.monotonic() - self._drawn >= _BETWEEN_CURVES
        if entry["event"] != "end" and not (entry["event"] == "epoch" and late):
            return ""
        from ngsan.train.log import LOG

        try:
            found = read_curve(self._output / LOG, self._metric, "")
            plot_curves({self._metric: [found]}, self._output / _CURVE)
        except (ValueError, OSError) as error:
            return str(error) if entry["event"] == "end" else ""
        self._drawn = time.monotonic()
        return f"wrote {self._output / _CURVE}" if entry["event"] == "end" else ""


TRAIN = Command(
    """Train a captioner (by cross-entropy, then self-critically), a translator or a question
    answerer, as the recipe says. The output folder is the best model; it also holds the best model
    of each phase, the log, a curve, and the state that --resume continues from.""",
    _add_options,
    _run,
    [
        "train toy-scenes -o runs/scenes",
        "train ng-san --data mydata -o runs/mine",
        "train ng-san --data mydata -o runs/deep --model.layers 6 --cross-entropy.epochs 20",
        "train photo --data mydata --images photos -o runs/photo --resume",
    ],
    lambda words: keys_of_recipe(words[0] if words else "ng-san"),
)
