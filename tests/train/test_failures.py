"""Failures stop a run with one clear message, and the last good state is kept."""

import dataclasses
import errno
import os
import resource
import shutil
import time
from pathlib import Path
from threading import Event

import pytest
import torch
from safetensors.torch import load_file

from ngsan.__main__ import main
from ngsan.atomic_io import folder_lock
from ngsan.config import (
    CrossEntropyConfig,
    DataConfig,
    RuntimeConfig,
    ScheduleConfig,
    SelfCriticalConfig,
    to_yaml,
)
from ngsan.config import TrainConfig as Config
from ngsan.data.dataset import CaptionDataset
from ngsan.data.store import FeatureStore
from ngsan.models.checkpoint import WEIGHTS, load_model, model_signature
from ngsan.train import run as folders
from ngsan.train.run import train
from ngsan.train.state import SettingsError, differences, read_state, require_same, settings
from ngsan.train.tasks.captioning import CaptioningTask
from tests.kills import end_of, fork
from tests.train.helpers import same_tensors, scene_folder, tiny_model, tiny_run

SAVE_EVERY_STEP = RuntimeConfig(device="cpu", threads=1, log_steps=1, save_seconds=0.0)


def frequently_saved(**changes):
    """A tiny run whose state is saved after every step."""
    return tiny_run(**{"runtime": SAVE_EVERY_STEP, **changes})


def step_of(folder):
    return read_state(folder / "training", pytest.fail).progress["progress"]["step"]


def after_steps(count, action):
    """A listener that calls `action` at the checkpoint of step `count`."""

    def listen(entry):
        if entry["event"] == "checkpoint" and entry["step"] == count:
            action()

    return listen


class KilledError(BaseException):
    pass


def killed():
    raise KilledError


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(frequently_saved(), folder)
    return folder


@pytest.fixture
def killed_run(tmp_path):
    """A run that was killed after two of its six steps."""
    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        train(frequently_saved(), folder, listen=after_steps(2, killed))
    return folder


def same(folder, other):
    return same_tensors(load_file(folder / WEIGHTS), load_file(other / WEIGHTS))


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "place",
    [
        "ngsan.train.state.write_unseen",
        "ngsan.models.checkpoint.write_unseen",
        "ngsan.train.checkpointing.write_bytes",
        "ngsan.train.log.JsonLines.write",
    ],
)
def test_full_disk_keeps_the_last_state(killed_run, whole, place, monkeypatch):
    config = frequently_saved()
    if place.endswith("write_bytes"):
        phase = dataclasses.replace(config.cross_entropy, average_epochs=2)
        config = dataclasses.replace(config, cross_entropy=phase)
        shutil.rmtree(killed_run)
        with pytest.raises(KilledError):
            train(config, killed_run, listen=after_steps(2, killed))
    with monkeypatch.context() as patch:
        patch.setattr(place, no_space)
        with pytest.raises(
            OSError, match=r"(?s)No space left.*\nthe state of step [234] is intact"
        ):
            train(config, killed_run, resume=True)
    train(config, killed_run, resume=True)
    assert same(killed_run, whole)


def test_file_size_limit_at_the_first_state(tmp_path, whole, capfd):
    """A real limit of the operating system, hit at the first state."""
    config = tmp_path / "config.yaml"
    config.write_text(to_yaml(frequently_saved()))
    arguments = ["train", str(config), "--output", str(tmp_path / "run")]

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        os._exit(main(arguments))

    assert end_of(fork(limited)) == 2
    reported = capfd.readouterr().err
    assert "File too large" in reported
    assert "nothing had been saved" in reported
    assert "Traceback" not in reported
    assert main([*arguments, "--resume"]) == 0
    assert same(tmp_path / "run", whole)


@pytest.mark.parametrize("phase", ["cross_entropy", "self_critical"])
def test_nan_weights_raise(tmp_path, phase):
    config = frequently_saved()
    changed = dataclasses.replace(
        getattr(config, phase), clip_grad_norm=0.0, schedule=ScheduleConfig("constant", 1e30, 0.0)
    )
    config = dataclasses.replace(config, **{phase: changed})
    with pytest.raises(ValueError, match=r"(?s)step [0-9].*schedule\.peak_lr.*\nthe state of step"):
        train(config, tmp_path / "run")
    state = read_state(tmp_path / "run" / "training", pytest.fail)
    assert all(tensor.isfinite().all() for tensor in state.tensors["weights"].values())
    if phase == "self_critical":
        load_model(tmp_path / "run", "captioning")


def test_infinite_feature_raises(tmp_path, monkeypatch):
    # The store rejects such features, so simulate corruption after reading.
    found = CaptionDataset.batch

    def batch(self, indices, *, epoch=0):
        made = found(self, indices, epoch=epoch)
        if 7 in indices:
            made.features[list(indices).index(7)] = torch.inf
        return made

    monkeypatch.setattr(CaptionDataset, "batch", batch)
    machine = dataclasses.replace(SAVE_EVERY_STEP, data="host", workers=0)
    with pytest.raises(ValueError, match=r"(?s)loss is nan.*ngsan data inspect.*\nthe state of"):
        train(frequently_saved(runtime=machine), tmp_path / "run")


def on_folder(folder, **machine):
    return frequently_saved(
        data=DataConfig(folder=str(folder)),
        runtime=dataclasses.replace(SAVE_EVERY_STEP, data="host", **machine),
    )


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["cut", "removed"])
def test_features_lost_during_a_run(tmp_path, workers, how):
    data = scene_folder(tmp_path / "data", train=48, val=12)
    shard = data / "features" / "shard-00000.safetensors"
    content = shard.read_bytes()

    def lose():
        if how == "cut":
            os.truncate(shard, 100)
        else:
            shutil.move(data, tmp_path / "elsewhere")

    config, folder = on_folder(data, workers=workers), tmp_path / "run"
    with pytest.raises(OSError, match=r"(?s)shard-00000|data.*\nthe state of step 1 is intact"):
        train(config, folder, listen=after_steps(1, lose))
    with pytest.raises((OSError, ValueError), match=r"data.*"):
        train(config, folder, resume=True)
    if how == "cut":
        shard.write_bytes(content)
    else:
        shutil.move(tmp_path / "elsewhere", data)
    train(config, folder, resume=True)
    train(config, tmp_path / "whole")
    assert same(folder, tmp_path / "whole")


def test_damaged_features_raise_and_leave_nothing(tmp_path, monkeypatch):
    data = scene_folder(tmp_path / "data", train=48, val=12)
    shard = data / "features" / "shard-00000.safetensors"
    content = shard.read_bytes()
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 1
    config, folder = on_folder(data), tmp_path / "run"
    with pytest.raises(KilledError):
        train(config, folder, listen=after_steps(2, killed))
    shard.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"shard-00000.* is damaged: .*\nthe state of step 2 is"):
        train(config, folder, resume=True)

    # A large store is read beside the first steps; the state waits for it.
    monkeypatch.setattr("ngsan.data.data_check._AT_ONCE", 0)
    check_files, stepped = FeatureStore.check_files, Event()

    def check_after_a_step(self):
        assert stepped.wait(60)
        time.sleep(0.2)
        yield from check_files(self)

    monkeypatch.setattr(FeatureStore, "check_files", check_after_a_step)
    entries = []

    def listen(entry):
        entries.append(entry)
        if entry["event"] == "step":
            stepped.set()

    with pytest.raises(ValueError, match=r"shard-00000.* is damaged: .*\nthe state of step 2 is"):
        train(config, folder, resume=True, listen=listen)
    assert any(entry["event"] == "step" for entry in entries)
    assert not any(entry["event"] == "checkpoint" for entry in entries)
    shard.write_bytes(content)
    train(config, folder, resume=True)
    train(config, tmp_path / "whole")
    assert same(folder, tmp_path / "whole")


def test_killed_reader_process(tmp_path, monkeypatch):
    data = scene_folder(tmp_path / "data", train=48, val=12)
    found, here = CaptionDataset.batch, os.getpid()

    def batch(self, indices, *, epoch=0):
        if os.getpid() != here:
            os.kill(os.getpid(), 7)  # SIGBUS, as for a truncated mapped file
        return found(self, indices, epoch=epoch)

    monkeypatch.setattr(CaptionDataset, "batch", batch)
    with pytest.raises(OSError, match=r"(?s)reads .*data ahead has died.*worker.*\nthe state"):
        train(on_folder(data, workers=1), tmp_path / "run")


def test_invalid_output_folders_raise(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(to_yaml(frequently_saved()))
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file" / "in", Path("/proc/nowhere")):
        assert main(["train", str(config), "--output", str(output)]) == 2
        reported = capsys.readouterr().err
        assert str(output) in reported
        assert "Traceback" not in reported


def test_frame_positions_with_region_boxes_raise(tmp_path):
    model = tiny_model(geometry="none", positions="sinusoidal")
    data = DataConfig(folder=str(scene_folder(tmp_path / "scenes", train=8, val=4)))
    with pytest.raises(ValueError, match=r"model\.positions.*frames of clips.*boxes"):
        train(tiny_run(model=model, data=data), tmp_path / "run")
    # Grid cells of frames have boxes too.
    frames = dataclasses.replace(model, frame_grid=1, geometry="absolute")
    train(tiny_run(model=frames, data=data), tmp_path / "clips")


def test_unknown_initial_model_raises(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere is not a model"):
        train(frequently_saved(init_from=str(tmp_path / "nowhere")), tmp_path / "run")


def test_initial_model_is_not_needed_to_resume(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "initial")
    config = frequently_saved(init_from=str(tmp_path / "initial"))
    with pytest.raises(KilledError):
        train(config, tmp_path / "run", listen=after_steps(2, killed))
    shutil.rmtree(tmp_path / "initial")
    train(config, tmp_path / "run", resume=True)


def test_resuming_with_other_settings_names_them(killed_run, whole):
    model, phase = (
        tiny_model(layers=2),
        dataclasses.replace(frequently_saved().cross_entropy, patience=3),
    )
    other = frequently_saved(model=model, cross_entropy=phase, seed=5)
    before = {path: path.read_bytes() for path in killed_run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="the run was started with other settings") as found:
        train(other, killed_run, resume=True)
    reported = str(found.value).splitlines()
    assert reported[0].startswith(f"{killed_run}: ")
    assert [line.strip() for line in reported if line.startswith("  ")][:3] == [
        "model.layers: 1 before, 2 now",
        "cross_entropy.patience: 0 before, 3 now",
        "seed: 0 before, 5 now",
    ]
    with pytest.raises(ValueError, match="runtime.precision: 'float32' before, 'bfloat16' now"):
        train(
            frequently_saved(runtime=dataclasses.replace(SAVE_EVERY_STEP, precision="bfloat16")),
            killed_run,
            resume=True,
        )
    # Only the log may have lost lines, which are written again.
    for path, content in before.items():
        assert (
            content.startswith(path.read_bytes())
            if path.suffix == ".jsonl"
            else (path.read_bytes() == content)
        )
    machine = dataclasses.replace(
        SAVE_EVERY_STEP, save_seconds=1e9, log_steps=7, data="host", workers=0
    )
    train(frequently_saved(runtime=machine), killed_run, resume=True)
    assert same(killed_run, whole)


def test_resuming_with_other_data_raises(tmp_path):
    data, folder = scene_folder(tmp_path / "data", train=48, val=12), tmp_path / "run"
    with pytest.raises(KilledError):
        train(on_folder(data), folder, listen=after_steps(2, killed))
    moved = tmp_path / "moved"
    shutil.move(data, moved)
    with pytest.raises(OSError, match=r"(?s)data.folder: no such folder: .*data\nthe state"):
        train(on_folder(data), folder, resume=True)
    train(on_folder(moved), folder, resume=True)
    assert step_of(folder) == 6
    captions = moved / "captions.jsonl"
    captions.write_text(captions.read_text().replace("ball", "box"))
    with pytest.raises(ValueError, match=r"data\.signatures\.train: '[0-9a-f]+' before"):
        train(on_folder(moved), folder, resume=True)


def test_resuming_another_task_raises_one_line():
    before = {"task": "answering", "model": {"dim": 1}, "training": {"epochs": 3}}
    with pytest.raises(SettingsError, match=r"^here: .* task answering, not captioning; .*$"):
        require_same(before, {"task": "captioning", "model": {"dim": 2}}, "here")


def test_settings_equal_their_json_form():
    @dataclasses.dataclass(frozen=True)
    class PairConfig(Config):
        pair: tuple[int, ...] = (1, 2)

    values = settings(
        PairConfig(**vars(frequently_saved())), "float32", {"train": "a"}, CaptioningTask.free
    )
    assert values["pair"] == [1, 2]
    assert differences(values, {**values, "pair": [1, 3]}) == ["pair: [1, 2] before, [1, 3] now"]


def test_concurrent_run_in_the_folder_raises(killed_run, whole, monkeypatch):
    monkeypatch.setattr(folders, "_LOCK_SECONDS", 0.2)
    with (
        folder_lock(killed_run / ".lock"),
        pytest.raises(ValueError, match="another training run in .* is under way"),
    ):
        train(frequently_saved(), killed_run, resume=True)
    # It waits for a run that is about to end.
    monkeypatch.setattr(folders, "_LOCK_SECONDS", 30.0)
    lock = folder_lock(killed_run / ".lock")
    lock.__enter__()
    pause = folders.time.sleep

    def sleep(seconds):
        pause(seconds)
        lock.__exit__(None, None, None)

    monkeypatch.setattr(folders.time, "sleep", sleep)
    train(frequently_saved(), killed_run, resume=True)
    assert same(killed_run, whole)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["captions.jsonl", "questions.jsonl", "parallel.json"])
def test_starting_in_a_dataset_folder_raises(tmp_path, name, resume):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="holds a dataset; pass another folder with --output"):
        train(frequently_saved(), tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_starting_over_another_run_raises(killed_run, whole, tmp_path):
    with pytest.raises(ValueError, match="already holds a run; continue it with --resume"):
        train(frequently_saved(), killed_run)
    with pytest.raises(ValueError, match="already holds a run"):
        train(frequently_saved(), whole)
    shutil.copytree(whole, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "training")
    with pytest.raises(ValueError, match="has a model, but no training state"):
        train(frequently_saved(), tmp_path / "copy", resume=True)
    assert same(tmp_path / "copy", whole)


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    # In place, so that hard links are damaged too.
    with path.open("r+b") as file:
        file.write(content)


def test_damaged_only_state_raises(killed_run):
    states = sorted((killed_run / "training").iterdir())
    for state in states[:-1]:
        shutil.rmtree(state)
    flip(states[-1] / "progress.json", 30)
    with pytest.raises(ValueError, match=r"no training state .* is complete: .*progress\.json"):
        train(frequently_saved(), killed_run, resume=True)


@pytest.mark.parametrize("damage", ["weights.safetensors", "manifest.json", "missing", "all gone"])
def test_damaged_newest_state_falls_back_to_the_previous(killed_run, whole, damage):
    newest = sorted((killed_run / "training").iterdir())[-1]
    match damage:
        case "missing":
            (newest / "optimizer.safetensors").unlink()
        case "all gone":
            for path in newest.iterdir():
                path.unlink()
        case name:
            flip(newest / name, 50)
    notes = []
    train(frequently_saved(), killed_run, resume=True, listen=notes.append)
    assert notes[0]["event"] == "note"
    assert "resuming from the state before" in notes[0]["text"]
    assert same(killed_run, whole)


@pytest.mark.parametrize("damage", ["flipped", "missing", "all missing"])
def test_damaged_model_of_a_finished_run_is_repaired(tmp_path, whole, damage):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    best = read_state(folder / "training", pytest.fail).progress["progress"]["best"]
    phase = folder / best["phase"]
    match damage:
        case "flipped":  # the phase's model is the same file
            for path in (folder, phase):
                flip(path / WEIGHTS)
        case "missing":
            (folder / WEIGHTS).unlink()
        case _:
            (folder / WEIGHTS).unlink()
            shutil.rmtree(phase)
    entries = []
    train(frequently_saved(), folder, resume=True, listen=entries.append)
    assert [entry["event"] for entry in entries] == ["note", "end"]
    for name in ("", "cross-entropy", "self-critical"):
        assert model_signature(folder / name) == model_signature(whole / name)
        assert load_model(folder / name, "captioning")
    train(frequently_saved(), folder, resume=True, listen=entries.append)
    assert [entry["event"] for entry in entries] == ["note", "end", "end"]


@pytest.mark.parametrize("damage", ["flipped", "missing", "another"])
def test_damaged_weights_for_averaging_raise(tmp_path, damage):
    phase = CrossEntropyConfig(epochs=2, batch_size=16, average_epochs=2)
    config = frequently_saved(cross_entropy=phase, self_critical=SelfCriticalConfig(epochs=0))
    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        train(config, folder, listen=after_steps(6, killed))
    first = folder / "epochs" / "epoch-0001.safetensors"
    match damage:
        case "flipped":
            flip(first)
        case "missing":
            first.unlink()
        case _:
            shutil.copy(folder / "epochs" / "epoch-0002.safetensors", first)
    with pytest.raises(ValueError, match=r"epoch-0001\.safetensors.* damaged or missing"):
        train(config, folder, resume=True)


def test_batch_norm_with_several_processes_raises():
    config = frequently_saved(model=tiny_model(norm="batch"))

    class TwoProcesses:
        world_size, device = 2, torch.device("cpu")

    with pytest.raises(ValueError, match=r"model\.norm: batch .* 2 processes"):
        CaptioningTask(TwoProcesses(), config, None, fresh=True)
