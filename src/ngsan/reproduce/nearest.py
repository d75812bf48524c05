"""What a ledger holds where it lacks the runs that a table wants."""

from collections.abc import Sequence

from ngsan.reproduce.ledger import Entry, Ledger
from ngsan.reproduce.runs import Wanted
from ngsan.reproduce.tables import Table
from ngsan.train.progress import differences

_MOST = 3
"""Differences that are told; of other recipes there may be dozens."""


def others_told(table: Table, wanted: Sequence[Wanted], ledger: Ledger) -> str:
    """The end of a sentence that says that no run of a table is finished in a ledger.

    Args:
        table: The table.
        wanted: Its runs, none of which is finished.
        ledger: Other runs.

    Returns:
        What the ledger's runs of the same task are, and how to ask for them; empty without any.
    """
    task = wanted[0].config.task
    entries = [entry for entry in ledger if entry.settings.get("task") == task]
    if not entries:
        return ""
    held = f", which has {len(entries)} {'run' if len(entries) == 1 else 'runs'} of the task {task}"
    found = _candidates(table, wanted, entries)
    if not found:
        return f"{held}, of other rows or measured after another phase"
    nearest = min(found, key=len)
    listed = ", ".join(nearest[:_MOST])
    if len(nearest) > _MOST:
        listed += f" and {len(nearest) - _MOST} more"
    return (
        f"{held}, perhaps of another recipe or of other data"
        f"{f' (the nearest has {listed})' if listed else ''}: give the keys, or the --config, that "
        "they were made with"
    )


def _candidates(
    table: Table, wanted: Sequence[Wanted], entries: Sequence[Entry]
) -> list[list[str]]:
    """In what runs differ from those wanted of the same row, each of them from one."""
    rows = {row.label: row for row in table.rows}
    seed = wanted[0].config.seed  # whatever it is: other seeds are wanted alike
    return [
        _differing(run, entry)
        for run in wanted
        if run.config.seed == seed
        for entry in entries
        if entry.phase == run.phase and rows[run.label].fits(entry.model)
    ]


def _differing(run: Wanted, entry: Entry) -> list[str]:
    """In what a finished run differs from one that is wanted, but for its seed."""
    asked = run.settings(run.phase)
    del asked["seed"]
    made = {**entry.settings, "model": dict(entry.model)}
    for size in run.task.sizes:  # the data's own, which nobody gives
        asked["model"].pop(size, None)
        made["model"].pop(size, None)
    return ["other data"] * (entry.data != run.data) + differences(made, asked)
