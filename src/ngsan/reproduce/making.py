"""Makes the runs of a table that are not finished, one after the other or some at a time."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from ngsan.reproduce.ledger import Entry, Ledger, Written
from ngsan.reproduce.runs import Wanted, add_all, make_run
from ngsan.train.log import Entry as LogEntry

Found = list[tuple[Entry, dict[str, Written]]]


def make_runs(
    wanted: Sequence[Wanted],
    ledger: Ledger,
    *,
    jobs: int = 1,
    keep: bool = False,
    listen: Callable[[LogEntry], None] = lambda entry: None,
    on_run: Callable[[Wanted, int, int], None] = lambda run, done, of: None,
) -> None:
    """Makes the runs that the ledger lacks, and enters each when it is finished.

    Args:
        wanted: The runs of a table.
        ledger: Where they are entered.
        jobs: Runs at a time; small models leave much of a large GPU idle.
        keep: Whether the runs' folders stay.
        listen: Told what happens in a run, if it is made alone.
        on_run: Told of every run that is finished, and how many are, of how many.

    Raises:
        ValueError: A run failed; the others that were finished are in the ledger.
    """
    if jobs < 1:
        raise ValueError(f"jobs: {jobs} must be at least 1")
    missing = list({run.key: run for run in wanted if run.key not in ledger}.values())
    if jobs == 1:
        for number, run in enumerate(missing, start=1):
            add_all(ledger, make_run(run, ledger.folder, listen=listen, keep=keep))
            on_run(run, number, len(missing))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        made = {pool.submit(_make, run, ledger.folder, keep): run for run in missing}
        try:
            for number, future in enumerate(as_completed(made), start=1):
                add_all(ledger, future.result())
                on_run(made[future], number, len(missing))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _make(run: Wanted, folder: Path, keep: bool) -> Found:
    return make_run(run, folder, keep=keep)
