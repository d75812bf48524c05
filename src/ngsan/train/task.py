"""What a run teaches, as the loop sees it: captions, translations or answers.

A task says what is learned from, builds the model, and makes its lesson: the phases of training
and the validation. Everything else (processes, steps, states on the disk, averages, the log) is the
same for all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from torch import Tensor, nn

from ngsan.config import MachineConfig, PhaseConfig
from ngsan.train.log import Entry
from ngsan.train.step import Inputs


class RunConfig(Protocol):
    """What the configurations of all runs have."""

    @property
    def machine(self) -> MachineConfig:
        """Where the training runs."""

    @property
    def seed(self) -> int:
        """Seed of all that is random."""


class Phase(Protocol):
    """What the loop needs to know of a phase."""

    name: str
    config: PhaseConfig
    module: nn.Module
    """What is trained: its result is summed over the batch, see `Step`."""

    uses_writer: bool
    """Whether the writer's weights must be those of the moment in every step."""

    unit: str
    """What is counted when speed is told, such as "images"."""

    steps: int
    """Of an epoch."""

    @property
    def parts(self) -> Sequence[nn.Module]:
        """What of the module is compiled, each part by itself.

        All of it at once is fastest; where batches come in many shapes, layers that are alike are
        compiled once for all of them.
        """

    def batches(self, epoch: int, position: int) -> Iterator[Any]:
        """The batches of an epoch of the run, from a position on: this process's share of them.

        They follow from the seed, the epoch and the position alone.
        """

    def done(self, position: int) -> int:
        """How many units the first steps of an epoch take in, all processes together."""

    def prepare(self, batch: Any, step: int) -> tuple[Inputs, Tensor]:
        """What the module takes of a batch, and further sums to be reported, (k,).

        Args:
            batch: Of `batches`.
            step: Steps of the run that are done.
        """

    def numbers(self, sums: Sequence[float]) -> dict[str, float]:
        """What sums of the module, followed by those of `prepare`, say."""


@dataclass(frozen=True)
class Lesson:
    """A model that is ready to learn."""

    writer: nn.Module
    """A copy of the model in evaluation mode; the loop gives it the weights of the moment before
    it is used."""

    phases: Sequence[Callable[[], Phase]]
    """Each makes its phase when its turn has come."""

    validate: Callable[[], tuple[dict[str, float], float]]
    """Scores the writer: its metrics, the same in every process, and the seconds it took. Raises
    `StoppedError` if the run is to stop meanwhile."""

    slow: nn.Module | None = None
    """A part of the model that has a learning rate of its own."""

    slow_rate: float = 1.0
    """Its share of the rate."""


class Task(Protocol):
    """What a run teaches."""

    metric: str
    """What the best model is best in."""

    signatures: Mapping[str, str]
    """Of what is learned from; they stand for the folders, which may move."""

    free: Sequence[str]
    """Dotted keys of the configuration that may change when a run goes on."""

    @property
    def config(self) -> RunConfig:
        """The run; its model has the sizes that what is learned from decides."""

    def build(self, *, fresh: bool) -> nn.Module:
        """The model, on the CPU.

        Args:
            fresh: Whether the run has just begun: then with the weights that it is to begin with.

        Raises:
            ValueError: It does not fit what is learned from.
        """

    def teach(self, model: nn.Module, stop: Event) -> Lesson:
        """Makes a model, which is on the device by now, ready to learn.

        Args:
            model: Of `build`.
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

    def load(self, folder: Path) -> dict[str, Tensor]:
        """The weights that `save` wrote.

        Raises:
            ValueError: They are damaged or missing.
        """

    def about(self, model: nn.Module) -> Entry:
        """What the log says of the task when the run starts."""
