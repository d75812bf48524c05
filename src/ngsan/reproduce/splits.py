"""Finished runs are looked at together only if they were measured on the same.

A key covers what was learned from and validated on. The test split decides nothing of a run and is
no part of it, so keys do not tell whether two runs were measured on the same one; entries do.
"""

from collections.abc import Iterable, Mapping, Sequence

from ngsan.reproduce.ledger import Entry, Ledger
from ngsan.reproduce.runs import Wanted


def check_made(wanted: Sequence[Wanted], ledger: Ledger) -> None:
    """Refuses to make runs beside finished ones of the same data but another test split.

    Args:
        wanted: The runs.
        ledger: Those that are finished.

    Raises:
        ValueError: There are such; names one, and the split.
    """
    for run in wanted:
        alike = [entry for entry in ledger if entry.data == run.data]
        for split, origin in run.measured.items():
            _compare_with_data(alike, split, origin, ledger)


def check_reported(
    entries: Iterable[Entry], split: str, now: Mapping[str, str], ledger: Ledger
) -> None:
    """Refuses to show runs together that were measured on another split of the same name.

    Args:
        entries: The runs; those that do not tell are taken as they are.
        split: What is shown of them.
        now: `Wanted.measured`; empty where the data are not at hand.
        ledger: Where the runs are entered.

    Raises:
        ValueError: The data are others now, or two runs differ; names them, and the split.
    """
    telling = [entry for entry in entries if split in entry.measured]
    if split in now:
        _compare_with_data(telling, split, now[split], ledger)
    for entry in telling[1:]:
        if entry.measured[split] != telling[0].measured[split]:
            raise ValueError(
                f"{ledger.folder}: the runs {telling[0].key} and {entry.key} were not measured on "
                f"the same split {split!r}, so they cannot stand in one table; make the table's "
                "runs with the same data, in another --to"
            )


def _compare_with_data(entries: Iterable[Entry], split: str, origin: str, ledger: Ledger) -> None:
    for entry in entries:
        if entry.measured.get(split, origin) != origin:
            raise ValueError(
                f"{ledger.folder}: the data's split {split!r} is not the one that the run "
                f"{entry.key} there was measured on, so what it scored cannot stand beside it; "
                "take another --to for these data"
            )
