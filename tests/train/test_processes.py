"""Several processes train like one, and none is left running."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from ngsan.config import to_yaml
from ngsan.models.checkpoint import WEIGHTS
from ngsan.train.run import train
from tests.kills import end_of, fork
from tests.train.helpers import same_tensors, tiny_model, tiny_run

MODELS = ("", "cross-entropy", "self-critical")

IDLE = ("attention.key.bias", "encoder.layers.0.attention.query.bias")
"""Weights without effect: softmax ignores a shift of all scores, and the norm removes the second.
Their gradients are only rounding, which Adam amplifies."""


def run_of(*, dropout=0.0, **machine):
    """Two epochs of both phases; the last batch of an epoch is smaller than the others."""
    config = tiny_run(model=tiny_model(dropout=dropout))
    scenes = dataclasses.replace(config.data.scenes, train=42, test=11)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, scenes=scenes),
        cross_entropy=dataclasses.replace(config.cross_entropy, epochs=2, average_epochs=2),
        self_critical=dataclasses.replace(config.self_critical, epochs=2, dropout=dropout),
        runtime=dataclasses.replace(config.runtime, **{"save_seconds": 0.0, **machine}),
    )


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start_two(config, folder, *, resume=False, listen=None):
    """Starts two processes with the environment that `torchrun` gives them."""
    port = free_port()

    def process(rank):
        def action():
            os.environ.update(
                TORCHELASTIC_RUN_ID="test",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                GROUP_RANK="0",
                WORLD_SIZE="2",
                LOCAL_WORLD_SIZE="2",
            )
            train(config, folder, resume=resume, listen=listen or (lambda entry: None))
            torch.distributed.destroy_process_group()

        return action

    return [fork(process(rank)) for rank in range(2)]


def run_two(config, folder, **options):
    assert [end_of(child) for child in start_two(config, folder, **options)] == [0, 0]


def entries(folder, *events):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] in events]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two processes with dropout that was never stopped."""
    folder = tmp_path_factory.mktemp("two") / "run"
    run_two(run_of(dropout=0.1), folder)
    return folder


def test_two_processes_equal_one(tmp_path):
    train(run_of(), tmp_path / "one")
    run_two(run_of(), tmp_path / "two")
    models = {}
    for name in MODELS:
        one, two = (load_file(tmp_path / run / name / WEIGHTS) for run in ("one", "two"))
        models[name] = one
        for part, tensor in one.items():
            if part.endswith(IDLE):
                continue
            torch.testing.assert_close(two[part], tensor, rtol=0, atol=1e-5)
    before, after = models["cross-entropy"], models["self-critical"]
    assert any((after[name] - before[name]).abs().max() > 1e-4 for name in after)
    events = ("before", "step", "epoch", "average")
    mine, its = (entries(tmp_path / name, *events) for name in ("one", "two"))
    assert [entry["event"] for entry in mine] == [entry["event"] for entry in its]
    for entry, other in zip(mine, its, strict=True):
        for name in ("loss", "reward", "greedy_reward", "length", "entropy", "step", "lr"):
            assert (name in entry) == (name in other)
            if name in entry:
                assert other[name] == pytest.approx(entry[name], abs=1e-5)
        assert other.get("metrics") == entry.get("metrics")
    assert {entry["event"] for entry in mine if "reward" in entry} == {"before", "step", "epoch"}


@pytest.mark.parametrize(
    "killed_ranks",
    [
        (0,),
        pytest.param((1,), marks=pytest.mark.slow),
        pytest.param((0, 1), marks=pytest.mark.slow),
    ],
)
def test_killed_processes_resume(tmp_path, whole, killed_ranks, capfd):
    config, folder = run_of(dropout=0.1), tmp_path / "run"
    for step in (2, 9):
        children = start_two(config, folder, resume=True)
        wait_for(lambda step=step: reached(folder) >= step)
        for rank in killed_ranks:
            os.kill(children[rank], signal.SIGKILL)
        ends = [end_of(child) for child in children]
        assert all(
            end == (-signal.SIGKILL if rank in killed_ranks else 1) for rank, end in enumerate(ends)
        )
        if killed_ranks != (0, 1):
            assert "lost the connection to another process" in capfd.readouterr().err
    run_two(config, folder, resume=True)
    for name in MODELS:
        assert same_tensors(load_file(folder / name / WEIGHTS), load_file(whole / name / WEIGHTS))
    epochs = [entry["epoch"] for entry in entries(folder, "epoch")]
    assert epochs == [1, 2, 3, 4]


def wait_for(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.005)


def reached(folder):
    """The step of the newest state."""
    found = [path.name for path in (folder / "training").glob("step-*")]
    return max((int(name.split("-")[1]) for name in found), default=-1)


def descendants(parent):
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    return [pid for pid, above in pairs if above == parent]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_train_command_starts_and_stops_its_processes(tmp_path, whole):
    folder, config = tmp_path / "run", tmp_path / "config.yaml"
    config.write_text(to_yaml(run_of(dropout=0.1, processes=2)))
    command = [sys.executable, "-m", "ngsan", "train", config, "--output", folder]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: reached(folder) >= 3)
        others = descendants(process.pid)
        assert len(others) == 1
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM
    expected = "ngsan train: stopped by SIGTERM; the state is saved, continue with --resume"
    assert [line for line in errors.splitlines() if line.startswith("ngsan")] == [expected]
    assert "Traceback" not in errors
    assert not any(map(alive, others))
    run_two(run_of(dropout=0.1), folder, resume=True)
    for name in MODELS:
        assert same_tensors(load_file(folder / name / WEIGHTS), load_file(whole / name / WEIGHTS))
