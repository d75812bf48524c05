"""The loop: phases, epochs, steps.

Everything that a step depends on is explicit: the weights, the optimizer's memory and `Progress`.
The order of the images, dropout and sampled captions follow from the seed and the number of the
step. So a run that was stopped anywhere and taken up again ends as if it had never been stopped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from threading import Event
from typing import cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.data.sampler import random_keys
from ngsan.train.keeping import Keeper, require_finite
from ngsan.train.log import Entry
from ngsan.train.machine import StoppedError
from ngsan.train.meter import Meter
from ngsan.train.progress import Best, Progress
from ngsan.train.schedule import rate_at
from ngsan.train.step import (
    CapturedStep,
    Clip,
    Step,
    build_optimizer,
    load_optimizer,
    optimizer_tensors,
)
from ngsan.train.task import Lesson, Phase, RunConfig, Task

Listen = Callable[[Entry], None]

_FIRST_LOOK = 4
"""Batches that are looked at before the first step of self-critical learning."""

_MOST_SHAPES = 64
"""Shapes of batches that a step is compiled for; others would be slow."""


@dataclass(frozen=True)
class Run:
    """The parts of a run; none of them changes but the weights."""

    config: RunConfig
    fabric: Fabric
    task: Task
    model: nn.Module
    lesson: Lesson
    keeper: Keeper
    compiled: bool
    stop: Event
    """Set to ask for a stop after the present step."""

    listen: Listen

    def refresh(self) -> None:
        """Gives the writer the weights of the moment."""
        with torch.no_grad():
            torch._foreach_copy_(*self._weights)

    @cached_property
    def _weights(self) -> tuple[list[Tensor], list[Tensor]]:
        """The writer's weights and those that are trained.

        They are the parameters themselves and not their `data`: an LSTM that is set up on a GPU
        moves its weights to other memory, where the parameters follow and their `data` would not.
        """
        theirs, ours = (
            list(model.state_dict(keep_vars=True).values())
            for model in (self.lesson.writer, self.model)
        )
        return theirs, ours


def run_phases(run: Run, progress: Progress, memory: dict[str, Tensor]) -> None:
    """Trains until the end of the last phase.

    Args:
        run: The parts.
        progress: Where the run stands; it is kept up to date.
        memory: What the optimizer remembers of the phase that the run is in; empty at its
            beginning.

    Raises:
        StoppedError: The run was asked to stop.
    """
    if run.compiled:
        # What earlier runs of this process have compiled would count among this one's shapes.
        torch.compiler.reset()
    while progress.phase < len(run.lesson.phases):
        _take_best(run, progress)
        phase = run.lesson.phases[progress.phase]()
        _run_phase(run, phase, progress, memory)
        memory = {}
        progress.epochs_before += progress.epoch
        progress.phase, progress.begun, progress.epoch = progress.phase + 1, False, 0


def _take_best(run: Run, progress: Progress) -> None:
    """Lets a phase begin with the best model of the one before."""
    if not progress.begun and progress.phase_best is not None:
        run.keeper.wait()
        run.fabric.barrier()  # the phase before has left its best model by now
        best = run.keeper.phase_folder(progress.phase_best.phase)
        run.model.load_state_dict(run.task.load(best))
    run.refresh()


def _run_phase(run: Run, phase: Phase, progress: Progress, memory: dict[str, Tensor]) -> None:
    config = phase.config
    run.model.train()
    device = run.fabric.device
    optimizer = build_optimizer(
        run.model,
        device,
        weight_decay=config.weight_decay,
        slow=run.lesson.slow,
        slow_rate=run.lesson.slow_rate,
    )
    load_optimizer(optimizer, run.model, memory)
    if run.compiled:
        torch._dynamo.config.recompile_limit = _MOST_SHAPES
        for part in phase.parts:
            part.compile(dynamic=False)
    module = run.fabric.setup_module(phase.module)
    plain = Step(run.fabric, module, optimizer, Clip(config.clip_value, config.clip_norm))
    step: Step | CapturedStep = plain
    if run.compiled and run.fabric.world_size == 1:
        step = CapturedStep(plain, run.model, optimizer)

    def save() -> None:
        run.keeper.save(progress, run.model.state_dict(), optimizer_tensors(optimizer, run.model))

    if not progress.begun:
        progress.begun, progress.phase_best, progress.waited = True, None, 0
        if phase.uses_writer:
            _look_before(run, phase, module, progress)
        save()
        run.keeper.forget_epochs(save)
    while progress.epoch < config.epochs and not _is_enough(run, phase, progress):
        started = time.perf_counter()
        _run_epoch(run, phase, step, progress, save)
        _end_epoch(run, phase, progress, save, started)
    _average(run, phase, progress, save)


def _is_enough(run: Run, phase: Phase, progress: Progress) -> bool:
    """Whether the phase ends early."""
    patience = phase.config.patience
    enough = bool(patience) and progress.waited >= patience and not progress.position
    if enough:
        metric = run.task.metric
        run.listen(
            {
                "event": "stop",
                "reason": f"no better {metric} for {progress.waited} epochs",
                "phase": phase.name,
                "epoch": progress.run_epoch,
            }
        )
    return enough


def _run_epoch(
    run: Run, phase: Phase, step: Step | CapturedStep, progress: Progress, save: Callable[[], None]
) -> None:
    """The steps of an epoch that are left."""
    if progress.position == phase.steps:
        return  # the run was stopped while it validated
    meter = Meter(
        phase,
        progress,
        run.listen,
        log_steps=run.config.machine.log_steps,
        device=run.fabric.device,
    )
    for batch in phase.batches(progress.run_epoch, progress.position):
        rate = rate_at(
            phase.config.rate,
            step=progress.epoch * phase.steps + progress.position,
            steps=phase.steps,
            epochs=phase.config.epochs,
        )
        if phase.uses_writer:
            run.refresh()
        inputs, more = phase.prepare(batch, progress.step)
        seed_dropout(run.fabric, run.config.seed, progress.step)
        sums = step(inputs, rate)
        progress.step, progress.position = progress.step + 1, progress.position + 1
        meter.add(torch.cat((sums, _over_processes(run.fabric, more))), rate)
        if progress.position == phase.steps:
            break  # the epoch's end is saved when it has been validated
        if run.stop.is_set() or run.keeper.is_time():
            progress.sums = meter.epoch_sums()
            save()
            if run.stop.is_set():
                raise StoppedError
    progress.sums = meter.epoch_sums()


def _validate(run: Run, save: Callable[[], None]) -> tuple[dict[str, float], float]:
    """Validates with the writer's weights; saves the state if the run is to stop meanwhile."""
    try:
        return run.lesson.validate()
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
    metrics, seconds = _validate(run, save)
    progress.epoch, progress.position, progress.sums = progress.epoch + 1, 0, []
    value = metrics[run.task.metric]
    here = Best(phase.name, progress.run_epoch, value, metrics)
    better = progress.phase_best is None or value > progress.phase_best.value
    progress.waited = 0 if better else progress.waited + 1
    run.keeper.keep_epoch(here.epoch, run.model.state_dict(), phase.config.average)
    if better:
        run.keeper.keep_best(progress, here, run.model, run.model.state_dict())
    run.listen(
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
    if last or run.stop.is_set() or run.keeper.is_time():
        save()
    if run.stop.is_set():
        raise StoppedError


def _average(run: Run, phase: Phase, progress: Progress, save: Callable[[], None]) -> None:
    """Tries the average of the last epochs' weights, and keeps it if it is better."""
    run.fabric.barrier()  # the first process may still be writing them
    last = progress.run_epoch
    count = min(phase.config.average, progress.epoch)
    averaged = run.keeper.average_epochs(range(last - count + 1, last + 1))
    if averaged is None:
        return
    epochs, weights = averaged
    trained = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    run.model.load_state_dict(weights)
    run.refresh()
    run.model.load_state_dict(trained)
    metrics, _ = _validate(run, save)
    value = metrics[run.task.metric]
    better = progress.phase_best is None or value > progress.phase_best.value
    if better:
        here = Best(phase.name, 0, value, metrics)
        run.keeper.keep_best(progress, here, run.model, weights)
    run.listen(
        {
            "event": "average",
            "phase": phase.name,
            "epochs": epochs,
            "metrics": metrics,
            "best": better,
        }
    )


@torch.no_grad()
def _look_before(run: Run, phase: Phase, module: nn.Module, progress: Progress) -> None:
    """Reports reward, length and entropy before the first step."""
    run.refresh()
    rows = []
    batches = phase.batches(progress.run_epoch, progress.position)
    for batch in islice(batches, _FIRST_LOOK):
        inputs, more = phase.prepare(batch, 0)
        seed_dropout(run.fabric, run.config.seed, progress.step)
        sums = torch.stack([part.double() for part in module(**inputs)])
        rows.append(_over_processes(run.fabric, torch.cat((sums, more))))
    numbers = phase.numbers(torch.stack(rows).sum(0).tolist())
    del numbers["loss"]
    run.listen({"event": "before", "phase": phase.name, "epoch": progress.run_epoch, **numbers})


def seed_dropout(fabric: Fabric, seed: int, step: int) -> None:
    """Makes the random numbers of a step depend on nothing but its number and the process."""
    number = int(random_keys(1, seed, step, fabric.global_rank)[0]) >> 1
    if fabric.device.type == "cuda":
        torch.cuda.default_generators[fabric.device.index or 0].manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


def _over_processes(fabric: Fabric, sums: Tensor) -> Tensor:
    if fabric.world_size == 1 or not sums.numel():
        return sums
    return cast(Tensor, fabric.all_reduce(sums, reduce_op="sum"))
