import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ngsan.nn import AbsoluteGeometry, GeometryBias, check_boxes, relative_geometry
from ngsan.nn.geometry import BIAS_TERMS
from tests import reference


def state_of(module):
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("signed", [False, True])
def test_relative_geometry_is_eq_8(make_boxes, signed):
    boxes = make_boxes(3, 7)
    ours = relative_geometry(boxes, signed=signed)
    assert ours.shape == (3, 7, 7, 6 if signed else 4)
    for image in range(3):
        expected = reference.relative_geometry(boxes[image].numpy(), signed)
        np.testing.assert_allclose(ours[image], expected, rtol=0, atol=1e-12)


def test_relative_geometry_of_a_pair_by_hand():
    boxes = torch.tensor([[[10.0, 20.0, 4.0, 8.0], [14.0, 4.0, 2.0, 16.0]]], dtype=torch.float64)
    first, second = relative_geometry(boxes)[0, 0, 1], relative_geometry(boxes)[0, 1, 0]
    # |10 - 14| / 4 = 1, |20 - 4| / 8 = 2, 4 / 2 = 2, 8 / 16 = 1/2; seen from the second: /2, /16.
    assert first.tolist() == pytest.approx([0.0, math.log(2), math.log(2), -math.log(2)])
    assert second.tolist() == pytest.approx([math.log(2), 0.0, -math.log(2), math.log(2)])


def test_plus_one(make_boxes):
    """By corners and loops, as in the program of the object relation transformer."""
    boxes = make_boxes(2, 4)
    ours = relative_geometry(boxes, plus_one=True)
    for image, i, j in itertools.product(range(2), range(4), range(4)):
        (cxi, cyi, wi, hi), (cxj, cyj, wj, hj) = boxes[image, [i, j]].tolist()
        wide, high = (cxi + wi / 2) - (cxi - wi / 2) + 1, (cyi + hi / 2) - (cyi - hi / 2) + 1
        expected = [
            math.log(max(abs(cxi - cxj) / wide, 1e-3)),
            math.log(max(abs(cyi - cyj) / high, 1e-3)),
            math.log(wide / (wj + 1)),
            math.log(high / (hj + 1)),
        ]
        assert ours[image, i, j].tolist() == pytest.approx(expected, abs=1e-12)


def test_plus_one_makes_all_boxes_similar(make_boxes):
    """With plus_one, no relative box is more than twice as wide as another."""
    small = make_boxes(5, 9) * torch.tensor([1.0, 1.0, 0.05, 0.05])
    assert relative_geometry(small, plus_one=True)[..., 2:].abs().max() < math.log(2)
    assert relative_geometry(small)[..., 2:].abs().max() > math.log(2)


def test_plus_one_rejects_pixel_boxes(make_boxes):
    with pytest.raises(ValueError, match=r"1 added .* relative to the image, .* divide by"):
        relative_geometry(make_boxes(1, 3) * 640, plus_one=True)


def test_log_of_zero_is_floored(make_boxes):
    boxes = make_boxes(1, 3)
    boxes[0, 1, 0] = boxes[0, 0, 0]
    geometry = relative_geometry(boxes)
    assert geometry[0].diagonal()[:2].eq(math.log(1e-3)).all()
    assert geometry[0].diagonal()[2:].eq(0).all()
    assert geometry[0, 0, 1, 0] == math.log(1e-3)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 6),
    st.floats(-1e3, 1e3),
    st.floats(1e-2, 1e3),
    st.floats(1e-2, 1e3),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_relative_geometry_is_invariant_to_shift_and_scale(
    regions, shift, x_scale, y_scale, signed, seed
):
    generator = torch.Generator().manual_seed(seed)
    boxes = 0.1 + torch.rand(1, regions, 4, dtype=torch.float64, generator=generator)
    moved = boxes * torch.tensor([x_scale, y_scale, x_scale, y_scale])
    moved = moved + torch.tensor([shift, -shift, 0.0, 0.0])
    torch.testing.assert_close(
        relative_geometry(moved, signed=signed),
        relative_geometry(boxes, signed=signed),
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_only_signed_geometry_sees_a_mirrored_image(make_boxes, axis):
    boxes = make_boxes(2, 5)
    mirrored = boxes.clone()
    mirrored[..., axis] = 1 - mirrored[..., axis]
    torch.testing.assert_close(relative_geometry(mirrored), relative_geometry(boxes))
    signed, mirrored_signed = (relative_geometry(b, signed=True) for b in (boxes, mirrored))
    torch.testing.assert_close(mirrored_signed[..., 4 + axis], -signed[..., 4 + axis])
    assert not torch.allclose(mirrored_signed[..., 4 + axis], signed[..., 4 + axis])


@pytest.mark.parametrize(
    ("entry", "value"), [(2, 0.0), (3, -0.1), (0, math.nan), (2, math.inf), (1, -math.inf)]
)
def test_invalid_boxes_raise(make_boxes, entry, value):
    boxes = make_boxes(2, 4)
    boxes[1, 2, entry] = value
    for check in (relative_geometry, check_boxes):
        with pytest.raises(ValueError, match="box 2 of image 1"):
            check(boxes)
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[1, 2] = False
    check_boxes(boxes, mask)
    assert relative_geometry(boxes, mask).isfinite().all()


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 5), (1, 2, 3, 4)])
def test_boxes_of_wrong_shape_raise(shape):
    with pytest.raises(ValueError, match="boxes must have shape"):
        relative_geometry(torch.ones(shape))


def test_integer_boxes_and_invalid_masks_raise():
    with pytest.raises(ValueError, match="floating point"):
        relative_geometry(torch.ones(1, 2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"\(1, 3\)"):
        relative_geometry(torch.ones(1, 2, 4), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="boolean"):
        relative_geometry(torch.ones(1, 2, 4), torch.ones(1, 2))


SUMS = [
    "+".join(terms) for count in (1, 2, 4) for terms in itertools.combinations(BIAS_TERMS, count)
]


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("signed", [False, True])
def test_biases_are_eq_9_and_11_to_13(make_boxes, kind, signed):
    bias = GeometryBias(kind, dim=12, heads=3, width=5, signed=signed).double()
    boxes, x = make_boxes(2, 4), torch.randn(2, 4, 12, dtype=torch.float64)
    ours = bias(relative_geometry(boxes, signed=signed), x)
    assert ours.shape == (2, 3, 4, 4)
    for image in range(2):
        geometry = reference.relative_geometry(boxes[image].numpy(), signed)
        expected = reference.geometry_bias(
            kind.split("+"), geometry, x[image].numpy(), state_of(bias), "", 3
        )
        np.testing.assert_allclose(ours[image].detach(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["query", "key+query", "content-independent", "relation"])
def test_geometry_that_images_share(make_boxes, kind):
    bias = GeometryBias(kind, dim=12, heads=3, width=5).double()
    geometry = relative_geometry(make_boxes(1, 4))
    x = torch.randn(3, 4, 12, dtype=torch.float64)
    each = bias(geometry.expand(3, -1, -1, -1), x)
    torch.testing.assert_close(bias(geometry, x).expand_as(each), each)


def test_relation_bias_multiplies_the_attention_weights(make_boxes):
    """Adding the logarithm of the gate is the product of gate and weight, normalised."""
    bias = GeometryBias("relation", heads=2).double()
    geometry = relative_geometry(make_boxes(1, 5))
    addend = bias(geometry, torch.zeros(1, 5, 512))
    gate = addend.exp()
    scores = torch.randn(1, 2, 5, 5, dtype=torch.float64)
    product = gate * scores.softmax(-1)
    expected = product / product.sum(-1, keepdim=True)
    torch.testing.assert_close((scores + addend).softmax(-1), expected)


def test_content_independent_bias_ignores_content_and_query_bias_does_not(make_boxes):
    geometry = relative_geometry(make_boxes(1, 4))
    one, other = torch.randn(2, 1, 4, 512, dtype=torch.float64)
    still, moving = GeometryBias("content-independent").double(), GeometryBias("query").double()
    assert torch.equal(still(geometry, one), still(geometry, other))
    assert not torch.allclose(moving(geometry, one), moving(geometry, other))


def test_initial_bias_does_not_depend_on_content(make_boxes):
    bias = GeometryBias("query+key", dim=32, heads=4, width=16).double()
    geometry = relative_geometry(make_boxes(2, 5))
    contents = torch.randn(2, 2, 5, 32, dtype=torch.float64)
    before = [bias(geometry, x) for x in contents]
    assert not torch.allclose(*before)
    bias.init_constant()
    first, second = (bias(geometry, x) for x in contents)
    assert torch.equal(first, second)
    assert first.std() > 0  # positions still matter


def test_initial_constants_have_norm_one():
    torch.manual_seed(0)
    bias = GeometryBias("query+key", dim=8, heads=400, width=64)
    bias.init_constant()
    for projection in (bias.query, bias.key):
        lengths = projection.bias.view(400, 64).square().sum(1)
        assert lengths.mean().item() == pytest.approx(1.0, abs=0.05)
    independent = GeometryBias("content-independent", dim=8, heads=2, width=4)
    state = {name: value.clone() for name, value in independent.state_dict().items()}
    independent.init_constant()
    assert all(torch.equal(value, state[name]) for name, value in independent.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "message"),
    [("qeury", "unknown geometric bias 'qeury'"), ("query+query", "twice"), ("", "unknown")],
)
def test_unknown_bias_raises(kind, message):
    with pytest.raises(ValueError, match=message):
        GeometryBias(kind)


def test_bias_rejects_geometry_of_the_other_form(make_boxes):
    with pytest.raises(ValueError, match="needs 6 geometry features"):
        GeometryBias(signed=True)(
            relative_geometry(make_boxes(1, 2).float()), torch.zeros(1, 2, 512)
        )


def test_absolute_geometry(make_boxes):
    boxes = make_boxes(2, 3)
    expected = reference.waves(boxes.numpy() * 100, 4, 1000).reshape(2, 3, 16)
    np.testing.assert_allclose(AbsoluteGeometry(16)(boxes), expected, atol=1e-12)
    with pytest.raises(ValueError, match="relative to the image.*480"):
        AbsoluteGeometry(16)(boxes * 0 + 480)
    with pytest.raises(ValueError, match="divisible by 8"):
        AbsoluteGeometry(12)
