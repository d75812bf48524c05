"""`ngsan finetune`: a captioner that captions as the user's own captions do."""

import argparse
import math
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngsan.cli.output import note, open_console, say, warn
from ngsan.cli.parser import Command, Parser, UsageError
from ngsan.cli.train_view import LINE_SECONDS, TrainView

if TYPE_CHECKING:
    from rich.console import Console

    from ngsan.finetuning.job import Job
    from ngsan.finetuning.run import Result

_EXAMPLES = 3
_WORDS = 30


def _add_options(parser: Parser) -> None:
    parser.add_argument("photos", metavar="PHOTOS", help="folder of the photographs")
    parser.add_argument(
        "captions",
        metavar="CAPTIONS",
        nargs="?",
        help="their captions: CSV, JSON lines or JSON (also COCO's), with columns such as image "
        "and caption, or a folder of .txt files (default: metadata.csv, metadata.jsonl or .txt "
        "files among the photographs)",
    )
    parser.option("output", metavar="DIR", help="folder of the new model")
    parser.option("model")
    parser.option("dry-run", action="store_true", help="show what would be learned from, and stop")
    parser.option(
        "replay",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether to mix in ordinary photographs, so that the model does not forget them "
        "(default: yes)",
    )
    parser.options("resume")
    parser.option("overwrite", help="replace an earlier model or an interrupted run")
    parser.options("threads")


def _run(options: argparse.Namespace) -> int:
    from ngsan.finetuning.job import open_job

    if options.output is None and not options.dry_run:
        raise UsageError("--output is missing; see 'ngsan finetune --help'")
    console = open_console(results=options.dry_run)
    job = open_job(options.photos, options.captions, options.model, replay=options.replay)
    _show(console, job)
    if options.dry_run:
        return 0
    from ngsan.finetuning.run import run_job
    from ngsan.train.run import InterruptedRunError

    try:
        with _View(console) as view:
            result = run_job(
                job,
                Path(options.output),
                resume=options.resume,
                overwrite=options.overwrite,
                threads=options.threads,
                listen=view.write,
            )
    except InterruptedRunError as error:
        name = signal.Signals(error.number).name
        warn(f"ngsan finetune: stopped by {name}; the state is saved, continue with --resume")
        return 128 + error.number
    _show_result(open_console(results=True), result)
    return 0


def _show(console: "Console", job: "Job") -> None:
    """Prints what will be learned from."""
    for text in job.examples:
        warn(text)
    plan = job.plan
    parts = [
        f"{plan.peak_lr:g} as learning rate",
        "decoder" + (f" and {plan.layers} layers of the encoder" if plan.layers else ""),
        *(["mirrored photographs, too"] if plan.mirror else []),
        f"{plan.replay:,} ordinary photographs replayed",
    ]
    say(
        console,
        f"{len(job.train):,} photographs to learn from, with {job.captions:,} captions; "
        f"{len(job.held_out):,} held out to judge by",
    )
    words = [f"{word} ({count})" for word, count in job.words.new]
    more = f" and {len(words) - _WORDS:,} more" if len(words) > _WORDS else ""
    say(
        console,
        f"{len(words):,} new words{': ' if words else ''}{', '.join(words[:_WORDS])}{more}",
    )
    if job.words.rare:
        rare = ", ".join(word for word, _ in job.words.rare[:10])
        say(console, f"{len(job.words.rare):,} words are too rare to learn, such as {rare}")
    say(
        console,
        f"plan: up to {plan.epochs} epochs, {plan.batch_size} photographs a step; "
        f"{', '.join(parts)}",
    )
    for text in job.warnings:
        note(f"note: {text}")


def _show_result(console: "Console", result: "Result") -> None:
    """Prints the end of a run."""
    for one in result.examples[:_EXAMPLES]:
        say(console, f"{one.path.name}\n  before: {one.before}\n  after:  {one.after}")
    first = result.scores[0]
    numbers = f"{first.before:.1f} before, {first.after:.1f} after"
    if result.improved:
        say(console, f"held-out {first.name}: {numbers}")
    else:
        say(console, f"held-out {first.name} did not rise ({numbers}): the model is as it was")
    say(console, f"wrote {result.folder}; {result.page} shows before and after")
    say(console, f"use it: ngsan caption --model {result.folder} PHOTOS")


class _View:
    """Shows the progress of reading and captioning, and the view of training."""

    def __init__(self, console: "Console") -> None:
        self._console, self._train = console, TrainView(console)
        self._bar: Any = None
        self._what, self._task, self._shown = "", None, -math.inf

    def __enter__(self) -> "_View":
        self._train.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._close()
        self._train.__exit__(*error)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Shows an entry."""
        if entry["event"] == "progress":
            self._progress(entry["what"], entry["done"], entry["total"])
            return
        self._close()
        if entry["event"] != "end":  # its path is that of the working folder
            self._train.write(entry)

    def _progress(self, what: str, done: int, total: int) -> None:
        if not self._console.is_terminal:
            now = time.monotonic()
            if now - self._shown >= LINE_SECONDS or done == total:
                say(self._console, f"{what}: {done:,} of {total:,}")
                self._shown = now
            return
        if what != self._what:
            self._close()
            self._open(what, total)
        self._bar.update(self._task, completed=done)

    def _open(self, what: str, total: int) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Left())
        self._bar, self._what = Progress(*columns, console=self._console), what
        self._task = self._bar.add_task(what, total=total)
        self._bar.start()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._what = None, ""


FINETUNE = Command(
    """Learn from your own photographs and captions. Starts from the shipped model (or --model),
    learns new words, holds out a part of the photographs and ends with a model that is never worse
    on them than it was, and with a page that shows before and after. No GPU is needed.""",
    _add_options,
    _run,
    [
        "finetune photos captions.csv -o my-model",
        "finetune photos captions.csv --dry-run",
        "finetune photos -o my-model --resume",
    ],
)
