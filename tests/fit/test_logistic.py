"""Logistic regression against closed forms and gradients."""

import numpy as np
import pytest
import torch

from ngsan.fit.logistic import fit_logistic


def test_two_groups_give_their_log_odds():
    group = np.repeat([0.0, 1.0], [10, 20])
    right = np.concatenate((np.arange(10) < 3, np.arange(20) < 15))
    factor, summand = fit_logistic(np.stack((group, np.ones(30)), 1), right)
    assert summand == pytest.approx(np.log(3 / 7))
    assert factor == pytest.approx(np.log(15 / 5) - np.log(3 / 7))


@pytest.mark.parametrize("ridge", [0.0, 5.0])
def test_gradient_of_torchs_loss_vanishes_at_the_solution(ridge):
    chance = np.random.default_rng(0)
    inputs = np.concatenate((chance.normal(size=(300, 3)), np.ones((300, 1))), 1)
    right = chance.random(300) < 1 / (1 + np.exp(-inputs @ [1.0, -2.0, 0.0, 0.5]))
    found = torch.tensor(fit_logistic(inputs, right, ridge=ridge), requires_grad=True)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.tensor(inputs) @ found, torch.tensor(right, dtype=torch.float64), reduction="sum"
    )
    (loss + ridge / 2 * found[:-1].square().sum()).backward()
    assert found.grad.abs().max() < 1e-5


def test_nothing_to_learn_raises():
    with pytest.raises(ValueError, match="all 4 outcomes"):
        fit_logistic(np.ones((4, 1)), np.ones(4, bool))
