"""Puts a run together: processes, data, models, phases, and what was saved of it."""

import copy
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event

import torch
from lightning_fabric import Fabric

from ngsan.config import MODELS, TrainConfig
from ngsan.data.dataset import CaptionDataset
from ngsan.data.sampler import BatchSampler
from ngsan.models import Captioner
from ngsan.models.folder import WEIGHTS
from ngsan.models.photo import PhotoEncoder
from ngsan.train.feed import Feed, hold
from ngsan.train.folder import find_state, locked, restore_model, where_it_stands
from ngsan.train.keeping import LOG, Keeper, remove_epochs
from ngsan.train.log import Entry, JsonLines, TensorBoard
from ngsan.train.loop import Run, run_phases
from ngsan.train.machine import (
    StoppedError,
    build_fabric,
    device_name,
    half_of,
    is_of_processes,
    launched,
    loss_of,
    precision_of,
    short_attention,
    stop_on_signals,
)
from ngsan.train.phases import (
    CROSS_ENTROPY,
    SELF_CRITICAL,
    CrossEntropyPhase,
    Phase,
    SelfCriticalPhase,
)
from ngsan.train.progress import Progress, SettingsError, require_same, settings
from ngsan.train.self_critical import SelfCritical, build_reward, set_dropout
from ngsan.train.sources import build_model, open_data, set_vision
from ngsan.train.state import TrainingState
from ngsan.train.validation import Validation


class InterruptedRunError(Exception):
    """A run was stopped by a signal; its state is saved."""

    def __init__(self, number: int, *, first: bool = True) -> None:
        """Takes the signal's number and whether this is the first process of the run."""
        super().__init__(number)
        self.number, self.first = number, first


def train(
    config: TrainConfig,
    output: str | Path,
    *,
    resume: bool = False,
    listen: Callable[[Entry], None] = lambda entry: None,
    datasets: tuple[CaptionDataset, CaptionDataset] | None = None,
) -> None:
    """Trains a captioner: cross-entropy, then self-critical learning.

    Args:
        config: The run.
        output: Its folder: the best model, and beside it the log, the best model of each phase
            and the state from which an interrupted run goes on.
        resume: Whether to go on with the run that is in the folder, if there is one.
        listen: Told what happens, in the first process only; see `ngsan.train.log`.
        datasets: To learn from and to validate on, in the place of those that are configured.

    Raises:
        ValueError: The settings do not fit the data or the run that is there, or a loss or weight
            is no longer a number.
        OSError: Something could not be read or written.
        InterruptedRunError: The run was stopped by a signal.
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
            data = datasets or open_data(fabric, config, output, fresh=state is None)
            _train(fabric, config, output, data, state, tell, position, stop)
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


def _train(
    fabric: Fabric,
    config: TrainConfig,
    output: Path,
    data: tuple[CaptionDataset, CaptionDataset],
    state: TrainingState | None,
    tell: Callable[[Entry], None],
    position: Callable[[], int],
    stop: Event,
) -> None:
    learned, validated = data
    device = fabric.device
    if config.model.norm == "batch" and fabric.world_size > 1:
        raise ValueError(
            f"model.norm: batch would take its statistics from the images of one of "
            f"{fabric.world_size} processes; take instance, or one process"
        )
    precision = precision_of(config.machine, device.type)
    signatures = {"train": learned.signature, "validation": validated.signature}
    decisive = settings(config, precision, signatures)
    progress = Progress()
    if state is not None:
        require_same(state.progress["settings"], decisive, str(output))
        progress = Progress.from_values(state.progress["progress"])
    captioner = build_model(config, learned, fresh=state is None)
    if state is not None:
        captioner.load_state_dict(state.tensors["weights"])
    if progress.done:
        if fabric.is_global_zero:
            restore_model(config, output, learned.vocabulary, progress, captioner, tell)
            remove_epochs(output)
            _tell_end(progress, output, tell)
        return
    captioner.to(device)
    half = half_of(config.machine, device.type)
    writer = copy.deepcopy(captioner).eval().requires_grad_(False).to(half)
    compiled = config.machine.compile and device.type == "cuda"
    where = config.machine.data
    feed = Feed(
        learned,
        hold(learned, device, where, static=compiled),
        device,
        workers=config.machine.workers,
        static=compiled,
    )
    resident = hold(validated, device, where, static=True)
    keeper = Keeper(
        output,
        config,
        learned.vocabulary,
        decisive,
        writes=fabric.is_global_zero,
        log_position=position,
        on_save=lambda step, seconds: tell(
            {"event": "checkpoint", "step": step, "seconds": seconds}
        ),
    )
    run = Run(
        config=config,
        fabric=fabric,
        captioner=captioner,
        writer=writer,
        validation=Validation(writer, validated, resident, config.validation, fabric, stop),
        phases=_phases(config, fabric, captioner, writer, feed, compiled=compiled),
        keeper=keeper,
        compiled=compiled,
        stop=stop,
        listen=tell,
    )
    tell(_start(run, data, precision, None if state is None else progress.step))
    memory = {} if state is None else dict(state.tensors["optimizer"])
    with closing(keeper):
        run_phases(run, progress, memory)
        keeper.finish(progress)
    if fabric.is_global_zero:
        _tell_end(progress, output, tell)


def _phases(
    config: TrainConfig,
    fabric: Fabric,
    captioner: Captioner,
    writer: Captioner,
    feed: Feed,
    *,
    compiled: bool,
) -> list[Callable[[], Phase]]:
    """The phases of a run; what they need is made when their turn has come."""

    def cross_entropy() -> Phase:
        set_dropout(captioner, config.model.dropout)
        set_vision(captioner, config.vision, learns=True)
        capacity = None
        if compiled:
            sampler = BatchSampler(
                len(feed.dataset),
                config.cross_entropy.batch_size,
                seed=config.seed,
                world_size=fabric.world_size,
                empty_shares=True,
            )
            capacity = feed.most_targets(sampler, config.cross_entropy.epochs)
        return CrossEntropyPhase(
            captioner, config.cross_entropy, _described(feed, captioner, writer), capacity=capacity
        )

    def self_critical() -> Phase:
        chosen = config.self_critical
        set_dropout(captioner, chosen.dropout)
        set_vision(captioner, config.vision, learns=False)
        method = SelfCritical(
            writer,
            build_reward(feed.dataset, chosen, fabric.device),
            feed.dataset.vocabulary,
            samples=chosen.samples,
            baseline=chosen.baseline,
            temperature=chosen.temperature,
            unknown=chosen.unknown,
            longest=config.data.longest,
            seed=config.seed,
        )
        return SelfCriticalPhase(captioner, chosen, _described(feed, captioner, writer), method)

    made: list[Callable[[], Phase]] = []
    if config.cross_entropy.epochs:
        made.append(cross_entropy)
    if config.self_critical.epochs:
        made.append(self_critical)
    return made


def _described(feed: Feed, captioner: Captioner, writer: Captioner) -> Feed:
    """What a phase learns from: cells where the backbone sees the same in every epoch."""
    encoder, its_copy = captioner.encoder, writer.encoder
    if not (isinstance(encoder, PhotoEncoder) and isinstance(its_copy, PhotoEncoder)):
        return feed
    if not encoder.frozen or encoder.augment is not None:
        return feed
    return feed.described(its_copy.backbone)


def _listeners(
    config: TrainConfig,
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


def _start(
    run: Run,
    data: tuple[CaptionDataset, CaptionDataset],
    precision: str,
    resumed_at: int | None,
) -> Entry:
    config, (images, validated) = run.config, (len(split) for split in data)
    names = {tuple(keys.values()): name for name, keys in MODELS.items()}
    phases = ((CROSS_ENTROPY, config.cross_entropy), (SELF_CRITICAL, config.self_critical))
    return {
        "event": "start",
        "model": names.get((config.model.norm, config.model.geometry), "captioner"),
        "parameters": sum(part.numel() for part in run.captioner.parameters()),
        "images": images,
        "validation_images": validated,
        "device": device_name(run.fabric.device),
        "processes": run.fabric.world_size,
        "precision": precision,
        "resumed_at": resumed_at,
        "phases": [
            {
                "phase": name,
                "epochs": phase.epochs,
                "steps": -(-images // phase.batch_size),
            }
            for name, phase in phases
            if phase.epochs
        ],
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
