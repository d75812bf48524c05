import math

import numpy as np
import pytest
import torch

from ngsan.nn import BatchNorm, InstanceNorm, LayerNorm
from ngsan.nn.normalize import build_norm
from tests import reference

NAMES = ["instance", "instance-affine", "batch", "layer"]


def ragged(images=3, regions=6, channels=5):
    """Features with garbage in their padding, and the mask of real ones."""
    x = torch.randn(images, regions, channels, dtype=torch.float64) * 3 + 2
    mask = torch.arange(regions) < torch.tensor([6, 4, 1]).unsqueeze(1)
    x[~mask] = math.nan
    return x, mask


def randomized(norm):
    """Gives the affine part random values."""
    for parameter in norm.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 2)
    return norm.double()


def test_instance_norm_is_eq_6_and_7():
    x, mask = ragged()
    ours = InstanceNorm()(x, mask)
    for image in range(3):
        real = x[image, mask[image]].numpy()
        np.testing.assert_allclose(ours[image, mask[image]], reference.instance_norm(real))
    assert ours[~mask].eq(0).all()


def test_instance_norm_equals_torch_without_padding():
    x = torch.randn(4, 9, 7, dtype=torch.float64)
    torch_norm = torch.nn.InstanceNorm1d(7, affine=True).double()
    torch.nn.init.normal_(torch_norm.weight)
    torch.nn.init.normal_(torch_norm.bias)
    ours = InstanceNorm(7, affine=True).double()
    ours.load_state_dict(torch_norm.state_dict())
    torch.testing.assert_close(ours(x), torch_norm(x.transpose(1, 2)).transpose(1, 2))


def test_layer_norm_equals_numpy():
    x, mask = ragged()
    norm = randomized(LayerNorm(5))
    expected = reference.layer_norm(
        x[mask].numpy(), norm.weight.detach().numpy(), norm.bias.detach().numpy()
    )
    np.testing.assert_allclose(norm(x, mask)[mask].detach(), expected)


def test_batch_norm_equals_torch_on_the_real_regions():
    x, mask = ragged()
    theirs = torch.nn.BatchNorm1d(5).double()
    ours = BatchNorm(5).double()
    for _ in range(3):
        torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_variance, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x, mask)[mask], theirs.eval()(x[mask]))


def test_batch_of_padding_does_not_change_batch_norm():
    norm = BatchNorm(5)
    out = norm(torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=torch.bool))
    assert out.eq(0).all()
    assert norm.running_mean.eq(0).all()
    assert norm.running_variance.eq(1).all()


@pytest.mark.parametrize("name", NAMES)
def test_padding_does_not_change_output(name):
    norm = randomized(build_norm(name, 5))
    x, mask = ragged()
    wider = torch.cat((x, torch.full((3, 4, 5), math.inf, dtype=torch.float64)), dim=1)
    wider_mask = torch.cat((mask, torch.zeros(3, 4, dtype=torch.bool)), dim=1)
    out = norm(x, mask)
    assert out[~mask].eq(0).all()
    torch.testing.assert_close(norm(wider, wider_mask)[:, :6], out)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_one_region_and_equal_regions_are_finite(name, dtype):
    norm = build_norm(name, 5).to(dtype)
    one = torch.randn(2, 1, 5).to(dtype).requires_grad_()
    equal = torch.full((2, 4, 5), 7.7).to(dtype).requires_grad_()
    for x in (one, equal):
        out = norm(x, torch.ones(x.shape[:2], dtype=torch.bool))
        assert out.dtype == dtype
        assert out.isfinite().all()
        out.sum().backward()
        assert x.grad.isfinite().all()


def test_one_region_becomes_zero():
    assert InstanceNorm()(torch.randn(2, 1, 3)).eq(0).all()


def test_image_without_regions_gives_zeros_and_finite_gradients():
    x = torch.randn(2, 3, 4, requires_grad=True)
    out = InstanceNorm()(x, torch.zeros(2, 3, dtype=torch.bool))
    out.sum().backward()
    assert out.eq(0).all()
    assert x.grad.isfinite().all()


def test_invalid_use_raises():
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(2, 3\)"):
        InstanceNorm()(torch.randn(2, 3, 4), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="boolean"):
        InstanceNorm()(torch.randn(2, 3, 4), torch.ones(2, 3))
    with pytest.raises(ValueError, match="number of channels"):
        InstanceNorm(affine=True)
    with pytest.raises(ValueError, match="unknown norm 'group'"):
        build_norm("group", 4)
    assert build_norm("none", 4) is None


@pytest.mark.parametrize("name", NAMES)
def test_gradients_at_padding_are_zero(name):
    norm = randomized(build_norm(name, 5))
    x, mask = ragged()
    x.requires_grad_()
    norm(x, mask).square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in norm.parameters())
