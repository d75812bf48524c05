"""Compiled and captured steps on a GPU train like plain steps on a CPU."""

import copy
import dataclasses

import pytest
import torch

from ngsan.config import PhaseConfig, RuntimeConfig, SelfCriticalConfig
from ngsan.models.checkpoint import load_model
from ngsan.train.run import train
from tests.train.helpers import dataset, scene_folder, tiny_model, tiny_run

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # The compiler and Fabric emit warnings.
    pytest.mark.filterwarnings("ignore"),
]


def runtime_config(**changes):
    return RuntimeConfig(**{"device": "cuda", "precision": "float32", "log_steps": 1, **changes})


def losses(config, folder):
    entries = []
    train(config, folder, listen=entries.append)
    steps = [entry for entry in entries if entry["event"] == "step"]
    return [entry["loss"] for entry in steps], entries


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The run on the CPU."""
    folder = tmp_path_factory.mktemp("cpu")
    cpu = dataclasses.replace(runtime_config(device="cpu"), threads=1)
    found, _ = losses(tiny_run(runtime=cpu), folder / "run")
    return found, load_model(folder / "run" / "cross-entropy", "captioning")[0]


@pytest.mark.parametrize(
    "changes",
    [{}, {"compile": False}, {"data": "host", "workers": 0}, {"data": "host", "compile": False}],
)
def test_gpu_run_equals_cpu_run_up_to_rounding(tmp_path, plain, changes):
    found, _ = losses(tiny_run(runtime=runtime_config(**changes)), tmp_path / "run")
    wanted, captioner = plain
    phase = len(wanted) // 2
    assert found[:phase] == pytest.approx(wanted[:phase], rel=1e-4)
    theirs = load_model(tmp_path / "run" / "cross-entropy", "captioning")[0]
    # Compare logits, not weights: key biases have only rounding as gradient, which Adam follows.
    batch = dataset(scene_folder(tmp_path / "scenes")).batch(range(12))
    parts = (batch.features.float(), batch.boxes, batch.mask)
    found, wanted = (
        model.eval().decode(batch.words, model.encode(*parts), batch.mask)
        for model in (theirs, captioner)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_half_precision_reduces_the_loss(tmp_path):
    found, entries = losses(
        tiny_run(runtime=runtime_config(precision="bfloat16")), tmp_path / "run"
    )
    assert entries[-1]["event"] == "end"
    assert found[2] < found[0]


def test_stopped_run_resumes(tmp_path):
    config = tiny_run(runtime=runtime_config(save_seconds=0.0))

    class Stop(BaseException):
        pass

    def listen(entry):
        if entry["event"] == "checkpoint" and entry["step"] == 4:
            raise Stop

    with pytest.raises(Stop):
        train(config, tmp_path / "run", listen=listen)
    train(config, tmp_path / "run", resume=True)
    whole = tmp_path / "whole"
    train(config, whole)
    pairs = (load_model(folder, "captioning")[0] for folder in (tmp_path / "run", whole))
    for mine, its in zip(*(pair.parameters() for pair in pairs), strict=True):
        assert (mine - its).abs().max() < 2e-3


def test_warm_up_of_captured_steps_does_not_change_weights(tmp_path):
    from lightning_fabric import Fabric

    from ngsan.models import build_captioner
    from ngsan.train.step import CapturedStep, Step, build_optimizer
    from ngsan.train.tasks.captioning import CrossEntropyLoss

    batch = dataset(scene_folder(tmp_path)).batch(range(12)).to("cuda")
    names = ("features", "boxes", "mask", "words", "targets", "target_mask")
    inputs = {name: getattr(batch, name) for name in names}
    torch.manual_seed(0)
    first = build_captioner(tiny_model()).cuda().train()
    second = copy.deepcopy(first)
    fabric = Fabric(accelerator="cuda", devices=1)
    capacity = int(batch.target_mask.sum())
    for captioner in (first, second):
        module = fabric.setup_module(CrossEntropyLoss(captioner, capacity=capacity))
        optimizer = build_optimizer(captioner, torch.device("cuda"))
        step = Step(fabric, module, optimizer, PhaseConfig(clip_grad_value=0.1, clip_grad_norm=0.0))
        if captioner is second:
            step = CapturedStep(step, captioner, optimizer)
        for number in range(5):
            step(inputs, 1e-2 / (number + 1))
    for mine, its in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-3)


def test_captured_steps_of_several_shapes_are_independent(tmp_path):
    """They share a memory pool, so leftovers of one must not affect another."""
    from lightning_fabric import Fabric

    from ngsan.models import build_captioner
    from ngsan.train.step import CapturedStep, Step, build_optimizer
    from ngsan.train.tasks.captioning import CrossEntropyLoss

    batch = dataset(scene_folder(tmp_path)).batch(range(12)).to("cuda")
    names = ("features", "boxes", "mask", "words", "targets", "target_mask")
    torch.manual_seed(0)
    first = build_captioner(tiny_model()).cuda().train()
    fabric = Fabric(accelerator="cuda", devices=1)
    capacity = 40 * int(batch.target_mask.sum())
    steps = []
    for captioner in (first, copy.deepcopy(first)):
        module = fabric.setup_module(CrossEntropyLoss(captioner, capacity=capacity))
        optimizer = build_optimizer(captioner, torch.device("cuda"))
        steps.append(
            Step(fabric, module, optimizer, PhaseConfig(clip_grad_value=0.1, clip_grad_norm=0.0))
        )
        if captioner is not first:
            steps[-1] = CapturedStep(steps[-1], captioner, optimizer)
    for number, (images, copies) in enumerate([(12, 1), (5, 40), (12, 40), (9, 7)] * 4):
        inputs = {}
        for name in names:
            part = getattr(batch, name)
            repeats = [copies, *[1] * (part.dim() - 1)] if part is not None else []
            inputs[name] = None if part is None else part[:images].repeat(repeats)
        plain, captured = (step(inputs, 1e-2 / (number + 1)) for step in steps)
        torch.testing.assert_close(captured, plain, rtol=1e-3, atol=1e-3)


def test_greedy_reward_is_reported_in_every_step(tmp_path):
    config = tiny_run(
        runtime=runtime_config(precision="bfloat16"),
        self_critical=SelfCriticalConfig(
            epochs=1, batch_size=16, baseline="greedy", bleu_weight=0.5
        ),
    )
    _, entries = losses(config, tmp_path / "run")
    assert all(
        "greedy_reward" in e
        for e in entries
        if e.get("phase") == "self-critical" and e["event"] == "step"
    )
