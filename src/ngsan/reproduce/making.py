"""Makes the runs of a table that are not finished, one after the other or some at a time."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from types import FrameType

import torch

from ngsan.reproduce.ledger import Entry, Ledger, Written
from ngsan.reproduce.runs import Wanted, add_all, make_run, remove_run
from ngsan.reproduce.splits import check_made
from ngsan.train.log import Entry as LogEntry
from ngsan.train.run import InterruptedRunError

Found = list[tuple[Entry, dict[str, Written]]]

_FAILURES = (ValueError, OSError, RuntimeError)
"""What may be wrong with a single run."""

_ORPHAN_SECONDS = 5.0
"""How long a process has to save its state when the one that started it has gone."""


def make_runs(
    wanted: Sequence[Wanted],
    ledger: Ledger,
    *,
    jobs: int = 1,
    keep: Collection[str] = (),
    listen: Callable[[LogEntry], None] = lambda entry: None,
    on_run: Callable[[Wanted, int, int], None] = lambda run, done, of: None,
) -> None:
    """Makes the runs that the ledger lacks, and enters each when it is finished.

    A run that fails does not keep the others from being made.

    Args:
        wanted: The runs of one or more tables.
        ledger: Where they are entered.
        jobs: Runs at a time; small models leave much of a large GPU idle.
        keep: Keys of runs whose folders stay.
        listen: Told what happens in a run, if it is made alone.
        on_run: Told of every run that is finished, and how many are, of how many.

    Raises:
        ValueError: Something is not installed, the ledger's runs were measured on another test
            split, or runs failed; all others are in the ledger.
    """
    if jobs < 1:
        raise ValueError(f"jobs: {jobs} must be at least 1")
    check_made(wanted, ledger)
    missing = missing_runs(wanted, ledger)
    for task in {run.task for run in missing}:
        task.check_tools()
    failed: list[tuple[Wanted, BaseException]] = []
    done = 0

    def enter(run: Wanted, found: Found) -> None:
        nonlocal done
        add_all(ledger, found)
        if run.key not in keep:
            remove_run(run.key, ledger.folder)  # not before it is entered: a run may take hours
        done += 1
        on_run(run, done, len(missing))

    if jobs == 1:
        for run in missing:
            try:
                found = make_run(run, ledger.folder, listen=listen)
            except _FAILURES as error:
                failed.append((run, error))
            else:
                enter(run, found)
    else:
        with _ended_together():
            for run, future in _made_apart(missing, ledger.folder, jobs):
                problem = future.exception()
                if isinstance(problem, InterruptedRunError):
                    raise problem
                if problem is None:
                    enter(run, future.result())
                else:
                    failed.append((run, problem))
    for _, problem in failed:
        if not isinstance(problem, _FAILURES):
            raise problem
    if failed:
        raise ValueError(_told(failed, len(missing)))


def missing_runs(wanted: Sequence[Wanted], ledger: Ledger) -> list[Wanted]:
    """The runs that the ledger lacks: each once, those of the first seed first.

    A run that is measured after a later phase is measured after the earlier ones, too: it stands
    for the runs that end there.
    """
    lacking = {run.key: run for run in wanted if run.key not in ledger}
    on_the_way = {
        run.key_after(phase)
        for run in lacking.values()
        for phase in run.task.phases[: run.task.phases.index(run.phase)]
    }
    missing = [run for key, run in lacking.items() if key not in on_the_way]
    # The longest first, such that none is left to be waited for in the end.
    return sorted(missing, key=lambda run: (run.config.seed, -run.task.phases.index(run.phase)))


def _made_apart(
    runs: Sequence[Wanted], folder: Path, jobs: int
) -> Iterator[tuple[Wanted, "Future[Found]"]]:
    """Makes runs in processes of their own, and gives each when it is over.

    Every process has an executor of its own: one that dies takes no other run with it.
    """
    # What a process may use without the others: torch would take all cores for each.
    threads = max(1, torch.get_num_threads() // jobs)
    left = list(reversed(runs))
    idle = [_start_worker(threads) for _ in range(min(jobs, len(runs)))]
    busy: dict[Future[Found], tuple[Wanted, ProcessPoolExecutor]] = {}
    while left or busy:
        while left and idle:
            run, worker = left.pop(), idle.pop()
            with _without_interrupts():
                busy[worker.submit(make_run, run, folder)] = run, worker
        over, _ = wait(busy, return_when=FIRST_COMPLETED)
        for future in over:
            run, worker = busy.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                worker.shutdown()
                worker = _start_worker(threads)
            idle.append(worker)
            yield run, future
    for worker in idle:
        worker.shutdown()


def _start_worker(threads: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(threads,))


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started here never see Ctrl-C, which a terminal sends to all of them.

    They are told by this one, which sees it a moment later; by themselves they would complain if
    it came while they begin.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(threads: int) -> None:
    """What a process does first: takes its share of the cores, and looks after its parent."""
    torch.set_num_threads(threads)
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ.setdefault(name, str(threads))  # for processes that this one starts
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)  # a run saves its state
    time.sleep(_ORPHAN_SECONDS)
    os._exit(1)


@contextmanager
def _ended_together() -> Iterator[None]:
    """When this process is stopped, the runs save their states and end, too.

    Raises:
        InterruptedRunError: It was stopped by SIGTERM.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise InterruptedRunError(number)

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if is_main else None
    try:
        yield
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)


def _told(failed: Sequence[tuple[Wanted, BaseException]], of: int) -> str:
    lines = []
    for run, error in failed:
        reason = str(error)
        if isinstance(error, BrokenProcessPool):
            reason = "its process was killed, perhaps for want of memory"
        lines.append(f"\n  {run.label}, seed {run.config.seed}: {reason}")
    return (
        f"{len(failed)} of {of} runs failed; the others are in the ledger (--report shows them), "
        f"and what was saved of these goes on when the command is run again:{''.join(lines)}"
    )
