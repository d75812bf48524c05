import numpy as np
import pytest
import torch

from ngsan.nn import (
    Attend,
    BatchNorm,
    GeometryBias,
    InstanceNorm,
    LayerNorm,
    MultiHeadAttention,
    relative_geometry,
)
from tests import reference
from tests.nn.test_geometry import state_of


def parts(images=2, heads=3, queries=4, keys=6, width=5, dtype=torch.float64):
    query = torch.randn(images, heads, queries, width, dtype=dtype)
    key, value = torch.randn(2, images, heads, keys, width, dtype=dtype)
    return query, key, value


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_backends_agree_in_value_and_gradient(biased, masked, causal):
    query, key, value = parts(queries=6)
    bias = torch.randn(2, 3, 6, 6, dtype=torch.float64) if biased else None
    # The second image has no keys, and with causal order some rows of the first see none.
    mask = torch.tensor([[False, True, True, False, True, False], [False] * 6]) if masked else None
    results = []
    for backend in ("explicit", "fused"):
        inputs = [x.clone().requires_grad_() for x in (query, key, value)]
        out = Attend(backend=backend)(*inputs, bias=bias, mask=mask, causal=causal)
        out.square().sum().backward()
        results.append((out, *(x.grad for x in inputs)))
    for explicit, fused in zip(*results, strict=True):
        assert explicit.isfinite().all()
        torch.testing.assert_close(fused, explicit)


@pytest.mark.parametrize("backend", ["explicit", "fused"])
def test_row_without_keys_is_zero(backend):
    query, key, value = parts()
    mask = torch.tensor([[True] * 6, [False] * 6])
    out = Attend(backend=backend)(query, key, value, mask=mask)
    assert out[0].ne(0).all()
    assert out[1].eq(0).all()


def test_maps_times_values_equal_the_output():
    query, key, value = parts()
    bias = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 5 + [False], [False] * 6])
    attend = Attend()
    maps = attend.maps(query, key, bias=bias, mask=mask)
    torch.testing.assert_close(
        maps.weights @ value, attend(query, key, value, bias=bias, mask=mask)
    )
    assert maps.weights[..., 5].eq(0).all()
    torch.testing.assert_close(maps.weights[0].sum(-1), torch.ones(3, 4, dtype=torch.float64))
    expected = (maps.content + maps.bias)[0, ..., :5].softmax(-1)
    torch.testing.assert_close(maps.weights[0, ..., :5], expected)


@pytest.mark.parametrize("norm", [None, InstanceNorm, "layer"])
@pytest.mark.parametrize("backend", ["explicit", "fused"])
def test_attention_equals_numpy(make_boxes, norm, backend):
    make_norm = {None: lambda: None, InstanceNorm: InstanceNorm, "layer": lambda: LayerNorm(12)}
    attention = MultiHeadAttention(
        12,
        3,
        query_norm=make_norm[norm](),
        score_bias=GeometryBias("query", dim=12, heads=3, width=4),
        backend=backend,
    ).double()
    boxes, x = make_boxes(2, 5), torch.randn(2, 5, 12, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    ours = attention(x, mask=mask, geometry=relative_geometry(boxes, mask))
    state = state_of(attention)
    plain = {
        None: None,
        InstanceNorm: reference.instance_norm,
        "layer": lambda y: reference.layer_norm(y, np.ones(12), np.zeros(12)),
    }
    for image, count in enumerate((5, 3)):
        real = x[image, :count].numpy()
        geometry = reference.relative_geometry(boxes[image, :count].numpy())
        bias = reference.geometry_bias(["query"], geometry, real, state, "score_bias.", 3)
        expected = reference.attention(real, real, state, "", 3, bias, norms=(plain[norm], None))
        np.testing.assert_allclose(ours[image, :count].detach(), expected, atol=1e-10)


def test_attention_equals_torch_multihead_attention():
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    ours = MultiHeadAttention(12, 3).double()
    weights = theirs.in_proj_weight.chunk(3)
    for layer, weight in zip((ours.query, ours.key, ours.value), weights, strict=True):
        layer.weight.data, layer.bias.data = weight.data, torch.zeros(12, dtype=torch.float64)
    ours.output.load_state_dict(theirs.out_proj.state_dict())
    x, memory = (
        torch.randn(2, 4, 12, dtype=torch.float64),
        torch.randn(2, 6, 12, dtype=torch.float64),
    )
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    expected, _ = theirs(x, memory, memory, key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, memory, mask=mask), expected)


def test_layer_of_the_paper_has_the_right_shape(make_boxes):
    attention = MultiHeadAttention(query_norm=InstanceNorm(), score_bias=GeometryBias("query"))
    boxes = make_boxes(1, 3).float()
    out = attention(torch.randn(1, 3, 512), geometry=relative_geometry(boxes))
    assert out.shape == (1, 3, 512)


def test_later_inputs_do_not_change_causal_attention():
    attention = MultiHeadAttention(12, 3, causal=True)
    x = torch.randn(1, 5, 12)
    changed = x.clone()
    changed[:, 3:] = 9.0
    torch.testing.assert_close(attention(changed)[:, :3], attention(x)[:, :3])
    assert not torch.allclose(attention(changed)[:, 3:], attention(x)[:, 3:])


@pytest.mark.parametrize("norm", [InstanceNorm(), BatchNorm(512)])
@pytest.mark.parametrize("place", ["query_norm", "key_norm"])
def test_instance_norm_with_causal_order_raises(norm, place):
    with pytest.raises(ValueError, match="statistics include future words"):
        MultiHeadAttention(causal=True, **{place: norm})


def test_invalid_use_raises():
    attention = MultiHeadAttention(12, 3)
    with pytest.raises(ValueError, match=r"mask of shape \(2, 5\)"):
        attention(torch.randn(2, 4, 12), mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="needs geometry="):
        MultiHeadAttention(score_bias=GeometryBias())(torch.randn(2, 4, 512))
    with pytest.raises(ValueError, match="7 heads"):
        MultiHeadAttention(12, 7)
    with pytest.raises(ValueError, match="unknown attention backend 'flash'"):
        MultiHeadAttention(12, 3, backend="flash")
    with pytest.raises(ValueError, match="as many queries as keys, not 4 and 6"):
        Attend()(*parts(), causal=True)
    with pytest.raises(ValueError, match="mask must be boolean"):
        Attend()(*parts(), mask=torch.ones(2, 6))


def test_dropout_acts_only_in_training():
    query, key, value = parts()
    attend = Attend(dropout=0.5)
    attend.eval()
    assert torch.equal(attend(query, key, value), Attend()(query, key, value))
    attend.train()
    assert not torch.allclose(attend(query, key, value), Attend()(query, key, value))


@pytest.mark.parametrize("backend", ["explicit", "fused"])
@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_padding_values_have_no_effect(make_boxes, backend, garbage):
    norm = InstanceNorm(12, affine=True)
    bias = GeometryBias("query+key+relation", dim=12, heads=3)
    attention = MultiHeadAttention(12, 3, query_norm=norm, score_bias=bias, backend=backend)
    mask = torch.tensor([[True, True, True, False], [False] * 4])
    boxes = make_boxes(2, 4).float()
    clean = torch.randn(2, 4, 12)
    dirty = clean.masked_fill(~mask.unsqueeze(-1), garbage).requires_grad_()
    geometry = relative_geometry(boxes, mask)
    out = attention(dirty, mask=mask, geometry=geometry)
    torch.testing.assert_close(out, attention(clean, mask=mask, geometry=geometry))
    out.square().sum().backward()
    assert dirty.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in attention.parameters())


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_no_images_and_no_regions(shape):
    x = torch.randn(*shape, 12)
    attention = MultiHeadAttention(12, 3, query_norm=BatchNorm(12), key_norm=InstanceNorm())
    assert attention(x).shape == x.shape
    assert attention.query_norm.running_mean.eq(0).all()


def test_mismatched_parts_raise():
    with pytest.raises(ValueError, match="width 512 and 8 heads"):
        MultiHeadAttention(64, 4, score_bias=GeometryBias())
    with pytest.raises(ValueError, match="0 heads"):
        MultiHeadAttention(64, 0)
    with pytest.raises(ValueError, match="does not match elements"):
        GeometryBias()(torch.zeros(1, 3, 3, 4), torch.zeros(1, 4, 512))


def test_geometry_stays_single_precision_in_half_precision_models(make_boxes):
    bias = GeometryBias("relation", dim=12, heads=3)
    boxes, x = make_boxes(2, 6).float(), torch.randn(2, 6, 12)
    exact = bias(relative_geometry(boxes), x)
    bias = bias.bfloat16()
    assert relative_geometry(boxes.bfloat16()).dtype == torch.float32
    gate = bias(relative_geometry(boxes), x.bfloat16()).float().exp()
    torch.testing.assert_close(gate, exact.exp(), atol=0.05, rtol=0.05)
