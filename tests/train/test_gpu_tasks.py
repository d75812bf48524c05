"""Translators and answerers train on a GPU as on a CPU, with batches of several shapes."""

import dataclasses

import pytest
import torch

from ngsan.config import RuntimeConfig
from ngsan.data.synthetic.folders import write_question_scenes
from ngsan.models.checkpoint import load_model
from ngsan.train.run import train
from tests import translation_helpers
from tests.train import test_answering

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # The compiler and Fabric emit warnings.
    pytest.mark.filterwarnings("ignore"),
]


def translation_run(folder):
    pytest.importorskip("tokenizers")
    data = translation_helpers.backwards_folder(folder / "texts", train=300, val=20)
    run = translation_helpers.small_run(data, epochs=2)
    return run, lambda output: load_model(output, "translation")[0]


def answering_run(folder):
    write_question_scenes(folder / "scenes", {"train": 60, "val": 30}, max_objects=3)
    run = test_answering.small_run(folder / "scenes")
    model = dataclasses.replace(run.model, geometry="query", question_geometry="query", dropout=0.0)
    return dataclasses.replace(run, model=model), lambda output: load_model(output, "answering")[0]


def losses(run, output, **machine):
    entries = []
    config = RuntimeConfig(precision="float32", threads=1, log_steps=1)
    train(
        dataclasses.replace(run, runtime=dataclasses.replace(config, **machine)),
        output,
        listen=entries.append,
    )
    return [entry["loss"] for entry in entries if entry["event"] == "step"]


@pytest.mark.parametrize("task", [translation_run, answering_run])
@pytest.mark.parametrize("changes", [{}, {"compile": False}, {"data": "host", "workers": 0}])
def test_gpu_run_equals_cpu_run_up_to_rounding(tmp_path, task, changes):
    run, load = task(tmp_path)
    wanted = losses(run, tmp_path / "cpu", device="cpu")
    found = losses(run, tmp_path / "gpu", device="cuda", **changes)
    assert len(found) >= 8
    assert found == pytest.approx(wanted, rel=2e-3)
    for mine, its in zip(
        load(tmp_path / "gpu").parameters(), load(tmp_path / "cpu").parameters(), strict=True
    ):
        assert (mine - its).abs().max() < 1e-2


@pytest.mark.parametrize("task", [translation_run, answering_run])
def test_half_precision_reduces_the_loss(tmp_path, task):
    run, _ = task(tmp_path)
    found = losses(run, tmp_path / "gpu", device="cuda", precision="bfloat16")
    assert sum(found[-3:]) < sum(found[:3])
