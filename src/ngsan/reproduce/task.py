"""What the tables need to know of a task: captions, translations or answers.

All else (the ledger, the making of runs, reports, figures) is the same for all of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ngsan.metrics.bootstrap import Floats
from ngsan.reproduce.ledger import Written


@dataclass(frozen=True)
class Fitted:
    """A run with the sizes of its data, and what the data are."""

    config: Any
    """The run."""

    data: dict[str, str]
    """What is learned from, as keys of runs know it: the same on every machine."""

    content: dict[str, str]
    """Signatures of the same, to the byte."""

    measured: dict[str, str] = field(default_factory=dict)
    """What models are measured on that `data` does not cover, such as the test split if there is
    one, known in the same way."""


@dataclass(frozen=True)
class Measured:
    """How good a finished model is on a split."""

    metrics: dict[str, float]
    """Scores by name."""

    written: Written
    """What it wrote."""


def measured_splits(validation: str, known: Collection[str]) -> list[str]:
    """The splits that finished models are measured on.

    Args:
        validation: The split that runs are validated on, which comes first.
        known: The splits of the data; "test" is measured if it is among them.
    """
    return list(dict.fromkeys([validation, *(["test"] if "test" in known else [])]))


class TableTask(Protocol):
    """A task that tables are about."""

    phases: Sequence[str]
    """The phases of its runs, in their order."""

    unit: str
    """What a metric is taken over: images, sentences or questions."""

    sizes: Sequence[str]
    """Keys of the model's configuration that `fit` takes from the data."""

    def free(self, phase: str) -> Sequence[str]:
        """Dotted keys of a run that decide nothing of what is measured after a phase."""

    def fit(self, config: Any, models: Sequence[Any] = ()) -> Fitted:
        """Gives a run the sizes of its data.

        Args:
            config: The run.
            models: Configurations of all models that are to learn, which may need less of the
                data than the run's own; none for the run's own.

        Raises:
            ValueError: There are no such data, or they are damaged.
        """

    def until(self, config: Any, phase: str) -> Any:
        """The run, up to a phase.

        Raises:
            ValueError: It does not have that phase.
        """

    def check_tools(self) -> None:
        """Looks, before runs are made, whether what `measure` needs is installed.

        Raises:
            ValueError: It is not; says how to install it.
        """

    def measure(self, config: Any, folder: Path) -> dict[str, Measured]:
        """Measures a finished model by split: validation, and the test split if there is one.

        Args:
            config: The run.
            folder: The model's.
        """

    def score(self, totals: Floats) -> Floats:
        """The main metric, or what rises with it.

        Args:
            totals: (..., K) sums, or means, of `Written.scores`.

        Returns:
            (..., 1)
        """

    def baselines(self, config: Any, split: str) -> Mapping[str, Mapping[str, float]]:
        """Scores, by name, of what costs no run, by its label."""
