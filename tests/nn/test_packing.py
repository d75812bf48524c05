"""Packed words against the padded batch."""

import copy

import pytest
import torch

from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.geometry import GeometryBias
from ngsan.nn.masks import Packing

LENGTHS = torch.tensor([[5, 2], [0, 3], [1, 5]])
MASK = torch.arange(5) < LENGTHS.unsqueeze(2)  # (3, 2, 5)
SPARE = [None, 0, 7]


def packing(spare):
    return Packing.of(MASK, None if spare is None else int(MASK.sum()) + spare)


def test_packing_by_hand():
    mask = torch.tensor([[[True, True, False], [True, False, False]]])
    found = Packing.of(mask)
    assert found.places.tolist() == [0, 1, 3]
    assert found.real.all()
    assert found.slots.tolist() == [0, 1, 0, 2, 0, 0]
    assert found.captions == 2
    found = Packing.of(mask, 5)
    assert found.places.tolist() == [0, 1, 3, 0, 0]
    assert found.real.tolist() == [True, True, True, False, False]


def test_packing_without_real_words():
    none = torch.zeros(2, 3, dtype=torch.bool)
    for capacity, rows in ((4, 4), (None, 1)):
        found = Packing.of(none, capacity)
        assert found.real.tolist() == [False] * rows
        x = torch.randn(rows, 2, requires_grad=True)
        found.spread(x, 2).sum().backward()
        assert not x.grad.any()


@pytest.mark.parametrize("spare", SPARE)
def test_unpacking_inverts_packing(spare):
    x = torch.randn(3, 2, 5, 4)
    found = packing(spare)
    packed = found.pack(x)
    assert torch.equal(packed[found.real], x[MASK])
    spread = found.spread(packed, 3)
    assert spread.shape == (3, 10, 4)
    assert torch.equal(spread.view(x.shape)[MASK], x[MASK])


@pytest.mark.parametrize("spare", SPARE)
def test_gradients_equal_those_of_indexing(spare):
    """Except for padding and spare rows, which all users ignore."""
    found = packing(spare)
    x = torch.randn(30, 2, dtype=torch.double, requires_grad=True)
    weight = torch.randn(len(found.places), 2, dtype=torch.double)
    weight = weight.masked_fill(~found.real.unsqueeze(1), 0)
    (mine,) = torch.autograd.grad((found.pack(x) * weight).sum(), x)
    (its,) = torch.autograd.grad((x[found.places] * weight).sum(), x)
    assert torch.equal(mine, its)
    x = torch.randn(len(found.places), 2, dtype=torch.double, requires_grad=True)
    weight = torch.randn(6, 5, 2, dtype=torch.double)
    weight = weight.masked_fill(~MASK.view(6, 5, 1), 0)
    (mine,) = torch.autograd.grad((found.spread(x, 6) * weight).sum(), x)
    (its,) = torch.autograd.grad((x[found.slots].view(6, 5, 2) * weight).sum(), x)
    assert torch.equal(mine, its)


def test_saves_much_depends_on_padding():
    assert packing(None).saves_much
    assert packing(6).saves_much  # 22 of 30
    assert not packing(7).saves_much


@pytest.mark.parametrize("spare", SPARE)
@pytest.mark.parametrize("changes", [{}, {"norm_place": "pre"}, {"decoder_norm": "layer"}])
def test_packing_does_not_change_training(changes, spare):
    config = CaptionerConfig(
        vocab_size=13,
        feature_dim=6,
        dim=8,
        hidden_dim=16,
        heads=2,
        layers=2,
        dropout=0.0,
        **changes,
    )
    torch.manual_seed(0)
    padded = build_captioner(config).double()
    packed = copy.deepcopy(padded)
    features = torch.randn(3, 4, 6, dtype=torch.double)
    boxes = torch.rand(3, 4, 4, dtype=torch.double) + 0.1
    mask = torch.arange(4) < torch.tensor([[4], [1], [3]])
    words = torch.randint(13, (3, 2, 5))
    weight = torch.randn(3, 2, 5, 13, dtype=torch.double)
    found = packing(spare)
    wanted = padded(features, boxes, mask, words)[MASK]
    (wanted * weight[MASK]).sum().backward()
    logits = packed(features, boxes, mask, words, packing=found)
    assert logits.shape == (len(found.places), 13)
    torch.testing.assert_close(logits[found.real], wanted)
    (logits[found.real] * weight[MASK]).sum().backward()
    for mine, its in zip(packed.parameters(), padded.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)


def test_maps_equal_those_of_the_padded_batch():
    attention = MultiHeadAttention(8, 2, causal=True)
    x, found = torch.randn(6, 5, 8), packing(3)
    mine, its = [], []
    attention(found.pack(x), packing=found, record=mine)
    attention(x, record=its)
    real = MASK.view(6, 5)
    rows = mine[0].weights.transpose(1, 2)[real]
    torch.testing.assert_close(rows, its[0].weights.transpose(1, 2)[real])


def test_packed_attention_that_sees_padding_raises():
    found = packing(0)
    x = torch.randn(len(found.places), 8)
    with pytest.raises(ValueError, match="see padding"):
        MultiHeadAttention(8, 2)(x, packing=found)
    biased = MultiHeadAttention(8, 2, score_bias=GeometryBias("query", dim=8, heads=2))
    with pytest.raises(ValueError, match="without a score bias"):
        biased(x, torch.randn(3, 4, 8), packing=found)
