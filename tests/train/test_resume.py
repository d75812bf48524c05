"""A resumed run equals an uninterrupted one."""

import dataclasses
import json
import os
import pkgutil
import shutil
import signal
from contextlib import contextmanager

import pytest
from safetensors.torch import load_file

from ngsan.config import CrossEntropyConfig, RuntimeConfig, ScheduleConfig, SelfCriticalConfig
from ngsan.models.checkpoint import WEIGHTS, model_signature, read_metrics
from ngsan.train.run import InterruptedRunError, train
from ngsan.train.state import read_state
from ngsan.train.tasks import captioning as validation
from tests.kills import killed_at
from tests.train.helpers import same_tensors, tiny_model, tiny_run

MODELS = ("", "cross-entropy", "self-critical")
TIMES = ("time", "seconds", "validation_seconds", "images_per_second", "seconds_left")

POINTS = (
    "ngsan.train.checkpointing.write_state",
    "ngsan.train.task.save_model",
    "ngsan.train.checkpointing.copy_model",
    "ngsan.train.checkpointing.write_bytes",
    "ngsan.train.checkpointing.remove_epochs",
    "ngsan.train.task.read_checkpoint",
    "ngsan.train.loop.learning_rate",
    "ngsan.train.loop.load_optimizer",
    "ngsan.train.tasks.captioning.score_captions",
    "ngsan.train.loader.write_scene_folder",
)
"""Where a run is stopped: before and after each call of these, and at each logged entry."""


class KilledError(BaseException):
    """An exception that no part of a run handles."""


def kill(*_):
    raise KilledError


@contextmanager
def stopped_at(number):
    """Stops the code inside at the given point, counted from 0.

    Yields:
        A listener for the run; its attribute `passed` is the number of points so far.
    """

    def listen(entry=None):
        if listen.passed == number:
            raise KilledError
        listen.passed += 1

    def around(function):
        def call(*arguments, **options):
            listen()
            result = function(*arguments, **options)
            listen()
            return result

        return call

    listen.passed = 0
    with pytest.MonkeyPatch.context() as patch:
        for name in POINTS:
            patch.setattr(name, around(pkgutil.resolve_name(name)))
        yield listen


def run_of(*, data="device", workers=0, save_seconds=0.0, patience=0, epochs=2):
    """A run with dropout, weight averaging, patience and a state after every step."""
    phase = {"batch_size": 16, "clip_grad_value": 0.0, "average_epochs": 2, "patience": patience}
    return tiny_run(
        model=tiny_model(dropout=0.1),
        cross_entropy=CrossEntropyConfig(
            epochs=epochs, schedule=ScheduleConfig("cosine", 3e-3, 0.5), **phase
        ),
        self_critical=SelfCriticalConfig(
            epochs=2,
            num_samples=2,
            dropout=0.1,
            schedule=ScheduleConfig("constant", 1e-3, 0.0),
            **phase,
        ),
        runtime=RuntimeConfig(
            device="cpu",
            threads=1,
            log_steps=1,
            save_seconds=save_seconds,
            data=data,
            workers=workers,
        ),
    )


def log_of(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    entries = [
        line for line in lines if line["event"] in ("before", "step", "epoch", "average", "end")
    ]
    for line in entries:
        line.pop("model", None)
    return [{key: line[key] for key in line if key not in TIMES} for line in entries]


def assert_same(folder, other):
    """Asserts that two runs left the same models, scores and log, and no partial files."""
    for name in MODELS:
        mine, its = folder / name, other / name
        assert same_tensors(load_file(mine / WEIGHTS), load_file(its / WEIGHTS)), name
        assert read_metrics(mine) == read_metrics(its)
        assert model_signature(mine) == model_signature(its)
        for file in ("metrics.json", "signature.json"):
            assert (mine / file).read_text() == (its / file).read_text()
    assert log_of(folder) == log_of(other)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in other.iterdir()
    )


def resume_until_done(config, folder, attempts=60):
    """Resumes until the run is finished, each time stopping at a later point.

    Returns:
        How often it was stopped.
    """
    for attempt in range(attempts):
        with stopped_at(4 + attempt) as listen:
            try:
                train(config, folder, resume=True, listen=listen)
            except KilledError:
                continue
            return attempt
    raise AssertionError(f"the run did not end in {attempts} attempts")


CASES = {
    "in memory": run_of(),
    "read ahead": run_of(data="host", workers=2),
    "rarely saved, patience": run_of(data="host", patience=1, epochs=4, save_seconds=0.2),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs by case name."""
    made = {}
    for name, config in CASES.items():
        made[name] = tmp_path_factory.mktemp("whole") / "run"
        train(config, made[name])
    return made


def test_data_location_does_not_change_the_run(whole):
    assert_same(whole["in memory"], whole["read ahead"])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_run_stopped_many_times_resumes(tmp_path, whole, case):
    assert resume_until_done(CASES[case], tmp_path / "run") >= 3
    assert_same(tmp_path / "run", whole[case])


def test_run_stopped_at_any_point_resumes(tmp_path, whole):
    config = run_of(save_seconds=1e9)
    with stopped_at(None) as listen:
        train(config, tmp_path / "all", listen=listen)
    assert_same(tmp_path / "all", whole["in memory"])
    # Most files are written at the end of a phase.
    for number in range(3, listen.passed, 19):
        folder = tmp_path / str(number)
        with stopped_at(number) as stopping, pytest.raises(KilledError):
            train(config, folder, listen=stopping)
        train(config, folder, resume=True)
        assert_same(folder, whole["in memory"])
        shutil.rmtree(folder)


def test_run_killed_during_a_write_resumes(tmp_path, whole):
    config = run_of(save_seconds=1e9)
    for step in (5, 45, 120, 200, 260):
        folder = tmp_path / str(step)
        assert killed_at(step, lambda folder=folder: train(config, folder))
        train(config, folder, resume=True)
        assert_same(folder, whole["in memory"])


def test_run_killed_while_writing_scenes_resumes(tmp_path, whole, monkeypatch):
    config, folder = run_of(save_seconds=1e9), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("ngsan.data.store_writer.StoreWriter._finish", kill)
        with pytest.raises(KilledError):
            train(config, folder)
    train(config, folder, resume=True)
    assert_same(folder, whole["in memory"])


def test_scenes_of_an_unstarted_run_are_replaced(tmp_path, whole, monkeypatch):
    config, folder = run_of(save_seconds=1e9), tmp_path / "run"
    scenes = dataclasses.replace(config.data.scenes, seed=9)
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, scenes=scenes))
    with monkeypatch.context() as patch:
        patch.setattr("ngsan.train.loop.load_optimizer", kill)
        with pytest.raises(KilledError):
            train(other, folder)
    train(config, folder)
    assert_same(folder, whole["in memory"])


def send_signal(number, event, count):
    """A listener that sends this process a signal at the nth entry of an event."""
    left = [count]

    def listen(entry):
        left[0] -= entry["event"] == event
        if not left[0]:
            left[0] = -1
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)

    return listen


@pytest.mark.parametrize(
    ("number", "event", "count"),
    [
        (signal.SIGTERM, "step", 2),
        (signal.SIGINT, "step", 3),
        (signal.SIGTERM, "epoch", 2),
        (signal.SIGINT, "before", 1),
        (signal.SIGTERM, "checkpoint", 1),
        (signal.SIGTERM, "average", 1),
        (signal.SIGINT, "end", 1),
    ],
)
def test_signal_saves_and_stops(tmp_path, whole, number, event, count):
    config, folder = run_of(save_seconds=1e9), tmp_path / "run"
    entries = []
    listen = send_signal(number, event, count)

    def both(entry):
        entries.append(entry)
        listen(entry)

    with pytest.raises(InterruptedRunError) as found:
        train(config, folder, listen=both)
    assert found.value.number == number
    # The state is that of the last step.
    state = read_state(folder / "training", pytest.fail)
    last = max((entry["step"] for entry in entries if entry["event"] == "step"), default=0)
    assert state.progress["progress"]["step"] == last
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    train(config, folder, resume=True)
    assert_same(folder, whole["in memory"])


def test_signal_interrupts_validation(tmp_path, monkeypatch):
    config, folder = run_of(save_seconds=1e9), tmp_path / "run"
    batch = validation.Captioner.caption_regions
    config = dataclasses.replace(
        config, validation=dataclasses.replace(config.validation, batch_size=4)
    )
    train(config, tmp_path / "whole")
    calls = []

    def caption(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 5:  # 3 batches per epoch: within the second validation
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(validation.Captioner, "caption_regions", caption)
        with pytest.raises(InterruptedRunError):
            train(config, folder)
    assert len(calls) == 5
    state = read_state(folder / "training", pytest.fail).progress["progress"]
    assert (state["epoch"], state["position"], state["step"]) == (1, 3, 6)
    train(config, folder, resume=True)
    assert_same(folder, tmp_path / "whole")


@pytest.mark.parametrize("event", ["before", "end"])
def test_damaged_newest_state_falls_back_to_the_previous(tmp_path, whole, event):
    """Also when the weights for averaging have just been removed."""
    config, folder = run_of(save_seconds=1e9), tmp_path / "run"

    def listen(entry):
        if entry["event"] == "checkpoint" and event in entries:
            raise KilledError
        entries.append(entry["event"])
        if entry["event"] == event == "end":
            raise KilledError

    entries = []
    with pytest.raises(KilledError):
        train(config, folder, listen=listen)
    newest = max((folder / "training").iterdir())
    content = bytearray((newest / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "weights.safetensors").write_bytes(content)
    notes = []
    train(config, folder, resume=True, listen=notes.append)
    assert "weights.safetensors was changed or damaged" in notes[0]["text"]
    assert_same(folder, whole["in memory"])
