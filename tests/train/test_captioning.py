"""A run of both phases learns and writes all its files."""

import dataclasses
import json
import math

import pytest
import torch

from ngsan.config import (
    CrossEntropyConfig,
    DataConfig,
    RuntimeConfig,
    SceneConfig,
    ScheduleConfig,
    SelfCriticalConfig,
    TrainConfig,
    ValidationConfig,
    read_yaml,
)
from ngsan.models.checkpoint import load_model, read_metrics
from ngsan.train.run import train
from tests.train.helpers import same_tensors, tiny_model, tiny_run

CONFIG = TrainConfig(
    model=tiny_model(dim=32, hidden_dim=64),
    data=DataConfig(scenes=SceneConfig(train=1200, test=100)),
    cross_entropy=CrossEntropyConfig(
        epochs=2,
        batch_size=24,
        schedule=ScheduleConfig("cosine", 1e-2, 0.2),
        clip_grad_value=0.0,
        clip_grad_norm=1.0,
    ),
    self_critical=SelfCriticalConfig(
        epochs=2,
        batch_size=24,
        schedule=ScheduleConfig("constant", 5e-4, 0.0),
        clip_grad_value=0.0,
        clip_grad_norm=1.0,
    ),
    runtime=RuntimeConfig(device="cpu", threads=1, log_steps=10),
)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    entries = []
    train(CONFIG, folder, listen=entries.append)
    return folder, entries


def events(entries, name):
    return [entry for entry in entries if entry["event"] == name]


def test_both_phases_raise_the_score(learned):
    _, entries = learned
    epochs = events(entries, "epoch")
    assert [entry["phase"] for entry in epochs] == ["cross-entropy"] * 2 + ["self-critical"] * 2
    scores = [entry["metrics"]["CIDEr"] for entry in epochs]
    assert scores[1] > 150
    assert scores[3] > scores[1] + 10
    assert epochs[1]["loss"] < epochs[0]["loss"]


def test_reward_length_and_entropy_are_logged_before_the_first_step(learned):
    _, entries = learned
    (before,) = events(entries, "before")
    first = next(i for i, entry in enumerate(entries) if entry.get("phase") == "self-critical")
    assert entries[first] is before
    last = events(entries, "epoch")[-1]
    assert last["reward"] > before["reward"] + 0.1
    assert last["greedy_reward"] > before["greedy_reward"]
    assert last["entropy"] < before["entropy"]
    # Captions keep their length.
    assert abs(last["length"] - before["length"]) < 2


def test_log_and_checkpoint_are_consistent(learned):
    folder, entries = learned
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == [entry["event"] for entry in entries]
    best = max(
        events(entries, "epoch"), key=lambda entry: (entry["metrics"]["CIDEr"], -entry["epoch"])
    )
    found = read_metrics(folder)
    assert (found["phase"], found["epoch"]) == (best["phase"], best["epoch"])
    assert found["CIDEr"] == best["metrics"]["CIDEr"]
    assert json.loads((folder / "metrics.json").read_text()) == found
    assert read_yaml(TrainConfig, folder / "config.yaml") == CONFIG
    captioner, config, _ = load_model(folder, "captioning")
    assert config == CONFIG.model
    assert not captioner.training
    phase = load_model(folder / best["phase"], "captioning")[0]
    for mine, its in zip(captioner.parameters(), phase.parameters(), strict=True):
        assert torch.equal(mine, its)
    read_metrics(folder / "cross-entropy")
    assert not list(folder.rglob("*.partial"))


def test_no_pickle_is_written(learned):
    folder, _ = learned
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {".safetensors", ".json"} <= {path.suffix for path in files}
    for path in files:
        start = path.read_bytes()[:9]
        if path.suffix == ".safetensors":
            assert start[8:] == b"{", path  # after the length of the header, any eight bytes
            continue
        # Pickle files start with 0x80; archives of torch and NumPy are zip files.
        assert start[:1] != b"\x80", path
        assert start[:2] != b"PK", path


def test_step_entries_have_all_displayed_fields(learned):
    _, entries = learned
    for entry in events(entries, "step"):
        for key in ("loss", "lr", "images_per_second", "seconds_left", "epoch", "step"):
            assert math.isfinite(entry[key])
    start = events(entries, "start")[0]
    assert start["model"] == "ng-san"
    assert start["images"] == 1200


def test_patience_ends_a_phase(tmp_path):
    changes = dict(
        epochs=6, batch_size=16, patience=1, schedule=ScheduleConfig("constant", 1e-9, 0.0)
    )
    entries = []
    config = tiny_run(
        cross_entropy=CrossEntropyConfig(**changes), self_critical=SelfCriticalConfig(epochs=0)
    )
    train(config, tmp_path / "run", listen=entries.append)
    assert len(events(entries, "epoch")) == 2
    (stop,) = events(entries, "stop")
    assert "no better CIDEr for 1 epochs" in stop["reason"]


def test_average_of_the_last_epochs(tmp_path):
    entries, weights = [], []
    config = tiny_run(
        cross_entropy=CrossEntropyConfig(
            epochs=3,
            batch_size=16,
            average_epochs=2,
            schedule=ScheduleConfig("constant", 1e-3, 0.0),
        ),
        self_critical=SelfCriticalConfig(epochs=0),
        validation=ValidationConfig(metric="BLEU-1"),
    )
    import ngsan.train.checkpointing as checkpoint_module

    keep = checkpoint_module.Checkpointer.keep_epoch

    def record_weights(self, epoch, state, count):
        weights.append({name: tensor.clone() for name, tensor in state.items()})
        keep(self, epoch, state, count)

    average = checkpoint_module.Checkpointer.average_epochs
    found = []

    def record_average(self, count):
        found.append(average(self, count))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_module.Checkpointer, "keep_epoch", record_weights)
        patch.setattr(checkpoint_module.Checkpointer, "average_epochs", record_average)
        train(config, tmp_path / "run", listen=entries.append)
    epochs, mean = found[0]
    assert epochs == [2, 3]
    for name, tensor in mean.items():
        wanted = (weights[1][name].double() + weights[2][name].double()) / 2
        torch.testing.assert_close(tensor.double(), wanted, rtol=1e-6, atol=1e-7)
    assert events(entries, "average")[0]["epochs"] == [2, 3]
    assert not (tmp_path / "run" / "epochs").exists()


def test_init_from_starts_with_the_given_model(tmp_path):
    train(tiny_run(self_critical=SelfCriticalConfig(epochs=0)), tmp_path / "first")
    entries = []
    second = tiny_run(
        init_from=str(tmp_path / "first"),
        cross_entropy=CrossEntropyConfig(
            epochs=1, batch_size=16, schedule=ScheduleConfig("constant", 1e-12, 0.0)
        ),
        self_critical=SelfCriticalConfig(epochs=0),
    )
    train(second, tmp_path / "second", listen=entries.append)
    first, found = (load_model(tmp_path / name, "captioning")[0] for name in ("first", "second"))
    for mine, its in zip(found.parameters(), first.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match=r"another shape.*model\.dim"):
        train(tiny_run(init_from=str(tmp_path / "first"), model=tiny_model(dim=32)), tmp_path / "3")


def test_vocab_and_feature_size_come_from_the_data(tmp_path):
    base = tiny_run(self_critical=SelfCriticalConfig(epochs=0))
    other = dataclasses.replace(base, model=tiny_model(vocab_size=9488, feature_dim=2048))
    train(base, tmp_path / "first")
    train(other, tmp_path / "other")
    first, second = (load_model(tmp_path / name, "captioning") for name in ("first", "other"))
    assert second[1] == base.model
    assert read_yaml(TrainConfig, tmp_path / "other" / "config.yaml") == base
    assert same_tensors(first[0].state_dict(), second[0].state_dict())
    # Configs that differ only in these sizes resume the same run.
    for again in (base, other, read_yaml(TrainConfig, tmp_path / "other" / "config.yaml")):
        train(again, tmp_path / "other", resume=True)
    with pytest.raises(ValueError, match=r"model\.layers: 1 before, 2 now"):
        train(
            dataclasses.replace(other, model=tiny_model(vocab_size=7, layers=2)),
            tmp_path / "other",
            resume=True,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": DataConfig()}, "pass the dataset, made by"),
        ({"data": DataConfig(folder="nowhere")}, "nowhere"),
        ({"runtime": RuntimeConfig(device="cuda")}, "finds no GPU"),
        ({"init_from": "nowhere"}, "nowhere is not a model"),
    ],
)
def test_invalid_settings_raise_early(tmp_path, changes, message):
    if "runtime" in changes and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises((ValueError, OSError), match=message):
        train(tiny_run(**changes), tmp_path / "run")
