"""Which task a run's configuration is for."""

from pathlib import Path
from typing import Any

from lightning_fabric import Fabric

from ngsan.config import TrainConfig
from ngsan.config.answering import AnswerRun
from ngsan.config.translation import TranslationRun
from ngsan.train.answering import AnsweringTask
from ngsan.train.captioning import CaptioningTask
from ngsan.train.task import RunConfig, Task
from ngsan.train.translation import TranslationTask


def open_task(
    fabric: Fabric, config: RunConfig, output: Path, *, fresh: bool, datasets: Any = None
) -> Task:
    """Opens what a run learns from.

    Args:
        fabric: The processes.
        config: The run, by whose class the task is known.
        output: The run's folder.
        fresh: Whether the run has just begun.
        datasets: To learn from and to validate on, in the place of those that are configured.

    Raises:
        ValueError: The settings do not fit each other, or there is no such dataset.
        OSError: It cannot be read.
    """
    if isinstance(config, TrainConfig):
        return CaptioningTask(fabric, config, output, fresh=fresh, datasets=datasets)
    if isinstance(config, TranslationRun):
        return TranslationTask(fabric, config, datasets=datasets)
    if isinstance(config, AnswerRun):
        return AnsweringTask(fabric, config, output, fresh=fresh, datasets=datasets)
    raise TypeError(f"{type(config).__name__} is no run's configuration")
