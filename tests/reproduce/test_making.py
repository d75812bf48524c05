"""Parallel runs: one that fails or is killed does not affect the others."""

import dataclasses
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from ngsan.__main__ import main
from ngsan.config import CROSS_ENTROPY
from ngsan.data.synthetic.folders import sample_splits, scene_vocabulary, write_scene_folder
from ngsan.metrics.meteor import Meteor
from ngsan.reproduce import making, tasks
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.making import make_runs
from ngsan.reproduce.runs import Wanted, wanted_runs
from ngsan.reproduce.tables import Row, Table
from ngsan.train.run import InterruptedRunError
from tests.reproduce.test_runs import base

TABLE = Table(
    "small",
    "Two models",
    "nowhere",
    (Row("SAN", {"norm": "none"}), Row("N-SAN", {"norm": "instance"})),
    phase=CROSS_ENTROPY,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    sizes = {"train": 32, "val": 8}
    write_scene_folder(
        folder, sample_splits(sizes, min_objects=2, max_objects=2, seed=1), scene_vocabulary()
    )
    return folder


@pytest.fixture(scope="module", autouse=True)
def endless_run(data, tmp_path_factory):
    """A command with an endless run, and its folder; it starts while other tests run."""
    folder = tmp_path_factory.mktemp("endless_run")
    line = [
        sys.executable, "-m", "ngsan", "reproduce", "curve-cross-entropy", "--data", str(data),
        "--output", str(folder), "--seeds", "1", "--jobs", "2", "--rows", "SAN",
        "--cross_entropy.epochs=100000", "--model.dim=16", "--model.heads=2",
        "--model.hidden_dim=16", "--runtime.device=cpu", "--runtime.threads=1",
        "--runtime.save_seconds=0.1",
    ]  # fmt: skip
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield process, folder
    process.kill()
    process.wait()


@pytest.fixture
def forked_workers(monkeypatch):
    """Forks workers from one process that has imported everything, because imports are slow."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # threads do not survive a fork
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ngsan.reproduce.making"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


@pytest.fixture
def sigterm_guard():
    """Makes an unhandled SIGTERM fail the test instead of ending pytest."""

    def fail(number, frame):
        raise AssertionError(f"signal {number} was not handled")

    before = signal.signal(signal.SIGTERM, fail)
    yield
    signal.signal(signal.SIGTERM, before)


class DyingRun(Wanted):
    """A run that kills the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (1,)


def without_data(run):
    """The run with a missing dataset folder."""
    nowhere = dataclasses.replace(run.config.data, folder="nowhere")
    return dataclasses.replace(run, config=dataclasses.replace(run.config, data=nowhere, seed=7))


def dying(run):
    config = dataclasses.replace(run.config, seed=8)
    return DyingRun(run.label, run.phase, run.metric, config, run.data, run.content)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_other_runs_are_saved_when_some_fail(data, tmp_path):
    good = wanted_runs(TABLE, base(data), [0])
    ledger = Ledger(tmp_path)
    with pytest.raises(ValueError, match="2 of 4 runs failed") as caught:
        make_runs([without_data(good[0]), dying(good[0]), *good], ledger, jobs=2)
    assert "SAN, seed 7: data.folder: no such folder: nowhere" in str(caught.value)
    assert "SAN, seed 8: its process was killed" in str(caught.value)
    assert all(run.key in Ledger(tmp_path) for run in good)
    assert not multiprocessing.active_children()


def test_other_runs_are_saved_when_one_fails_in_sequence(data, tmp_path):
    good = wanted_runs(TABLE, base(data), [0])
    with pytest.raises(ValueError, match=r"1 of 3 runs failed; .* \(--report-only shows them\)"):
        make_runs([without_data(good[0]), *good], Ledger(tmp_path))
    assert all(run.key in Ledger(tmp_path) for run in good)


def test_workers_use_their_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(making, "_end_with_parent", lambda: None)
    thread_counts = []
    monkeypatch.setattr(torch, "set_num_threads", thread_counts.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "")
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    making._begin(3)
    assert thread_counts == [3]
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "3"
    assert os.environ["OMP_NUM_THREADS"] == "2"


@pytest.mark.usefixtures("forked_workers", "sigterm_guard")
@pytest.mark.slow
def test_workers_stop_when_the_command_is_stopped(data, tmp_path):
    run = base(data)
    phase = dataclasses.replace(run.cross_entropy, epochs=100_000)
    machine = dataclasses.replace(run.runtime, save_seconds=0.1)
    runs = wanted_runs(TABLE, dataclasses.replace(run, cross_entropy=phase, runtime=machine), [0])

    def stop():
        until(lambda: saved(tmp_path) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(InterruptedRunError) as ended:
        make_runs(runs, Ledger(tmp_path), jobs=2)
    stopping.join()
    assert ended.value.number == signal.SIGTERM
    until(lambda: not list(tmp_path.glob("runs/*/.lock")))
    assert saved(tmp_path) == 2
    del ended  # the last reference to the workers
    until(lambda: not multiprocessing.active_children())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("sigterm_guard")
def test_signal_at_the_end_of_a_run_stops_the_others(data, tmp_path, number):
    runs = wanted_runs(TABLE, base(data), [0])
    started = []

    def listen(entry):
        started.extend([entry] * (entry["event"] == "start"))
        if entry["event"] == "end" and len(started) == 1:
            os.kill(os.getpid(), number)

    with pytest.raises(InterruptedRunError) as ended:
        make_runs(runs, Ledger(tmp_path), listen=listen)
    assert (ended.value.number, len(started)) == (number, 1)
    make_runs(runs, Ledger(tmp_path))
    assert all(run.key in Ledger(tmp_path) for run in runs)


def test_child_processes_do_not_receive_ctrl_c():
    blocked = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    outputs = []

    def start():
        with making._without_interrupts():
            # Signal this thread, because leftover threads of other tests would handle it at once.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            line = [sys.executable, "-c", blocked]
            outputs.append(subprocess.run(line, capture_output=True, text=True, check=True).stdout)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert "SIGINT" in outputs[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("stopped", [KeyboardInterrupt(), InterruptedRunError(signal.SIGINT)])
def test_interrupts_have_the_same_message_everywhere(data, tmp_path, monkeypatch, capsys, stopped):
    def stop(*args, **keys):
        raise stopped

    monkeypatch.setattr(making, "make_runs", stop)
    line = [
        "reproduce",
        "curve-cross-entropy",
        "--data",
        str(data),
        "--output",
        str(tmp_path),
        "--jobs",
        "2",
    ]
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 130
    outputs = "ngsan reproduce: stopped by SIGINT; the same command resumes\n"
    assert capsys.readouterr().err == outputs


def test_missing_packages_raise_before_runs_start(data, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "METRICS", (Meteor(),))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    runs = wanted_runs(TABLE, base(data), [0])
    with pytest.raises(ValueError, match=r"METEOR.*pip install 'ngsan\[metrics\]'"):
        make_runs(runs, Ledger(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_workers_stop_when_the_command_is_killed(endless_run):
    process, folder = endless_run
    until(lambda: saved(folder) == 1)
    process.kill()
    until(lambda: not list(folder.glob("runs/*/.lock")))


def saved(folder):
    """The number of runs with a state to resume from."""
    return len({path.parents[2] for path in folder.glob("runs/*/training/step-*/progress.json")})


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
