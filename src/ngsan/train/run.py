"""Puts a run together: processes, task, and what was saved of it."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Any

import torch
from lightning_fabric import Fabric

from ngsan.models.folder import WEIGHTS
from ngsan.train.folder import find_state, locked, restore_model, where_it_stands
from ngsan.train.keeping import LOG, Keeper, remove_epochs
from ngsan.train.log import Entry, JsonLines, TensorBoard
from ngsan.train.loop import Run, run_phases
from ngsan.train.machine import (
    StoppedError,
    build_fabric,
    device_name,
    is_compiled,
    is_of_processes,
    launched,
    loss_of,
    precision_of,
    short_attention,
    stop_on_signals,
)
from ngsan.train.progress import Progress, SettingsError, require_same, settings
from ngsan.train.state import TrainingState
from ngsan.train.task import RunConfig, Task
from ngsan.train.tasks import open_task


class InterruptedRunError(Exception):
    """A run was stopped by a signal; its state is saved."""

    def __init__(self, number: int, *, first: bool = True) -> None:
        """Takes the signal's number and whether this is the first process of the run."""
        super().__init__(number)
        self.number, self.first = number, first


def train(
    config: RunConfig,
    output: str | Path,
    *,
    resume: bool = False,
    listen: Callable[[Entry], None] = lambda entry: None,
    datasets: Any = None,
) -> None:
    """Trains a model, whatever the task.

    Args:
        config: The run, such as a `TrainConfig`, which says by its class what is learned.
        output: Its folder: the best model, and beside it the log, the best model of each phase
            and the state from which an interrupted run goes on.
        resume: Whether to go on with the run that is in the folder, if there is one.
        listen: Told what happens, in the first process only; see `ngsan.train.log`.
        datasets: To learn from and to validate on, in the place of those that are configured.

    Raises:
        ValueError: The settings do not fit the data or the run that is there, or a loss or weight
            is no longer a number.
        OSError: Something could not be read or written.
        InterruptedRunError: The run was stopped by a signal, or got one at its very end.
    """
    fabric = build_fabric(config.machine)
    output = Path(output)
    with ExitStack() as stack:
        stack.enter_context(launched(fabric))
        first = fabric.is_global_zero
        if config.machine.threads:
            torch.set_num_threads(config.machine.threads)
        if first:
            stack.enter_context(locked(output))
        state = find_state(output, resume=resume, listen=listen if first else _unheard)
        stop = Event()
        received = stack.enter_context(stop_on_signals(stop, first=first))
        stack.enter_context(short_attention())
        tell, position = _listeners(config, output, state, listen, stack, first=first)
        try:
            fabric.barrier()  # nothing is written before all have read the state
            task = open_task(fabric, config, output, fresh=state is None, datasets=datasets)
            _train(fabric, config, output, task, state, tell, position, stop)
        except StoppedError:
            raise InterruptedRunError(received[-1]) from None
        except SettingsError:
            raise  # nothing has happened to the run
        except ValueError as error:
            raise ValueError(_failure(fabric, output, error)) from error
        except OSError as error:
            raise OSError(_failure(fabric, output, error)) from error
        except RuntimeError as error:
            if not is_of_processes(error):
                raise
            if received and not first:
                # The first process has gone, as it was told to.
                raise InterruptedRunError(received[-1], first=False) from None
            lost = f"another process of the run has gone ({loss_of(error)})"
            raise ConnectionError(_failure(fabric, output, lost)) from error
        if received:
            # It came after the last step: whoever makes run after run is to hear of it.
            raise InterruptedRunError(received[-1], first=first)


def _train(
    fabric: Fabric,
    config: RunConfig,
    output: Path,
    task: Task,
    state: TrainingState | None,
    tell: Callable[[Entry], None],
    position: Callable[[], int],
    stop: Event,
) -> None:
    device = fabric.device
    precision = precision_of(config.machine, device.type)
    decisive = settings(task.config, precision, task.signatures, task.free)
    progress = Progress()
    if state is not None:
        require_same(state.progress["settings"], decisive, str(output))
        progress = Progress.from_values(state.progress["progress"])
    model = task.build(fresh=state is None)
    if state is not None:
        model.load_state_dict(state.tensors["weights"])
    if progress.done:
        if fabric.is_global_zero:
            restore_model(output, task, progress, model, tell)
            remove_epochs(output)
            _tell_end(progress, output, tell)
        return
    model.to(device)
    keeper = Keeper(
        output,
        task,
        decisive,
        save_seconds=config.machine.save_seconds,
        writes=fabric.is_global_zero,
        log_position=position,
        on_save=lambda step, seconds: tell(
            {"event": "checkpoint", "step": step, "seconds": seconds}
        ),
    )
    run = Run(
        config=config,
        fabric=fabric,
        task=task,
        model=model,
        lesson=task.teach(model, stop),
        keeper=keeper,
        compiled=is_compiled(config.machine, device),
        stop=stop,
        listen=tell,
    )
    tell(_start(run, precision, None if state is None else progress.step))
    memory = {} if state is None else dict(state.tensors["optimizer"])
    with closing(keeper):
        run_phases(run, progress, memory)
        keeper.finish(progress)
    if fabric.is_global_zero:
        _tell_end(progress, output, tell)


def _listeners(
    config: RunConfig,
    output: Path,
    state: TrainingState | None,
    listen: Callable[[Entry], None],
    stack: ExitStack,
    *,
    first: bool,
) -> tuple[Callable[[Entry], None], Callable[[], int]]:
    """Who is told what happens, and how long the log is."""
    if not first:
        return _unheard, lambda: 0
    saved = None if state is None else state.progress["progress"]
    log = stack.enter_context(JsonLines(output / LOG, keep=0 if saved is None else saved["log"]))

    def write(entry: Entry) -> None:
        try:
            log.write(entry)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(output / LOG)) from error

    listeners: list[Callable[[Entry], None]] = [write, listen]
    if config.machine.tensorboard:
        step = 0 if saved is None else saved["step"]
        board = stack.enter_context(TensorBoard(output / "tensorboard", step=step))
        listeners.append(board.write)

    def tell(entry: Entry) -> None:
        for listener in listeners:
            listener(entry)

    return tell, lambda: log.position


def _unheard(entry: Entry) -> None:
    pass


def _start(run: Run, precision: str, resumed_at: int | None) -> Entry:
    return {
        "event": "start",
        "parameters": sum(part.numel() for part in run.model.parameters()),
        "device": device_name(run.fabric.device),
        "processes": run.fabric.world_size,
        "precision": precision,
        "resumed_at": resumed_at,
        **run.task.about(run.model),
    }


def _tell_end(progress: Progress, output: Path, tell: Callable[[Entry], None]) -> None:
    best = progress.best
    if best is None:
        return
    tell(
        {
            "event": "end",
            "best": {"phase": best.phase, "epoch": best.epoch, "metrics": best.metrics},
            "seconds": progress.seconds,
            "model": str(output / WEIGHTS),
        }
    )


def _failure(fabric: Fabric, output: Path, error: object) -> str:
    """What to say of a failure, and what is left of the run."""
    if not fabric.is_global_zero:
        return f"process {fabric.global_rank}: {error}"
    return f"{error}\n{where_it_stands(output)}"
