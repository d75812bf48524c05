"""Starts or resumes a training run: its processes, its folder, its task and its state."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import torch
from lightning_fabric import Fabric

from ngsan.atomic_io import release_lock, take_lock
from ngsan.config import AnsweringConfig, TrainConfig
from ngsan.data.captions import CAPTIONS
from ngsan.data.data_check import DataCheck
from ngsan.data.parallel.dataset import INDEX
from ngsan.data.questions import QUESTIONS
from ngsan.models.checkpoint import WEIGHTS
from ngsan.threads import SMALL_MODEL, limit_torch_threads
from ngsan.train.checkpointing import STATES, Checkpointer, remove_epochs, restore_model
from ngsan.train.distributed import (
    StoppedError,
    build_fabric,
    connection_reason,
    device_name,
    is_compiled,
    is_connection_error,
    launched,
    precision_of,
    short_attention,
    stop_on_signals,
)
from ngsan.train.log import Entry, Listener, open_log
from ngsan.train.loop import Run, run_phases
from ngsan.train.state import (
    SettingsError,
    TrainingState,
    read_state,
    require_same,
    settings,
)
from ngsan.train.task import Progress, RunConfig, Task

FEW_STEPS = 2_000
"""Steps below which a model of more than `SMALL_MODEL` parameters learns next to nothing."""

_LOCK = ".lock"

_LOCK_SECONDS = 10.0
"""Time for a previous run in the folder to end: after a kill, processes that read ahead live a
little longer."""


class InterruptedRunError(Exception):
    """A run was stopped by a signal; its state is saved."""

    def __init__(self, number: int, *, first: bool = True) -> None:
        """Holds the signal's number and whether this is the first process of the run."""
        super().__init__(number)
        self.number, self.first = number, first


def _ignore(entry: Entry) -> None:
    pass


def train(
    config: RunConfig,
    output: str | Path,
    *,
    resume: bool = False,
    listen: Listener = _ignore,
    datasets: Any = None,
    opener: Callable[..., Task] | None = None,
) -> None:
    """Trains a model of any task.

    Args:
        config: The run; its class decides the task.
        output: Its folder: the best model, and beside it the log, the best model of each phase and
            the state to resume from.
        resume: Whether to resume the run that is in the folder, if there is one.
        listen: Receives the log's entries, in the first process only; see `ngsan.train.log`.
        datasets: The training and validation data, instead of the configured ones.
        opener: Opens the task, instead of `open_task`.

    Raises:
        ValueError: The settings do not fit the data or the existing run, or a loss or weight is
            NaN or infinite.
        OSError: Something could not be read or written.
        InterruptedRunError: The run was stopped by a signal, or received one at its very end.
    """
    fabric = build_fabric(config.runtime)
    output = Path(output)
    with ExitStack() as stack:
        stack.enter_context(launched(fabric))
        first = fabric.is_global_zero
        if config.runtime.threads:
            torch.set_num_threads(config.runtime.threads)
        if first:
            stack.enter_context(_locked(output))
        state = find_state(output, resume=resume, log=listen if first else _ignore)
        stop = Event()
        received = stack.enter_context(stop_on_signals(stop, first=first))
        stack.enter_context(short_attention())
        log: Listener = _ignore
        position: Callable[[], int] = int
        if first:
            saved = None if state is None else Progress.from_values(state.progress["progress"])
            board = config.runtime.tensorboard
            log, position = open_log(output, saved, listen, stack, board=board)
        try:
            fabric.barrier()  # nothing is written before all have read the state
            opened = opener or open_task
            task = opened(fabric, config, output, fresh=state is None, datasets=datasets)
            _train(fabric, config, output, task, state, log, position, stop)
        except StoppedError:
            raise InterruptedRunError(received[-1]) from None
        except SettingsError:
            raise  # nothing has happened to the run
        except ValueError as error:
            raise ValueError(_failure(fabric, output, error)) from error
        except OSError as error:
            raise OSError(_failure(fabric, output, error)) from error
        except RuntimeError as error:
            if not is_connection_error(error):
                raise
            if received and not first:
                # The first process has stopped, as it should.
                raise InterruptedRunError(received[-1], first=False) from None
            lost = f"lost the connection to another process ({connection_reason(error)})"
            raise ConnectionError(_failure(fabric, output, lost)) from error
        if received:
            # It came after the last step: a caller that starts run after run must hear of it.
            raise InterruptedRunError(received[-1], first=first)


def open_task(
    fabric: Fabric, config: RunConfig, output: Path, *, fresh: bool, datasets: Any = None
) -> Task:
    """Opens the data of a run.

    Args:
        fabric: The processes.
        config: The run; its class decides the task.
        output: The run's folder.
        fresh: Whether the run is new.
        datasets: The training and validation data, instead of the configured ones.

    Raises:
        ValueError: The settings do not fit each other, or the dataset does not exist.
        OSError: It cannot be read.
    """
    if isinstance(config, TrainConfig):
        from ngsan.train.tasks.captioning import CaptioningTask

        return CaptioningTask(fabric, config, output, fresh=fresh, datasets=datasets)
    if isinstance(config, AnsweringConfig):
        from ngsan.train.tasks.answering import AnsweringTask

        return AnsweringTask(fabric, config, output, fresh=fresh, datasets=datasets)
    from ngsan.train.tasks.translation import TranslationTask

    return TranslationTask(fabric, config, datasets=datasets)


def _train(
    fabric: Fabric,
    config: RunConfig,
    output: Path,
    task: Task,
    state: TrainingState | None,
    log: Listener,
    position: Callable[[], int],
    stop: Event,
) -> None:
    precision = precision_of(config.runtime, fabric.device.type)
    decisive = settings(task.config, precision, task.signatures, task.free)
    progress = Progress()
    if state is not None:
        require_same(state.progress["settings"], decisive, str(output))
        progress = Progress.from_values(state.progress["progress"])
    model = task.build(fresh=state is None)
    parameters = sum(part.numel() for part in model.parameters())
    if not config.runtime.threads:
        limit_torch_threads(parameters)
    if state is not None:
        model.load_state_dict(state.tensors["weights"])
    if progress.done:
        if fabric.is_global_zero and progress.best is not None:
            restore_model(output, task, progress.best, model, log)
            remove_epochs(output)
            _log_end(progress, output, log)
        return
    # One process of each machine reads its files.
    data_check = DataCheck(task.stores() if fabric.local_rank == 0 else ())
    model.to(fabric.device)
    checkpointer = Checkpointer(
        output,
        task,
        decisive,
        save_seconds=config.runtime.save_seconds,
        writes=fabric.is_global_zero,
        log_position=position,
        on_save=lambda step, seconds: log(
            {"event": "checkpoint", "step": step, "seconds": seconds}
        ),
    )
    run = Run(
        config=config,
        fabric=fabric,
        task=task,
        model=model,
        setup=task.setup(model, stop),
        checkpointer=checkpointer,
        data_check=data_check,
        compiled=is_compiled(config.runtime, fabric.device),
        stop=stop,
        log=log,
    )
    about = task.describe()
    log(
        {
            "event": "start",
            "parameters": parameters,
            "device": device_name(fabric.device),
            "processes": fabric.world_size,
            "precision": precision,
            "resumed_at": None if state is None else progress.step,
            **about,
        }
    )
    start = config.init_from if isinstance(config, TrainConfig) else "another task"
    if text := too_few_steps(about["phases"], parameters, start):
        log({"event": "note", "text": text})
    optimizer = {} if state is None else dict(state.tensors["optimizer"])
    with closing(data_check), closing(checkpointer):
        run_phases(run, progress, optimizer)
        checkpointer.finish(progress)
    if fabric.is_global_zero and progress.best is not None:
        _log_end(progress, output, log)


def too_few_steps(phases: Sequence[Mapping[str, Any]], parameters: int, init_from: str) -> str:
    """A warning if a run from random weights is far too short for its model; "" otherwise.

    Args:
        phases: Each with "epochs" and "steps" per epoch.
        parameters: Of the model.
        init_from: The model that the run starts from, if there is one.
    """
    steps = sum(phase["epochs"] * phase["steps"] for phase in phases)
    if init_from or parameters < SMALL_MODEL or steps >= FEW_STEPS:
        return ""
    return (
        f"warning: {steps:,} steps are far too few for a model of {parameters:,} weights from "
        "random ones: it will hardly look at the images. Pass more --cross_entropy.epochs and a "
        "smaller --cross_entropy.batch_size, or the recipe small; with few images of your own, "
        "ngsan finetune starts from a trained model"
    )


def _log_end(progress: Progress, output: Path, log: Listener) -> None:
    best = progress.best
    assert best is not None
    log(
        {
            "event": "end",
            "best": {"phase": best.phase, "epoch": best.epoch, "metrics": best.metrics},
            "seconds": progress.seconds,
            "model": str(output / WEIGHTS),
        }
    )


def _failure(fabric: Fabric, output: Path, error: object) -> str:
    """The message of a failure, and what is left of the run."""
    if not fabric.is_global_zero:
        return f"process {fabric.global_rank}: {error}"
    try:
        state = read_state(output / STATES, lambda text: None)
    except ValueError as damage:
        return f"{error}\n{damage}"
    if state is None:
        return f"{error}\nnothing had been saved in {output} yet"
    step = state.progress["progress"]["step"]
    return f"{error}\nthe state of step {step} is intact in {output}: --resume continues from there"


def holds_dataset(folder: Path) -> bool:
    """Whether a folder is a dataset's, where nothing but data should be written."""
    return any((folder / name).exists() for name in (CAPTIONS, QUESTIONS, INDEX))


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Locks a folder for this run; a `ValueError` if another run holds it."""
    output.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            lock = take_lock(output / _LOCK, "training run in")
            break
        except ValueError:
            if time.monotonic() >= end:
                raise
        time.sleep(0.1)
    try:
        yield
    finally:
        release_lock(lock, output / _LOCK)


def find_state(output: Path, *, resume: bool, log: Listener) -> TrainingState | None:
    """The saved state of the run in a folder.

    Args:
        output: The folder.
        resume: Whether to resume a run that is there.
        log: Receives notes about damage, and about a missing run.

    Returns:
        The newest complete state; None for a new run.

    Raises:
        ValueError: There is a run that is not to be resumed, or it has no complete state, or the
            folder is a dataset's.
    """

    def note(text: str) -> None:
        log({"event": "note", "text": text})

    there = (output / STATES).is_dir() and any((output / STATES).iterdir())
    if not there and holds_dataset(output):
        raise ValueError(f"{output} holds a dataset; pass another folder with --output")
    if resume:
        state = read_state(output / STATES, note)
        if state is None and (output / WEIGHTS).exists():
            raise ValueError(
                f"{output} has a model, but no training state ({STATES}) to resume from; pass "
                "another --output"
            )
        if state is None:
            note(f"{output} has no saved state yet: starting from the beginning")
        return state
    if there or (output / WEIGHTS).exists():
        raise ValueError(
            f"{output} already holds a run; continue it with --resume, or pass another --output"
        )
    return None
