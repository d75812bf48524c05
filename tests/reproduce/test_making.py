"""Several runs at a time: one that fails or dies does not harm the others."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from ngsan.data.synthetic import scene_vocabulary
from ngsan.data.synthetic.folder import sample_splits, write_scene_folder
from ngsan.reproduce import making
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.making import make_runs
from ngsan.reproduce.runs import Wanted, wanted_runs
from ngsan.reproduce.tables import CROSS_ENTROPY, Row, Table
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
    write_scene_folder(folder, sample_splits(sizes, fewest=2, most=2, seed=1), scene_vocabulary())
    return folder


class DyingRun(Wanted):
    """A run whose process dies as soon as it gets it."""

    def __reduce__(self):
        return os._exit, (1,)


def lost(run):
    """The run with data that are not there."""
    nowhere = dataclasses.replace(run.config.data, folder="nowhere")
    return dataclasses.replace(run, config=dataclasses.replace(run.config, data=nowhere, seed=7))


def dying(run):
    config = dataclasses.replace(run.config, seed=8)
    return DyingRun(run.label, run.phase, run.metric, config, run.data, run.content)


def test_others_are_entered_when_some_fail(data, tmp_path):
    good = wanted_runs(TABLE, base(data), [0])
    ledger = Ledger(tmp_path)
    with pytest.raises(ValueError, match="2 of 4 runs failed") as caught:
        make_runs([lost(good[0]), dying(good[0]), *good], ledger, jobs=2)
    assert "SAN, seed 7: data.folder: there is no folder nowhere" in str(caught.value)
    assert "SAN, seed 8: its process was killed" in str(caught.value)
    assert all(run.key in Ledger(tmp_path) for run in good)
    assert not multiprocessing.active_children()


def test_others_are_entered_when_one_fails_alone(data, tmp_path):
    good = wanted_runs(TABLE, base(data), [0])
    with pytest.raises(ValueError, match="1 of 3 runs failed"):
        make_runs([lost(good[0]), *good], Ledger(tmp_path))
    assert all(run.key in Ledger(tmp_path) for run in good)


def test_a_process_takes_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(making, "_end_with_parent", lambda: None)
    taken = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "")
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    making._begin(3)
    assert taken == [3]
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "3"
    assert os.environ["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_runs_end_with_the_command(data, tmp_path, number):
    line = [
        sys.executable, "-m", "ngsan", "reproduce", "curve", "--data", str(data),
        "--to", str(tmp_path), "--seeds", "1", "--jobs", "2", "--cross_entropy.epochs=5000",
        "--model.dim=16", "--model.heads=2", "--model.hidden_dim=16", "--machine.device=cpu",
        "--machine.threads=1", "--machine.save_seconds=0.1",
    ]  # fmt: skip
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: len(list(tmp_path.glob("runs/*/training/*"))) >= 2)
    process.send_signal(number)
    process.wait(30)
    until(lambda: not list(tmp_path.glob("runs/*/.lock")))


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
