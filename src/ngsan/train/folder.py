"""The folder of a run: whose it is, what was saved in it, and the model when the run is over."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from ngsan.data.captions import CAPTIONS
from ngsan.data.lock import release_lock, take_lock
from ngsan.data.parallel.dataset import INDEX
from ngsan.data.questions import QUESTIONS
from ngsan.models.folder import WEIGHTS, copy_model
from ngsan.train.keeping import STATES, write_best
from ngsan.train.log import Entry
from ngsan.train.progress import Progress
from ngsan.train.state import TrainingState, read_state
from ngsan.train.task import Task

_DATASETS = (CAPTIONS, QUESTIONS, INDEX)
"""Files that a dataset has and a run has not; both have a vocabulary."""

_LOCK = ".lock"

_LOCK_SECONDS = 10.0
"""How long a run may take to end that had the folder before: after a kill, processes that read
ahead live a little longer."""


def holds_dataset(folder: Path) -> bool:
    """Whether a folder is a dataset's, where nothing but data should be written."""
    return any((folder / name).exists() for name in _DATASETS)


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Takes a folder for this run.

    Raises:
        ValueError: Another run has it.
    """
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


def find_state(
    output: Path, *, resume: bool, listen: Callable[[Entry], None]
) -> TrainingState | None:
    """What was saved of the run in a folder.

    Args:
        output: The folder.
        resume: Whether a run may be there, to go on with it.
        listen: Told of damage, and if there is no run.

    Returns:
        The newest state that is whole; None to begin.

    Raises:
        ValueError: A run is there that should not be, or it has no state that is whole, or the
            folder is a dataset's.
    """

    def on_damage(text: str) -> None:
        listen({"event": "note", "text": text})

    there = (output / STATES).is_dir() and any((output / STATES).iterdir())
    if not there and holds_dataset(output):
        raise ValueError(f"{output} holds a dataset: give --output a folder of the run's own")
    if resume:
        state = read_state(output / STATES, on_damage)
        if state is None and (output / WEIGHTS).exists():
            raise ValueError(
                f"{output} has a model, but no training state ({STATES}) to go on from: give "
                "another --output"
            )
        if state is None:
            listen({"event": "note", "text": f"{output} has no saved state yet: from the start"})
        return state
    if there or (output / WEIGHTS).exists():
        raise ValueError(
            f"{output} holds a run already: --resume goes on with it; or give another --output"
        )
    return None


def restore_model(
    output: Path, task: Task, progress: Progress, model: nn.Module, tell: Callable[[Entry], None]
) -> None:
    """Makes sure that the best model is in its place, once a run is over.

    Args:
        output: The run's folder.
        task: Writes and reads models.
        progress: Where it stands.
        model: The model with its best weights, to be written if they are not there.
        tell: Told if they were not.
    """
    best = progress.best
    if best is None:
        return
    try:
        task.load(output)
    except ValueError as error:
        tell({"event": "note", "text": f"{error}; it is written again"})
        write_best(output, task, best, model, model.state_dict())
        copy_model(output / best.phase, output)


def where_it_stands(output: Path) -> str:
    """What is left of a run that failed."""
    try:
        state = read_state(output / STATES, lambda text: None)
    except ValueError as error:
        return str(error)
    if state is None:
        return f"nothing had been saved in {output} yet"
    step = state.progress["progress"]["step"]
    return f"the state of step {step} is whole in {output}: --resume goes on from there"
