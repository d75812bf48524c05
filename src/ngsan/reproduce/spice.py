"""SPICE of finished runs: it takes minutes a run, so only who asks for it waits for it."""

import dataclasses
from collections.abc import Callable, Sequence

from ngsan.evaluate import score_results
from ngsan.metrics.metric import Metric
from ngsan.reproduce.captioning import open_split
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.runs import Wanted


def add_spice(
    wanted: Sequence[Wanted],
    ledger: Ledger,
    split: str,
    spice: Metric,
    *,
    on_run: Callable[[Wanted], None] = lambda run: None,
) -> list[Wanted]:
    """Scores what finished runs wrote, those that have no such score, and enters it run by run.

    Args:
        wanted: Runs of captions, of which those that are not finished are passed over.
        ledger: Those that are; nobody else may be writing to it.
        split: On which they are scored, the one that they were measured on.
        spice: `ngsan.metrics.spice.Spice`.
        on_run: Told of each run before it is scored.

    Returns:
        The finished runs that cannot be scored, as their texts are not at hand.

    Raises:
        ValueError: A file of what a run wrote is damaged, or is not of images of the split.
        ChildProcessError: The program failed.
    """
    finished = [run for run in wanted if run.key in ledger and split in ledger[run.key].metrics]
    (name,) = spice.names
    open_runs = [run for run in finished if name not in ledger[run.key].metrics[split]]
    if not open_runs:
        return []
    references = open_split(open_runs[0].config, split).references()
    lost = []
    for run in open_runs:
        written = ledger.written(run.key, split) if ledger.has_written(run.key, split) else None
        if written is None or not written.texts:
            lost.append(run)
            continue
        on_run(run)
        texts = dict(zip(written.ids, written.texts, strict=True))
        value = score_results(texts, references, [spice]).values[name]
        entry = ledger[run.key]
        scores = {**entry.metrics, split: {**entry.metrics[split], name: round(value, 4)}}
        ledger.replace(dataclasses.replace(entry, metrics=scores))
    return lost
