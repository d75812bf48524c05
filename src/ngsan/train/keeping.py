"""What a run leaves on the disk: its state, the best models, and the weights of the last epochs."""

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ngsan.durable import write_bytes
from ngsan.models.folder import copy_model
from ngsan.models.weights import content_signature, on_host
from ngsan.train.progress import Best, Progress
from ngsan.train.state import write_state
from ngsan.train.task import Task

STATES = "training"
"""Where a run has its states."""

LOG = "log.jsonl"
_EPOCHS = "epochs"
_EPOCH = re.compile(r"epoch-([0-9]+)\.safetensors")


class Keeper:
    """Writes for a run; only the first of several processes does."""

    def __init__(
        self,
        output: Path,
        task: Task,
        settings: Mapping[str, Any],
        *,
        save_seconds: float,
        writes: bool,
        log_position: Callable[[], int],
        on_save: Callable[[int, float], None],
    ) -> None:
        """Takes what is to be written again and again.

        Args:
            output: The run's folder.
            task: Writes and reads models.
            settings: What the run must go on with; see `progress.settings`.
            save_seconds: Time from one saved state to the next.
            writes: Whether this process writes.
            log_position: Tells the length of the log.
            on_save: Told the step and how long it took, after every saved state.
        """
        self.output, self._task, self._save_seconds = output, task, save_seconds
        self._settings, self._writes = settings, writes
        self._log_position, self._on_save = log_position, on_save
        self._saved = self._since = time.perf_counter()
        self._pen = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def is_time(self) -> bool:
        """Whether the last saved state is old enough."""
        return self._writes and time.perf_counter() - self._saved >= self._save_seconds

    def save(
        self, progress: Progress, weights: Mapping[str, Tensor], memory: Mapping[str, Tensor]
    ) -> None:
        """Saves the state.

        Raises:
            ValueError: A weight is not finite; nothing is written.
            OSError: It could not be written; the state before is whole.
        """
        if not self._writes:
            return
        self.wait()
        require_finite(weights, progress.step)
        start = time.perf_counter()
        progress.seconds += start - self._since
        self._since = start
        progress.log = self._log_position()
        values = {"progress": asdict(progress), "settings": self._settings}
        write_state(
            self.output / STATES,
            progress.step,
            values,
            {"weights": weights, "optimizer": memory},
        )
        self._saved = time.perf_counter()
        self._on_save(progress.step, self._saved - start)

    def phase_folder(self, phase: str) -> Path:
        """Where the best model of a phase is."""
        return self.output / phase

    def keep_best(
        self, progress: Progress, best: Best, model: nn.Module, weights: Mapping[str, Tensor]
    ) -> None:
        """Keeps a model that is the best of its phase, and of the run if it is that, too."""
        of_run = progress.best is None or best.value > progress.best.value
        progress.phase_best = best
        progress.best = best if of_run else progress.best
        if not self._writes:
            return
        self.wait()
        require_finite(weights, progress.step)
        held = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}
        # Training goes on meanwhile; no state is saved that knows of a model not yet written.
        self._writing = self._pen.submit(self._write_best, best, model, held, of_run=of_run)

    def _write_best(
        self, best: Best, model: nn.Module, weights: Mapping[str, Tensor], *, of_run: bool
    ) -> None:
        write_best(self.output, self._task, best, model, weights)
        if of_run:
            copy_model(self.phase_folder(best.phase), self.output)

    def wait(self) -> None:
        """Waits until the best model is written.

        Raises:
            OSError: It could not be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def finish(self, progress: Progress) -> None:
        """Saves that the run is over.

        The state has the best weights in the place of the last: should the model be damaged or
        lost, it can be written again.
        """
        progress.done = True
        if not self._writes or progress.best is None:
            return
        self.wait()
        weights = self._best_weights(progress.best)

        def save() -> None:
            self.save(progress, weights, {})

        save()
        self.forget_epochs(save)

    def _best_weights(self, best: Best) -> dict[str, Tensor]:
        """The best model's, from the phase's folder or from the run's, and put back into both."""
        folders = (self.phase_folder(best.phase), self.output)
        problems = []
        for folder, other in (folders, folders[::-1]):
            try:
                weights = self._task.load(folder)
            except ValueError as error:
                problems.append(str(error))
                continue
            copy_model(folder, other)  # somebody may have removed it
            return weights
        raise ValueError(
            f"the best model of the run is lost: {'; '.join(problems)}. The run cannot end with "
            "it; begin another one"
        )

    def close(self) -> None:
        """Waits for what is being written, and takes no more."""
        self._pen.shutdown()

    def keep_epoch(self, epoch: int, weights: Mapping[str, Tensor], count: int) -> None:
        """Keeps the weights after an epoch, and forgets those of more than `count` epochs."""
        if not count or not self._writes:
            return
        folder = self.output / _EPOCHS
        folder.mkdir(exist_ok=True)
        held, about = on_host(weights), {"epoch": str(epoch)}
        about["signature"] = content_signature(held, about)
        write_bytes(self._epoch_file(epoch), save(held, about))
        for path in folder.iterdir():
            match = _EPOCH.fullmatch(path.name)
            # After a kill there may be later ones, which will be made again.
            if not match or not epoch - count < int(match[1]) <= epoch:
                path.unlink()

    def average_epochs(self, epochs: Sequence[int]) -> tuple[list[int], dict[str, Tensor]] | None:
        """The mean of weights that `keep_epoch` kept.

        Args:
            epochs: Which of them.

        Returns:
            The epochs and the weights; None if there are fewer than two.

        Raises:
            ValueError: The weights of an epoch are damaged or missing.
        """
        if len(epochs) < 2:
            return None
        total: dict[str, Tensor] = {}
        last: dict[str, Tensor] = {}
        for epoch in epochs:
            last = _read_epoch(self._epoch_file(epoch), epoch)
            for name, tensor in last.items():
                wide = tensor.double() if tensor.is_floating_point() else tensor
                total[name] = total[name] + wide if name in total else wide
        mean = {
            name: (total[name] / len(epochs)).to(tensor.dtype)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in last.items()
        }
        return list(epochs), mean

    def forget_epochs(self, save: Callable[[], None]) -> None:
        """Removes what `keep_epoch` kept, if there is any.

        Args:
            save: Saves the state, which does not need them anymore. It has been called once; now
                it is called again, so that the state before, which may have to stand in for a
                damaged one, does not need them either.
        """
        if self._writes and (self.output / _EPOCHS).is_dir():
            save()
            remove_epochs(self.output)

    def _epoch_file(self, epoch: int) -> Path:
        return self.output / _EPOCHS / f"epoch-{epoch:04d}.safetensors"


def write_best(
    output: Path, task: Task, best: Best, model: nn.Module, weights: Mapping[str, Tensor]
) -> None:
    """Writes the best model of a phase into the phase's folder."""
    metrics = {"phase": best.phase, "epoch": best.epoch, **best.metrics}
    task.save(output / best.phase, model, weights, metrics)


def remove_epochs(output: Path) -> None:
    """Removes the weights that were kept to be averaged."""
    shutil.rmtree(output / _EPOCHS, ignore_errors=True)


def _read_epoch(path: Path, epoch: int) -> dict[str, Tensor]:
    """Weights that `Keeper.keep_epoch` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.get("epoch") != str(epoch):
            raise ValueError(f"it is of epoch {about.get('epoch')}")
        if about.get("signature") != content_signature(tensors, about):
            raise ValueError("its content is not what its signature says")
    except (SafetensorError, ValueError, OSError) as error:
        raise ValueError(
            f"{path}: the weights of epoch {epoch}, which are to be averaged, are damaged or "
            f"missing: {error}; put the file back, or begin another run"
        ) from error
    return tensors


REMEDY = (
    "look at the features with ngsan data inspect, or begin another run with a lower rate.highest, "
    "from the best model so far with --initial"
)
"""What to do when numbers are no longer numbers."""


def require_finite(weights: Mapping[str, Tensor], step: int) -> None:
    """Raises a `ValueError` that names the first weights that are not all finite numbers."""
    floating = {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}
    finite = torch.stack([tensor.isfinite().all() for tensor in floating.values()])
    if not bool(finite.all()):
        name = list(floating)[int((~finite).nonzero()[0])]
        raise ValueError(f"the weights {name} are no longer numbers by step {step}: {REMEDY}")
