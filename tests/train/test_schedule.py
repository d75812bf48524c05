import math

import pytest
import torch

from ngsan.config import ScheduleConfig
from ngsan.train.step import learning_rate

PAPER = ScheduleConfig()


def test_default_schedule_equals_the_paper():
    # min(t 1e-4, 3e-4), halved after every third epoch from the sixth on
    wanted = [1, 2, 3, 3, 3, 3, 1.5, 1.5, 1.5, 0.75, 0.75, 0.75, 0.375, 0.375, 0.375]
    found = [learning_rate(PAPER, step=10 * epoch, steps=10, epochs=15) for epoch in range(15)]
    assert found == pytest.approx([rate * 1e-4 for rate in wanted])


def test_default_schedule_is_constant_within_an_epoch():
    rates = [learning_rate(PAPER, step=step, steps=7, epochs=15) for step in range(7, 14)]
    assert rates == pytest.approx([2e-4] * 7)


def test_cosine_equals_torch_after_linear_warmup():
    config = ScheduleConfig("cosine", peak_lr=0.5, warmup_epochs=0.5)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=35)
    found = [learning_rate(config, step=step, steps=10, epochs=4) for step in range(40)]
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    for rate in found[5:]:
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        falling.step()


def test_constant_schedule_warms_up():
    config = ScheduleConfig("constant", peak_lr=2.0, warmup_epochs=1.0)
    found = [learning_rate(config, step=step, steps=4, epochs=2) for step in range(8)]
    assert found == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0])
    flat = ScheduleConfig("constant", peak_lr=5e-6, warmup_epochs=0.0)
    assert learning_rate(flat, step=0, steps=4, epochs=2) == 5e-6


@pytest.mark.parametrize("shape", ["step", "cosine", "constant"])
def test_rates_are_between_zero_and_peak_lr(shape):
    for warmup in (0.0, 0.3, 2.0, 9.0):
        config = ScheduleConfig(shape, peak_lr=1e-3, warmup_epochs=warmup)
        for step in range(30):
            rate = learning_rate(config, step=step, steps=10, epochs=3)
            assert 0 <= rate <= 1e-3
            assert math.isfinite(rate)


def test_inverse_sqrt_equals_fairseq():
    config = ScheduleConfig("inverse-sqrt", peak_lr=5e-4, warmup_epochs=2.0)
    found = [learning_rate(config, step=step, steps=10, epochs=100) for step in range(400)]
    # peak_lr * sqrt(warmup) / sqrt(t) after linear warmup, t counting from 1
    wanted = [
        5e-4 * t / 20 if t <= 20 else 5e-4 * math.sqrt(20) / math.sqrt(t) for t in range(1, 401)
    ]
    assert found == pytest.approx(wanted)
