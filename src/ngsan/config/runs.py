"""The configurations of whole runs, by what is learned."""

from typing import Any

from ngsan.config.checks import check_choice
from ngsan.config.training import TrainConfig

RUNS: dict[str, type[Any]] = {"captioning": TrainConfig}
"""Classes by the key `task`, which each of them has."""


def run_class(task: str) -> type[Any]:
    """The class of the runs of a task; raises a `ValueError` if there is no such task."""
    check_choice("task", task, tuple(RUNS))
    return RUNS[task]
