"""Puts a run together: processes, data, models, phases, and what was saved of it."""

import copy
import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import torch
from lightning_fabric import Fabric

from ngsan.config import MODELS, SceneConfig, TrainConfig
from ngsan.data.captions import VOCABULARY
from ngsan.data.dataset import CaptionDataset
from ngsan.data.lock import folder_lock
from ngsan.data.sampler import BatchSampler
from ngsan.data.synthetic import scene_vocabulary
from ngsan.data.synthetic.folder import sample_splits, write_scene_folder
from ngsan.models import Captioner, build_captioner
from ngsan.models.saved import WEIGHTS, link_model, load_captioner
from ngsan.train.feed import Feed, hold
from ngsan.train.keeping import LOG, STATES, Keeper
from ngsan.train.log import JsonLines, TensorBoard
from ngsan.train.loop import Run, StoppedError, run_phases
from ngsan.train.machine import (
    build_fabric,
    device_name,
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
from ngsan.train.progress import Progress, require_same, settings
from ngsan.train.self_critical import SelfCritical, build_reward, set_dropout
from ngsan.train.state import TrainingState, read_state
from ngsan.train.validation import Validation

Entry = dict[str, Any]
_SCENES = "scenes"


class InterruptedRunError(Exception):
    """A run was stopped by a signal; its state is saved."""

    def __init__(self, number: int) -> None:
        """Takes the signal's number."""
        super().__init__(number)
        self.number = number


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
    fabric.launch()
    if config.machine.threads:
        torch.set_num_threads(config.machine.threads)
    output = Path(output)
    first = fabric.is_global_zero
    with ExitStack() as stack:
        if first:
            stack.enter_context(folder_lock(output / ".lock", "training run in"))
        state = _find_state(output, resume=resume, listen=listen if first else _unheard)
        fabric.barrier()
        stop = Event()
        received = stack.enter_context(stop_on_signals(stop, first=first))
        stack.enter_context(short_attention())
        tell, position = _listeners(config, output, state, listen, stack, first=first)
        try:
            data = datasets or _open_data(fabric, config, output)
            _train(fabric, config, output, data, state, tell, position, stop)
        except StoppedError:
            raise InterruptedRunError(received[-1]) from None
        except (ValueError, OSError) as error:
            raise type(error)(f"{error}\n{_where_it_stands(output)}") from error
        except RuntimeError:
            if first or not received:
                raise
            # The first process has gone, as it was told to.
            raise InterruptedRunError(received[-1]) from None


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
    precision = precision_of(config.machine, device.type)
    signatures = {"train": learned.signature, "validation": validated.signature}
    decisive = settings(config, precision, signatures)
    progress = Progress()
    if state is not None:
        require_same(state.progress["settings"], decisive, str(output))
        progress = Progress.from_values(state.progress["progress"])
    captioner = _build(config, learned)
    if state is not None:
        captioner.load_state_dict(state.tensors["weights"])
    if progress.done:
        _finish(progress, output, tell, first=fabric.is_global_zero)
        return
    captioner.to(device)
    half = torch.float16 if precision == "bfloat16" and device.type == "cuda" else torch.float32
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
        feed=feed,
        validation=Validation(writer, validated, resident, config.validation, fabric),
        phases=_phases(config, fabric, captioner, writer, feed, compiled=compiled),
        keeper=keeper,
        compiled=compiled,
        stop=stop,
        listen=tell,
    )
    tell(_start(run, validated, precision, None if state is None else progress.step))
    memory = {} if state is None else dict(state.tensors["optimizer"])
    run_phases(run, progress, memory)
    progress.done = True
    keeper.save(progress, captioner.state_dict(), {})
    _finish(progress, output, tell, first=fabric.is_global_zero)


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
        capacity = None
        if compiled:
            sampler = BatchSampler(
                len(feed.dataset),
                config.cross_entropy.batch_size,
                seed=config.seed,
                world_size=fabric.world_size,
            )
            capacity = feed.most_targets(sampler, config.cross_entropy.epochs)
        return CrossEntropyPhase(captioner, config.cross_entropy, full=feed.full, capacity=capacity)

    def self_critical() -> Phase:
        chosen = config.self_critical
        set_dropout(captioner, chosen.dropout)
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
        return SelfCriticalPhase(captioner, chosen, method, full=feed.full)

    made: list[Callable[[], Phase]] = []
    if config.cross_entropy.epochs:
        made.append(cross_entropy)
    if config.self_critical.epochs:
        made.append(self_critical)
    return made


def _open_data(
    fabric: Fabric, config: TrainConfig, output: Path
) -> tuple[CaptionDataset, CaptionDataset]:
    """The splits to learn from and to validate on."""
    data = config.data
    folder = Path(data.folder)
    if data.scenes is not None:
        folder = output / _SCENES
        if fabric.is_global_zero and not (folder / VOCABULARY).is_file():
            _write_scenes(folder, data.scenes, data.train, data.validation)
        fabric.barrier()
    elif not data.folder:
        raise ValueError(
            "data.folder: say which dataset to learn from, as ngsan data makes it: "
            "--data.folder DIR"
        )
    learned, validated = (
        CaptionDataset(
            folder,
            split,
            longest=data.longest,
            captions_per_image=data.captions_per_image or None,
            seed=config.seed,
            dtype=torch.float16 if fabric.device.type == "cuda" else torch.float32,
            skip_missing=data.skip_missing,
        )
        for split in (data.train, data.validation)
    )
    return learned, validated


def _write_scenes(folder: Path, scenes: SceneConfig, train: str, validation: str) -> None:
    sizes = {train: scenes.train, validation: scenes.test}
    batches = sample_splits(sizes, fewest=scenes.fewest, most=scenes.most, seed=scenes.seed)
    write_scene_folder(folder, batches, scene_vocabulary())


def _build(config: TrainConfig, dataset: CaptionDataset) -> Captioner:
    """The model with the weights that it begins with."""
    model = config.model
    for key, wanted in (
        ("vocab_size", len(dataset.vocabulary)),
        ("feature_dim", dataset.store.feature_dim),
    ):
        if getattr(model, key) != wanted:
            raise ValueError(
                f"model.{key}: {getattr(model, key)}, but {dataset.folder} has {wanted}: "
                f"--model.{key} {wanted}"
            )
    torch.manual_seed(config.seed)
    captioner = build_captioner(model)
    needs_boxes = captioner.encoder.relative or captioner.encoder.absolute is not None
    if needs_boxes and not dataset.store.has_boxes:
        raise ValueError(
            f"model.geometry: {model.geometry} needs boxes, and the features of {dataset.folder} "
            "have none: --model.geometry none"
        )
    if config.initial:
        given, its_config, vocabulary = load_captioner(config.initial)
        dataset.require_vocabulary(vocabulary)
        if its_config != model:
            changed = [
                item.name
                for item in dataclasses.fields(model)
                if getattr(model, item.name) != getattr(its_config, item.name)
                and item.name not in ("dropout", "backend")
            ]
            if changed:
                raise ValueError(
                    f"initial: {config.initial} is of another shape than the model: "
                    f"{', '.join(f'model.{name}' for name in changed)}"
                )
        captioner.load_state_dict(given.float().state_dict())
    return captioner


def _find_state(
    output: Path, *, resume: bool, listen: Callable[[Entry], None]
) -> TrainingState | None:
    """What was saved of the run in a folder."""

    def on_damage(text: str) -> None:
        listen({"event": "note", "text": text})

    there = (output / STATES).is_dir() and any((output / STATES).iterdir())
    if resume:
        state = read_state(output / STATES, on_damage)
        if state is None:
            listen({"event": "note", "text": f"{output} has no saved state yet: from the start"})
        return state
    if there or (output / WEIGHTS).exists():
        raise ValueError(
            f"{output} holds a run already: --resume goes on with it; or give another --output"
        )
    return None


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
    listeners: list[Callable[[Entry], None]] = [log.write, listen]
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


def _start(run: Run, validated: CaptionDataset, precision: str, resumed_at: int | None) -> Entry:
    config, images = run.config, len(run.feed.dataset)
    names = {tuple(keys.values()): name for name, keys in MODELS.items()}
    phases = ((CROSS_ENTROPY, config.cross_entropy), (SELF_CRITICAL, config.self_critical))
    return {
        "event": "start",
        "model": names.get((config.model.norm, config.model.geometry), "captioner"),
        "parameters": sum(part.numel() for part in run.captioner.parameters()),
        "images": images,
        "validation_images": len(validated),
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


def _finish(
    progress: Progress, output: Path, tell: Callable[[Entry], None], *, first: bool
) -> None:
    """Makes sure that the best model is in its place, and tells the end."""
    best = progress.best
    if not first or best is None:
        return
    try:
        load_captioner(output)
    except ValueError as error:
        tell({"event": "note", "text": f"{error}; taking it from {output / best.phase} again"})
        load_captioner(output / best.phase)
        link_model(output / best.phase, output)
    tell(
        {
            "event": "end",
            "best": {"phase": best.phase, "epoch": best.epoch, "metrics": best.metrics},
            "seconds": progress.seconds,
            "model": str(output / WEIGHTS),
        }
    )


def _where_it_stands(output: Path) -> str:
    """What is left of a run that failed."""
    try:
        state = read_state(output / STATES, lambda text: None)
    except ValueError as error:
        return str(error)
    if state is None:
        return f"nothing had been saved in {output} yet"
    step = state.progress["progress"]["step"]
    return f"the state of step {step} is whole in {output}: --resume goes on from there"
