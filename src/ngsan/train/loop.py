"""The training loop: phases, epochs, steps.

Everything that a step depends on is explicit: the weights, the optimizer's state and `Progress`.
The order of the data, dropout and sampled captions follow from the seed and the number of the step.
So a run that was interrupted anywhere and resumed ends bit by bit as if it had never been.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from threading import Event

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.data.data_check import DataCheck
from ngsan.train.checkpointing import Checkpointer, require_finite
from ngsan.train.distributed import StoppedError
from ngsan.train.log import Listener, Meter
from ngsan.train.step import (
    CapturedStep,
    Step,
    build_optimizer,
    learning_rate,
    load_optimizer,
    optimizer_tensors,
    seed_dropout,
    sum_over_processes,
)
from ngsan.train.task import Best, Phase, Progress, RunConfig, Task, TrainingSetup

_LOOK_BATCHES = 4
"""Batches for the report before the first step of the self-critical phase."""

_MAX_SHAPES = 64
"""Shapes of batches that a step is compiled for; further ones would be slow."""


@dataclass(frozen=True)
class Run:
    """The parts of a run; only the weights change."""

    config: RunConfig
    fabric: Fabric
    task: Task
    model: nn.Module
    setup: TrainingSetup
    checkpointer: Checkpointer
    data_check: DataCheck
    compiled: bool
    stop: Event
    """Set to ask for a stop after the current step."""

    log: Listener

    def refresh(self) -> None:
        """Copies the current weights into the evaluation model."""
        with torch.no_grad():
            torch._foreach_copy_(*self._weights)

    @cached_property
    def _weights(self) -> tuple[list[Tensor], list[Tensor]]:
        """The weights of the evaluation model and of the trained one.

        They are the parameters themselves and not their `data`: an LSTM that is set up on a GPU
        moves its weights to other memory, where the parameters follow and their `data` would not.
        """
        copies, weights = (
            list(model.state_dict(keep_vars=True).values())
            for model in (self.setup.eval_model, self.model)
        )
        return copies, weights


def run_phases(run: Run, progress: Progress, optimizer: dict[str, Tensor]) -> None:
    """Trains until the end of the last phase.

    Args:
        run: The parts.
        progress: The progress of the run, updated in place.
        optimizer: The optimizer's state in the current phase; empty at its beginning.

    Raises:
        StoppedError: The run was asked to stop.
    """
    if run.compiled:
        # Compilations by earlier runs of this process would count towards this one's shapes.
        torch.compiler.reset()
    while progress.phase < len(run.setup.phases):
        if not progress.begun and progress.phase_best is not None:
            # A phase starts from the best model of the one before.
            run.checkpointer.wait()
            run.fabric.barrier()  # the first process has written that model by now
            best = run.checkpointer.phase_folder(progress.phase_best.phase)
            run.model.load_state_dict(run.task.load(best))
        run.refresh()
        phase = run.setup.phases[progress.phase]()
        _run_phase(run, phase, progress, optimizer)
        optimizer = {}
        progress.epochs_before += progress.epoch
        progress.phase, progress.begun, progress.epoch = progress.phase + 1, False, 0


def _run_phase(run: Run, phase: Phase, progress: Progress, state: dict[str, Tensor]) -> None:
    config = phase.config
    run.model.train()
    optimizer = build_optimizer(
        run.model,
        run.fabric.device,
        weight_decay=config.weight_decay,
        slow=run.setup.slow,
        slow_lr_scale=run.setup.slow_lr_scale,
    )
    load_optimizer(optimizer, run.model, state)
    if run.compiled:
        torch._dynamo.config.recompile_limit = _MAX_SHAPES
        for part in phase.parts:
            part.compile(dynamic=False)
    module = run.fabric.setup_module(phase.module)
    plain = Step(run.fabric, module, optimizer, config)
    step: Step | CapturedStep = plain
    if run.compiled and run.fabric.world_size == 1:
        step = CapturedStep(plain, run.model, optimizer)

    def save() -> None:
        tensors = optimizer_tensors(optimizer, run.model)
        run.checkpointer.save(progress, run.model.state_dict(), tensors)

    if not progress.begun:
        progress.begun, progress.phase_best, progress.waited = True, None, 0
        if phase.uses_eval_model:
            _log_before(run, phase, module, progress)
        save()
        run.checkpointer.forget_epochs(save)
    while progress.epoch < config.epochs and not _is_out_of_patience(run, phase, progress):
        started = time.perf_counter()
        _run_epoch(run, phase, step, progress, save)
        _end_epoch(run, phase, progress, save, started)
    _try_average(run, phase, progress, save)


def _is_out_of_patience(run: Run, phase: Phase, progress: Progress) -> bool:
    """Whether the phase ends early."""
    patience = phase.config.patience
    if not patience or progress.waited < patience or progress.position:
        return False
    reason = f"no better {run.task.metric} for {progress.waited} epochs"
    run.log({"event": "stop", "reason": reason, "phase": phase.name, "epoch": progress.run_epoch})
    return True


def _run_epoch(
    run: Run, phase: Phase, step: Step | CapturedStep, progress: Progress, save: Callable[[], None]
) -> None:
    """Runs the remaining steps of an epoch."""
    if progress.position == phase.steps:
        return  # the run was stopped during validation
    config = run.config.runtime
    device = run.fabric.device
    meter = Meter(phase, progress, run.log, log_steps=config.log_steps, device=device)
    for batch in phase.batches(progress.run_epoch, progress.position):
        lr = learning_rate(
            phase.config.schedule,
            step=progress.epoch * phase.steps + progress.position,
            steps=phase.steps,
            epochs=phase.config.epochs,
        )
        if phase.uses_eval_model:
            run.refresh()
        inputs, more = phase.prepare(batch, progress.step)
        seed_dropout(run.fabric, run.config.seed, progress.step)
        sums = step(inputs, lr)
        progress.step, progress.position = progress.step + 1, progress.position + 1
        meter.add(torch.cat((sums, sum_over_processes(run.fabric, more))), lr)
        if progress.position == phase.steps:
            break  # the end of the epoch is saved after validation
        checked = run.data_check.is_done()
        if run.stop.is_set() or (checked and run.checkpointer.is_due()):
            run.data_check.wait()
            progress.sums = meter.epoch_sums()
            save()
            if run.stop.is_set():
                raise StoppedError
    progress.sums = meter.epoch_sums()


def _validate(run: Run, save: Callable[[], None]) -> dict[str, float]:
    """Validates the evaluation model; saves the state if the run is to stop meanwhile."""
    run.data_check.wait()
    try:
        return run.setup.validate()
    except StoppedError:
        save()
        raise


def _end_epoch(
    run: Run, phase: Phase, progress: Progress, save: Callable[[], None], started: float
) -> None:
    """Validates, keeps the best model, and saves the state."""
    run.refresh()
    numbers = phase.numbers(progress.sums)
    require_finite(run.model.state_dict(), progress.step)
    validation_start = time.perf_counter()
    metrics = _validate(run, save)
    seconds = time.perf_counter() - validation_start
    progress.epoch, progress.position, progress.sums = progress.epoch + 1, 0, []
    value = metrics[run.task.metric]
    best = Best(phase.name, progress.run_epoch, value, metrics)
    better = progress.phase_best is None or value > progress.phase_best.value
    progress.waited = 0 if better else progress.waited + 1
    run.checkpointer.keep_epoch(best.epoch, run.model.state_dict(), phase.config.average_epochs)
    if better:
        run.checkpointer.keep_best(progress, best, run.model, run.model.state_dict())
    run.log(
        {
            "event": "epoch",
            "phase": phase.name,
            "epoch": progress.run_epoch,
            "step": progress.step,
            **numbers,
            "metrics": metrics,
            "best": better,
            "seconds": time.perf_counter() - started,
            "validation_seconds": seconds,
        }
    )
    last = progress.epoch == phase.config.epochs
    if last or run.stop.is_set() or run.checkpointer.is_due():
        save()
    if run.stop.is_set():
        raise StoppedError


def _try_average(run: Run, phase: Phase, progress: Progress, save: Callable[[], None]) -> None:
    """Validates the average of the last epochs' weights, and keeps it if it is better."""
    run.fabric.barrier()  # the first process may still be writing them
    last = progress.run_epoch
    count = min(phase.config.average_epochs, progress.epoch)
    averaged = run.checkpointer.average_epochs(range(last - count + 1, last + 1))
    if averaged is None:
        return
    epochs, weights = averaged
    trained = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    run.model.load_state_dict(weights)
    run.refresh()
    run.model.load_state_dict(trained)
    metrics = _validate(run, save)
    value = metrics[run.task.metric]
    better = progress.phase_best is None or value > progress.phase_best.value
    if better:
        best = Best(phase.name, 0, value, metrics)
        run.checkpointer.keep_best(progress, best, run.model, weights)
    entry = {"event": "average", "phase": phase.name, "epochs": epochs}
    run.log({**entry, "metrics": metrics, "best": better})


@torch.no_grad()
def _log_before(run: Run, phase: Phase, module: nn.Module, progress: Progress) -> None:
    """Logs reward, length and entropy before the first step."""
    run.refresh()
    rows = []
    batches = phase.batches(progress.run_epoch, progress.position)
    for batch in islice(batches, _LOOK_BATCHES):
        inputs, more = phase.prepare(batch, 0)
        seed_dropout(run.fabric, run.config.seed, progress.step)
        sums = torch.stack([part.double() for part in module(**inputs)])
        rows.append(sum_over_processes(run.fabric, torch.cat((sums, more))))
    numbers = phase.numbers(torch.stack(rows).sum(0).tolist())
    del numbers["loss"]
    run.log({"event": "before", "phase": phase.name, "epoch": progress.run_epoch, **numbers})
