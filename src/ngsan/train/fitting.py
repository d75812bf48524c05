"""What a model must fit before a run begins: the processes, and the weights it is given."""

import dataclasses
from collections.abc import Sequence
from typing import Any


def check_norm(norm: str, processes: int, what: str) -> None:
    """Refuses batch norm where a batch is shared out.

    Args:
        norm: Of the model's attention.
        processes: How many there are.
        what: What a batch consists of, such as "images".

    Raises:
        ValueError: The statistics would be those of one process's share.
    """
    if norm == "batch" and processes > 1:
        raise ValueError(
            f"model.norm: batch would take its statistics from the {what} of one of "
            f"{processes} processes; take instance, or one process"
        )


def check_initial(folder: str, given: Any, model: Any, free: Sequence[str]) -> None:
    """Refuses a model of another shape to begin with.

    Args:
        folder: Where the given model is.
        given: Its configuration.
        model: The configuration of the model that is to be trained.
        free: What may differ, as it has no weights.

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
            f"initial: {folder} is of another shape than the model: {', '.join(changed)}"
        )
