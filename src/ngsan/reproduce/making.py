"""Makes the unfinished runs of a table, one after the other or several at a time."""

import dataclasses
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

from ngsan.metrics.captions import Metric
from ngsan.predict.evaluate import score_results
from ngsan.reproduce.ledger import Entry, Ledger, Written
from ngsan.reproduce.runs import Wanted, add_all, check_made, make_run, remove_run
from ngsan.reproduce.tasks import open_split
from ngsan.train.log import Entry as LogEntry
from ngsan.train.run import InterruptedRunError

Found = list[tuple[Entry, dict[str, Written]]]

_FAILURES = (ValueError, OSError, RuntimeError)
"""Errors that concern a single run."""

_ORPHAN_SECONDS = 5.0
"""Time for a process to save its state when its parent is gone."""


def make_runs(
    wanted: Sequence[Wanted],
    ledger: Ledger,
    *,
    jobs: int = 1,
    keep: Collection[str] = (),
    listen: Callable[[LogEntry], None] = lambda entry: None,
    on_run: Callable[[Wanted, int, int], None] = lambda run, done, of: None,
) -> None:
    """Makes the runs that the ledger lacks, and adds each when it is finished.

    A failing run does not stop the others.

    Args:
        wanted: The runs of one or more tables.
        ledger: The ledger.
        jobs: Runs at a time; small models leave much of a large GPU idle.
        keep: Keys of runs whose folders stay.
        listen: Receives the training log, if runs are made one at a time.
        on_run: Called with every finished run, their number so far, and the total.

    Raises:
        ValueError: Something is not installed, the ledger's runs were evaluated on another test
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
            remove_run(run.key, ledger.folder)  # only after it was added: a run may take hours
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
        raise ValueError(_describe_failures(failed, len(missing)))


def missing_runs(wanted: Sequence[Wanted], ledger: Ledger) -> list[Wanted]:
    """The runs that the ledger lacks: each once, those of the first seed first.

    A run that is evaluated after a later phase is evaluated after the earlier ones, too: it
    includes the runs that end there.
    """
    lacking = {run.key: run for run in wanted if run.key not in ledger}
    on_the_way = {
        run.key_after(phase)
        for run in lacking.values()
        for phase in run.task.phases[: run.task.phases.index(run.phase)]
    }
    missing = [run for key, run in lacking.items() if key not in on_the_way]
    # The longest first, so that no long one remains at the end.
    return sorted(missing, key=lambda run: (run.config.seed, -run.task.phases.index(run.phase)))


def _made_apart(
    runs: Sequence[Wanted], folder: Path, jobs: int
) -> Iterator[tuple[Wanted, "Future[Found]"]]:
    """Makes runs in separate processes, and yields each when it has ended.

    Every process has its own executor: if it dies, no other run is affected.
    """
    # By default torch would use all cores in each process.
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
    """Processes that are started here ignore Ctrl-C, which a terminal sends to all of them.

    This process stops them a moment later; otherwise they would print errors if it came while they
    start.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(threads: int) -> None:
    """Limits a new process to its share of the cores, and ends it with its parent."""
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
    """Ends the runs, which save their states, when this process is stopped.

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


def _describe_failures(failed: Sequence[tuple[Wanted, BaseException]], of: int) -> str:
    lines = []
    for run, error in failed:
        reason = str(error)
        if isinstance(error, BrokenProcessPool):
            reason = "its process was killed, perhaps for lack of memory"
        lines.append(f"\n  {run.label}, seed {run.config.seed}: {reason}")
    return (
        f"{len(failed)} of {of} runs failed; the others are in the ledger (--report-only shows "
        f"them). Run the command again to resume the failed ones:{''.join(lines)}"
    )


def add_spice(
    wanted: Sequence[Wanted],
    ledger: Ledger,
    split: str,
    spice: Metric,
    *,
    on_run: Callable[[Wanted], None] = lambda run: None,
) -> list[Wanted]:
    """Adds SPICE to the finished runs that lack it, run by run.

    Args:
        wanted: Runs of captions; unfinished ones are skipped.
        ledger: The finished runs; it has no other writer.
        split: The split of the outputs.
        spice: `ngsan.metrics.spice.Spice`.
        on_run: Called with each run before it is scored.

    Returns:
        The finished runs that cannot be scored, as their texts are missing.

    Raises:
        ValueError: A file of outputs is damaged, or its images are not those of the split.
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
