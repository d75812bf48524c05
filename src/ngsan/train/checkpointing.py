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

from ngsan.atomic_io import write_bytes
from ngsan.models.checkpoint import copy_model
from ngsan.models.weights import content_signature, on_host
from ngsan.train.log import REMEDY
from ngsan.train.state import write_state
from ngsan.train.task import Best, Progress, Task

STATES = "training"
"""The folder of a run's states."""

_EPOCHS = "epochs"
_EPOCH = re.compile(r"epoch-([0-9]+)\.safetensors")


class Checkpointer:
    """Writes the files of a run; only the first of several processes does."""

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
        """Holds the parts.

        Args:
            output: The run's folder.
            task: Writes and reads models.
            settings: The settings that a resumed run must have; see `state.settings`.
            save_seconds: Seconds between saved states.
            writes: Whether this process writes.
            log_position: Returns the length of the log.
            on_save: Called with the step and the seconds it took, after every saved state.
        """
        self.output, self._task, self._save_seconds = output, task, save_seconds
        self._settings, self._writes = settings, writes
        self._log_position, self._on_save = log_position, on_save
        self._saved = self._since = time.perf_counter()
        self._executor = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def is_due(self) -> bool:
        """Whether the last saved state is old enough."""
        return self._writes and time.perf_counter() - self._saved >= self._save_seconds

    def save(
        self, progress: Progress, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]
    ) -> None:
        """Saves the state.

        Raises:
            ValueError: A weight is not finite; nothing is written.
            OSError: It could not be written; the state before is intact.
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
        tensors = {"weights": weights, "optimizer": optimizer}
        write_state(self.output / STATES, progress.step, values, tensors)
        self._saved = time.perf_counter()
        self._on_save(progress.step, self._saved - start)

    def phase_folder(self, phase: str) -> Path:
        """The folder of the best model of a phase."""
        return self.output / phase

    def keep_best(
        self, progress: Progress, best: Best, model: nn.Module, weights: Mapping[str, Tensor]
    ) -> None:
        """Keeps a model that is the best of its phase, and perhaps of the run."""
        of_run = progress.best is None or best.value > progress.best.value
        progress.phase_best = best
        progress.best = best if of_run else progress.best
        if not self._writes:
            return
        self.wait()
        require_finite(weights, progress.step)
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}

        def write() -> None:
            write_best(self.output, self._task, best, model, copies)
            if of_run:
                copy_model(self.phase_folder(best.phase), self.output)

        # Training continues meanwhile; no saved state refers to a model that is not yet written.
        self._writing = self._executor.submit(write)

    def wait(self) -> None:
        """Waits until the best model is written; an `OSError` if it could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def finish(self, progress: Progress) -> None:
        """Saves that the run has ended.

        The state has the best weights instead of the last: if the model is damaged or lost, it can
        be written again.
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
        """The best model's weights, from the phase's folder or the run's; restores the other."""
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
            "it; start another one"
        )

    def close(self) -> None:
        """Waits for what is being written."""
        self._executor.shutdown()

    def keep_epoch(self, epoch: int, weights: Mapping[str, Tensor], count: int) -> None:
        """Keeps the weights after an epoch, and removes those older than `count` epochs."""
        if not count or not self._writes:
            return
        folder = self.output / _EPOCHS
        folder.mkdir(exist_ok=True)
        tensors, metadata = on_host(weights), {"epoch": str(epoch)}
        metadata["signature"] = content_signature(tensors, metadata)
        write_bytes(self._epoch_file(epoch), save(tensors, metadata))
        for path in folder.iterdir():
            match = _EPOCH.fullmatch(path.name)
            # After a kill there may be later ones, which will be written again.
            if not match or not epoch - count < int(match[1]) <= epoch:
                path.unlink()

    def average_epochs(self, epochs: Sequence[int]) -> tuple[list[int], dict[str, Tensor]] | None:
        """The mean of the weights of some epochs that `keep_epoch` kept.

        Returns:
            The epochs and the weights; None if there are fewer than two epochs.

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
            save: Saves the state, which no longer needs these weights. The caller has called it
                once; it is called again here, so that the state before, which replaces a damaged
                one, does not need them either.
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


def restore_model(
    output: Path,
    task: Task,
    best: Best,
    model: nn.Module,
    log: Callable[[Mapping[str, Any]], None],
) -> None:
    """Writes the best model of a finished run again if it is damaged or lost.

    Args:
        output: The run's folder.
        task: Writes and reads models.
        best: The best model.
        model: The model with its best weights.
        log: Receives a note if it was written.
    """
    try:
        task.load(output)
    except ValueError as error:
        log({"event": "note", "text": f"{error}; writing it again"})
        write_best(output, task, best, model, model.state_dict())
        copy_model(output / best.phase, output)


def remove_epochs(output: Path) -> None:
    """Removes the weights that were kept to be averaged."""
    shutil.rmtree(output / _EPOCHS, ignore_errors=True)


def _read_epoch(path: Path, epoch: int) -> dict[str, Tensor]:
    """Weights that `Checkpointer.keep_epoch` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("epoch") != str(epoch):
            raise ValueError(f"it is of epoch {metadata.get('epoch')}")
        if metadata.get("signature") != content_signature(tensors, metadata):
            raise ValueError("its content does not match its signature")
    except (SafetensorError, ValueError, OSError) as error:
        raise ValueError(
            f"{path}: the weights of epoch {epoch}, which are to be averaged, are damaged or "
            f"missing: {error}; restore the file, or start another run"
        ) from error
    return tensors


def require_finite(weights: Mapping[str, Tensor], step: int) -> None:
    """Raises a `ValueError` that names the first weights with NaN or infinity."""
    floating = {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}
    finite = torch.stack([tensor.isfinite().all() for tensor in floating.values()])
    if not bool(finite.all()):
        name = list(floating)[int((~finite).nonzero()[0])]
        raise ValueError(f"NaN or infinity in the weights {name} by step {step}: {REMEDY}")
