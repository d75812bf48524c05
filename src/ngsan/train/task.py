"""What a training run consists of: its tasks, its phases and its progress.

A task opens the data, builds the model, and sets its training up: the phases and the validation.
Everything else (processes, steps, checkpoints, averages, the log) is the same for all tasks.
"""

import dataclasses
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn

from ngsan.config import AnsweringConfig, PhaseConfig, TrainConfig, TranslationConfig
from ngsan.data.shards import PARTIAL
from ngsan.data.store import FeatureStore
from ngsan.models.checkpoint import Companion, read_checkpoint, save_model
from ngsan.train.step import Inputs

RunConfig = TrainConfig | TranslationConfig | AnsweringConfig


@dataclass
class Best:
    """The best model so far."""

    phase: str

    epoch: int
    """Epoch of the run; 0 for averaged weights."""

    value: float
    """Its value in the metric that selects the best model."""

    metrics: dict[str, float]
    """All its metrics."""


@dataclass
class Progress:
    """All that changes in a run besides the weights and the optimizer's state."""

    phase: int = 0
    """Index of the phase."""

    begun: bool = False
    """Whether the weights are already those that the phase starts with."""

    epoch: int = 0
    """Epochs of the phase so far."""

    position: int = 0
    """Steps of the epoch so far."""

    step: int = 0
    """Steps of the run so far."""

    epochs_before: int = 0
    """Epochs of the earlier phases."""

    sums: list[float] = field(default_factory=list)
    """The sums of the epoch's steps."""

    best: Best | None = None
    """Of the whole run."""

    phase_best: Best | None = None
    """Of the phase."""

    waited: int = 0
    """Epochs since the phase's best."""

    seconds: float = 0.0
    """Duration of the run."""

    log: int = 0
    """Bytes of the log."""

    done: bool = False
    """Whether the run has ended."""

    @property
    def run_epoch(self) -> int:
        """Epochs of the run so far."""
        return self.epochs_before + self.epoch

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Progress":
        """Restores what `asdict` returned; a `ValueError` if the keys are not those of a run."""
        try:
            bests = {
                name: None if values[name] is None else Best(**values[name])
                for name in ("best", "phase_best")
            }
            return cls(**{**values, **bests})
        except (KeyError, TypeError) as error:
            raise ValueError(f"the saved progress is of another version: {error}") from error


class Phase(ABC):
    """A phase of training."""

    name: str
    unit: str
    """What is counted for the speed in the log, such as "images"."""

    uses_eval_model = False
    """Whether every step needs the current weights in `TrainingSetup.eval_model`."""

    def __init__(self, config: PhaseConfig, module: nn.Module, size: int) -> None:
        """Holds the parts.

        Args:
            config: The phase.
            module: What is trained; returns sums over the batch, see `Step`.
            size: Units of the training data.
        """
        self.config, self.module, self.size = config, module, size
        self.steps = math.ceil(size / config.batch_size)
        """Steps per epoch."""

    @property
    def parts(self) -> Sequence[nn.Module]:
        """The parts of the module that are compiled, each by itself.

        Compiling everything at once is fastest; where batches have many shapes, equal layers are
        compiled once for all of them.
        """
        return [self.module]

    @abstractmethod
    def batches(self, epoch: int, position: int) -> Iterator[Any]:
        """This process's share of the batches of an epoch, from a position on.

        They depend only on the seed, the epoch and the position.
        """

    def done(self, position: int) -> int:
        """The number of units in the first steps of an epoch, over all processes."""
        return min(self.size, position * self.config.batch_size)

    @abstractmethod
    def prepare(self, batch: Any, step: int) -> tuple[Inputs, Tensor]:
        """The module's inputs for a batch, and further sums to report, (k,).

        Args:
            batch: From `batches`.
            step: Steps of the run so far.
        """

    def numbers(self, sums: Sequence[float]) -> dict[str, float]:
        """The values to log, from the sums of the module followed by those of `prepare`."""
        total, count = sums
        return {"loss": total / max(1.0, count)}


@dataclass(frozen=True)
class TrainingSetup:
    """A model on its device, ready to be trained."""

    eval_model: nn.Module
    """A copy of the model in evaluation mode; the loop copies the current weights into it before
    it is used."""

    phases: Sequence[Callable[[], Phase]]
    """Each builds its phase when it starts."""

    validate: Callable[[], dict[str, float]]
    """Scores `eval_model`: its metrics, the same in every process. Raises `StoppedError` if the run
    is to stop meanwhile."""

    slow: nn.Module | None = None
    """A part of the model with its own learning rate."""

    slow_lr_scale: float = 1.0
    """That rate as a share of the others'."""


class Task(ABC):
    """What differs between the tasks of training."""

    free: Sequence[str] = ("data.folder", "validation.batch_size")
    """Dotted keys of the configuration that may change when a run is resumed."""

    config: RunConfig
    """The run; its model has the sizes of the training data."""

    companions: Mapping[str, Companion]
    """The vocabularies that are saved with the model."""

    features = ""
    """What made the features of the training data, if the model is of regions."""

    def __init__(self, fabric: Fabric, train: Any, val: Any, metric: str) -> None:
        """Holds the parts.

        Args:
            fabric: The processes.
            train: The training split, with a `signature`.
            val: The validation split, with a `signature`.
            metric: The metric that selects the best model.
        """
        self.fabric, self.train, self.val, self.metric = fabric, train, val, metric
        self.signatures = {"train": train.signature, "validation": val.signature}
        """They identify the data instead of the folders, which may move."""

    def stores(self) -> list[FeatureStore]:
        """The features that are read from files."""
        found = [getattr(split, "store", None) for split in (self.train, self.val)]
        found += [getattr(store, "regions", None) for store in found]  # boxes beside photographs
        return [store for store in found if isinstance(store, FeatureStore)]

    @abstractmethod
    def build(self, *, fresh: bool) -> nn.Module:
        """Builds the model, on the CPU; with its initial weights if the run is `fresh`."""

    @abstractmethod
    def setup(self, model: nn.Module, stop: Event) -> TrainingSetup:
        """Prepares the training of a model of `build` that is on its device.

        Args:
            model: The model.
            stop: Set to ask for a stop.
        """

    def save(
        self,
        folder: Path,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        metrics: Mapping[str, Any],
    ) -> None:
        """Writes the model with these weights as a model folder."""
        config = self.config
        save_model(
            folder,
            model,
            config.model,
            self.companions,
            run=config,
            metrics=metrics,
            tensors=weights,
            features=self.features,
        )

    def load(self, folder: Path) -> dict[str, Tensor]:
        """The weights that `save` wrote; a `ValueError` if they are damaged or missing."""
        return read_checkpoint(folder).tensors

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the log says about the task when the run starts."""


def check_norm(norm: str, processes: int, unit: str) -> None:
    """Rejects batch norm when a batch is shared by several processes.

    Args:
        norm: The norm of the model's attention.
        processes: The number of processes.
        unit: What a batch consists of, such as "images".

    Raises:
        ValueError: The statistics would be those of one process's share.
    """
    if norm == "batch" and processes > 1:
        raise ValueError(
            f"model.norm: batch would use the statistics of the {unit} of one of {processes} "
            "processes; use instance, or one process"
        )


def check_initial(folder: str, given: Any, model: Any, free: Sequence[str]) -> None:
    """Rejects a model of another shape to initialise from.

    Args:
        folder: The folder of the given model.
        given: Its configuration.
        model: The configuration of the model to train.
        free: The keys that may differ, as they have no weights.

    Raises:
        ValueError: Something else differs; names all that does.
    """
    changed = [
        f"model.{item.name}"
        for item in dataclasses.fields(model)
        if getattr(model, item.name) != getattr(given, item.name) and item.name not in free
    ]
    if changed:
        raise ValueError(
            f"init_from: {folder} is of another shape than the model: {', '.join(changed)}"
        )


def data_folder(data: Any, scenes: Path | None, command: str) -> Path:
    """The folder of a run's data.

    Args:
        data: The section `data` of the run.
        scenes: The folder of the built-in scenes, if the run uses them.
        command: The command that makes such a dataset.
    """
    if scenes is None and not data.folder:
        raise ValueError(f"data.folder: pass the dataset, made by {command}: --data DIR")
    folder = scenes or Path(data.folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"data.folder: no such folder: {folder}")
    return folder


def place_scenes(
    fabric: Fabric, output: Path, *, last: str, fresh: bool, write: Callable[[Path], None]
) -> Path:
    """The folder of a run's built-in scenes; the first process writes them if they are missing.

    Args:
        fabric: The processes.
        output: The run's folder.
        last: The file that is written last; without it the folder is incomplete.
        fresh: Whether the run is new: existing scenes may be another run's.
        write: Writes the scenes into a folder.
    """
    folder = output / "scenes"
    if fabric.is_global_zero and (fresh or not (folder / last).is_file()):
        # What a kill left half written would be continued, and has some of the scenes already.
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        write(folder)
    fabric.barrier()
    return folder
