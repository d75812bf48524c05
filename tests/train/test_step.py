"""A training step against the same in plain torch."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric

from ngsan.config import PhaseConfig
from ngsan.models import build_captioner
from ngsan.nn.losses import allowed_log_probs, word_cross_entropy
from ngsan.train.step import (
    BETAS,
    CapturedStep,
    Step,
    build_optimizer,
    load_optimizer,
    optimizer_tensors,
)
from ngsan.train.tasks.captioning import CrossEntropyLoss
from tests.train.helpers import dataset, scene_folder, tiny_model


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    return dataset(scene_folder(tmp_path_factory.mktemp("scenes"))).batch(range(12))


@pytest.fixture
def captioner():
    torch.manual_seed(0)
    return build_captioner(tiny_model()).train()


def inputs_of(batch):
    names = ("features", "boxes", "mask", "words", "targets", "target_mask")
    return {name: getattr(batch, name) for name in names}


@pytest.fixture(scope="module")
def fabric():
    return Fabric(accelerator="cpu", devices=1)


@pytest.mark.parametrize(
    "clip",
    [
        PhaseConfig(clip_grad_value=0.01, clip_grad_norm=0.0),
        PhaseConfig(clip_grad_value=0.0, clip_grad_norm=0.05),
        PhaseConfig(clip_grad_value=0.0, clip_grad_norm=0.0),
    ],
)
def test_steps_equal_adam_on_mean_cross_entropy(batch, captioner, fabric, clip):
    # In double precision, because Adam amplifies the rounding of zero gradients.
    captioner, features = captioner.double(), batch.features.double()
    other = copy.deepcopy(captioner)
    plain = torch.optim.Adam(other.parameters(), betas=BETAS, lr=1e-2, foreach=False)
    module = CrossEntropyLoss(captioner)
    optimizer = build_optimizer(captioner, torch.device("cpu"))
    step = Step(fabric, fabric.setup_module(module), optimizer, clip)
    for _ in range(3):
        sums = step({**inputs_of(batch), "features": features}, 1e-2)
        logits = other(features, batch.boxes, batch.mask, batch.words)
        real = batch.target_mask
        loss = F.cross_entropy(logits[real], batch.targets[real])
        plain.zero_grad()
        loss.backward()
        if clip.clip_grad_value:
            for parameter in other.parameters():
                parameter.grad.clamp_(-clip.clip_grad_value, clip.clip_grad_value)
        if clip.clip_grad_norm:
            norm = torch.cat([p.grad.flatten() for p in other.parameters()]).norm()
            for parameter in other.parameters():
                parameter.grad.mul_(min(1.0, clip.clip_grad_norm / (norm + 1e-6)))
        plain.step()
        assert sums[0] / sums[1] == pytest.approx(loss.item(), rel=1e-5)
        assert sums[1] == real.sum()
    for mine, its in zip(captioner.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-6, atol=1e-6)


def test_optimizer_state_round_trips(batch, captioner, fabric):
    def steps(model, optimizer, count):
        step = Step(
            fabric,
            fabric.setup_module(CrossEntropyLoss(model)),
            optimizer,
            PhaseConfig(clip_grad_value=0, clip_grad_norm=1),
        )
        for _ in range(count):
            step(inputs_of(batch), 1e-2)

    optimizer = build_optimizer(captioner, torch.device("cpu"))
    steps(captioner, optimizer, 2)
    other = copy.deepcopy(captioner)
    again = build_optimizer(other, torch.device("cpu"))
    load_optimizer(again, other, optimizer_tensors(optimizer, captioner))
    steps(captioner, optimizer, 2)
    steps(other, again, 2)
    for mine, its in zip(captioner.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_optimizer_state_of_another_model_raises(captioner):
    optimizer = build_optimizer(captioner, torch.device("cpu"))
    with pytest.raises(ValueError, match="exp_avg.nowhere"):
        load_optimizer(optimizer, captioner, {"exp_avg.nowhere": torch.zeros(3)})
    name = next(iter(dict(captioner.named_parameters())))
    with pytest.raises(ValueError, match="which the model does not have"):
        load_optimizer(optimizer, captioner, {f"exp_avg.{name}": torch.zeros(3)})


@pytest.mark.parametrize("spare", [None, 0, 7])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_packing_does_not_change_the_loss(batch, captioner, spare, smoothing):
    captioner.eval()
    real = int(batch.target_mask.sum())
    module = CrossEntropyLoss(
        captioner, label_smoothing=smoothing, capacity=None if spare is None else real + spare
    )
    total, count = module(**inputs_of(batch))
    logits = captioner(batch.features, batch.boxes, batch.mask, batch.words)
    wanted = word_cross_entropy(logits, batch.targets, batch.target_mask, label_smoothing=smoothing)
    assert count == real
    assert (total / count).item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_allowed_log_probs_by_hand(temperature):
    logits = torch.randn(3, 5, dtype=torch.double)
    found = allowed_log_probs(logits, forbidden=torch.tensor([2]), temperature=temperature)
    powers = (logits / temperature).exp()
    powers[:, 2] = 0
    torch.testing.assert_close(found.exp(), powers / powers.sum(-1, keepdim=True))
    assert torch.isneginf(found[:, 2]).all()


def test_captured_step_equals_plain_step_and_is_freed(batch, captioner, fabric):
    """Its graphs may hold most of the GPU memory, so it must not need the garbage collector."""
    mine, other = (copy.deepcopy(captioner) for _ in range(2))
    plain = Step(
        fabric,
        CrossEntropyLoss(other),
        optimizer_of(other),
        PhaseConfig(clip_grad_value=0, clip_grad_norm=1),
    )
    module, optimizer = CrossEntropyLoss(mine), optimizer_of(mine)
    step = CapturedStep(
        Step(fabric, module, optimizer, PhaseConfig(clip_grad_value=0, clip_grad_norm=1)),
        mine,
        optimizer,
    )
    some = {name: None if value is None else value[:5] for name, value in inputs_of(batch).items()}
    for inputs in (inputs_of(batch), some, inputs_of(batch)):
        torch.manual_seed(1)
        found = step(inputs, 1e-2)
        torch.manual_seed(1)
        assert torch.equal(found, plain(inputs, 1e-2))
    held = [weakref.ref(part) for part in (step, module, optimizer, mine)]
    gc.disable()
    try:
        del step, module, optimizer, mine
        assert [one() for one in held] == [None] * 4
    finally:
        gc.enable()


def optimizer_of(module):
    return build_optimizer(module, torch.device("cpu"))
