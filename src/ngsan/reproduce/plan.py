"""All captioning tables of the paper as one plan: what is made first, and how long it takes."""

import statistics
from collections.abc import Sequence
from typing import Any

from ngsan.config import SELF_CRITICAL
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.runs import Wanted, wanted_runs
from ngsan.reproduce.tables import EXAMPLES, PRE_NORM, TABLES, TABLES_OF_PAPER, WEIGHTS, Table
from ngsan.reproduce.tasks import Fitted

_FIRST = ("SAN", "G-SAN", "G-SAN, permuted boxes", "N-SAN", "NG-SAN")
"""The rows of `models` by importance."""

FIGURES_OF_PAPER = (EXAMPLES, WEIGHTS)


def stages(base: Any, seeds: Sequence[int], fitted: Fitted) -> list[list[Wanted]]:
    """The runs of the whole paper, in the order in which they are made.

    First the four models and the control with permuted boxes, post-norm, then the same with
    pre-norm layers, then the other tables, each with all seeds. A run of the self-critical phase
    includes that of cross-entropy.

    Args:
        base: The run that the rows change.
        seeds: The seeds.
        fitted: `base` with the sizes of its data.
    """

    def runs_of(table: Table, rows: Sequence[str] | None = None) -> list[Wanted]:
        found = wanted_runs(table, base, seeds, rows, fitted=fitted)
        order = list(rows) if rows else [row.label for row in table.rows]
        return sorted(found, key=lambda run: (run.config.seed, order.index(run.label)))

    models, *others = [
        TABLES[name] for name in TABLES_OF_PAPER if TABLES[name].phase == SELF_CRITICAL
    ]
    figures = [
        run
        for figure in FIGURES_OF_PAPER
        for run in wanted_runs(figure, base, seeds[:1], fitted=fitted)
    ]
    return [
        runs_of(models, _FIRST),
        runs_of(models, [f"{label}{PRE_NORM}" for label in _FIRST]),
        figures,
        *(runs_of(table) for table in others),
    ]


def seconds_left(missing: Sequence[Wanted], ledger: Ledger, jobs: int = 1) -> float | None:
    """An estimate of the time that unfinished runs take; None before the first is finished.

    A run takes as long as finished ones with as many layers did on the median, or as long as
    others in proportion to the layers.

    Args:
        missing: The unfinished runs, each once.
        ledger: The finished ones.
        jobs: Runs at a time.
    """
    if not missing:
        return 0.0
    phase = missing[0].phase
    took: dict[int, list[float]] = {}
    for entry in ledger:
        if entry.phase == phase:
            took.setdefault(int(entry.model["layers"]), []).append(entry.seconds)
    if not took:
        return None
    known = {layers: statistics.median(seconds) for layers, seconds in took.items()}
    per_layer = statistics.median(seconds / layers for layers, seconds in known.items())
    layers = [int(run.config.model.layers) for run in missing]
    return sum(known.get(number, per_layer * number) for number in layers) / jobs
