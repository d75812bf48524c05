"""MCAN against a slow loop implementation, and its independence of padding and batch."""

import math

import pytest
import torch

from ngsan.config import ANSWERERS, AnswererConfig
from ngsan.models.build import build_answerer
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.layers import AttentionReduction, FeedForward, GuidedLayer

TINY = dict(
    vocab_size=20,
    answers=7,
    word_dim=6,
    dim=16,
    heads=2,
    hidden_dim=24,
    layers=2,
    flat_hidden_dim=10,
    flat_dim=12,
    geometry_dim=8,
)


def tiny(model="mcan-gsa", **changes):
    torch.manual_seed(0)
    return build_answerer(model, **{**TINY, "feature_dim": 5, **changes}).eval()


def inputs(count=3, words=4, regions=5):
    generator = torch.Generator().manual_seed(1)
    asked = torch.randint(1, 20, (count, words), generator=generator)
    features = torch.randn(count, regions, 5, generator=generator)
    boxes = torch.rand(count, regions, 4, generator=generator) * 0.4 + 0.1
    word_mask = torch.ones(count, words, dtype=torch.bool)
    mask = torch.ones(count, regions, dtype=torch.bool)
    return asked, word_mask, features, boxes, mask


def slow_attention(part, x, memory, mask):
    """Attention by loops over images, queries and heads."""
    query, key, value = part.query(x), part.key(memory), part.value(memory)
    width = x.shape[-1] // part.heads
    rows = []
    for b in range(len(x)):
        real = mask[b].nonzero().flatten()
        for i in range(x.shape[1]):
            heads = []
            for h in range(part.heads):
                here = slice(h * width, (h + 1) * width)
                scores = key[b, real][:, here] @ query[b, i, here] / math.sqrt(width)
                weights = scores.exp() / scores.exp().sum()
                heads.append(weights @ value[b, real][:, here])
            rows.append(part.output(torch.cat(heads)))
    return torch.stack(rows).view_as(x)


def test_guided_attention_against_loops():
    torch.manual_seed(0)
    layer = GuidedLayer(
        MultiHeadAttention(8, 2), MultiHeadAttention(8, 2), FeedForward(8, 12), 8, dropout=0.0
    ).eval()
    x, guide = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    guide_mask = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    found = layer(x, guide, mask=mask, guide_mask=guide_mask)
    x = layer.self_residual.norm(x + slow_attention(layer.self_attention, x, x, mask))
    guided = slow_attention(layer.guided_attention, x, guide, guide_mask)
    x = layer.guided_residual.norm(x + guided)
    inner = torch.relu(layer.feedforward.widen(x))
    expected = layer.feedforward_residual.norm(x + layer.feedforward.narrow(inner))
    torch.testing.assert_close(found[mask], expected[mask], rtol=1e-4, atol=1e-5)


def test_attention_reduction_against_loops():
    torch.manual_seed(0)
    part = AttentionReduction(6, hidden=4, out=3).eval()
    x = torch.randn(2, 4, 6)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    found, weights = part(torch.where(mask.unsqueeze(-1), x, torch.nan), mask)
    for b in range(2):
        real = x[b, : int(mask[b].sum())]
        scores = [part.score[3](torch.relu(part.score[0](row))) for row in real]
        shares = torch.cat(scores).exp() / torch.cat(scores).exp().sum()
        mean = sum(share * row for share, row in zip(shares, real, strict=True))
        torch.testing.assert_close(found[b], part.merge(mean))
        torch.testing.assert_close(weights[b, : len(real)], shares)
        assert not weights[b, len(real) :].any()


@pytest.mark.parametrize("model", ANSWERERS)
def test_padding_does_not_change_output(model):
    answerer = tiny(model, question_geometry="query")
    asked, word_mask, features, boxes, mask = inputs()
    expected = answerer.answer(asked, word_mask, features, boxes, mask)
    pad = (torch.full((3, 2), 9), torch.zeros(3, 2, dtype=torch.bool))
    wide = answerer.answer(
        torch.cat((asked, pad[0]), 1),
        torch.cat((word_mask, pad[1]), 1),
        torch.cat((features, torch.full((3, 3, 5), torch.nan)), 1),
        torch.cat((boxes, torch.full((3, 3, 4), -torch.inf)), 1),
        torch.cat((mask, torch.zeros(3, 3, dtype=torch.bool)), 1),
    )
    torch.testing.assert_close(wide.logits, expected.logits)
    torch.testing.assert_close(wide.words[:, :4], expected.words)
    if model != "question-only":
        torch.testing.assert_close(wide.regions[:, :5], expected.regions)
        assert not wide.regions[:, 5:].any()


@pytest.mark.parametrize("model", ANSWERERS)
def test_output_does_not_depend_on_the_batch(model):
    answerer = tiny(model)
    together = answerer(*inputs())
    for place in range(3):
        alone = answerer(*(tensor[place : place + 1] for tensor in inputs()))
        torch.testing.assert_close(alone, together[place : place + 1], rtol=1e-4, atol=1e-5)


def test_backends_agree():
    fused, explicit = tiny(), tiny(backend="explicit")
    torch.testing.assert_close(fused(*inputs()), explicit(*inputs()), rtol=1e-4, atol=1e-5)


def test_only_gsa_uses_geometry():
    asked, word_mask, features, boxes, mask = inputs()
    moved = boxes * torch.tensor([1.0, 1.0, 0.5, 2.0])
    moved[:, 0, 2] *= 3
    for model, sees in (("mcan", False), ("mcan-gsa", True)):
        answerer = tiny(model)
        first = answerer(asked, word_mask, features, boxes, mask)
        second = answerer(asked, word_mask, features, moved, mask)
        assert torch.equal(first, second) is not sees
    without = tiny("mcan")(asked, word_mask, features, None, mask)
    torch.testing.assert_close(without, tiny("mcan")(asked, word_mask, features, boxes, mask))


def test_output_depends_on_word_order_but_not_region_order():
    answerer = tiny()
    asked, word_mask, features, boxes, mask = inputs()
    order = torch.tensor([3, 1, 4, 0, 2])
    expected = answerer(asked, word_mask, features, boxes, mask)
    turned = answerer(asked, word_mask, features[:, order], boxes[:, order], mask)
    torch.testing.assert_close(turned, expected, rtol=1e-4, atol=1e-5)
    other = answerer(asked.flip(1), word_mask, features, boxes, mask)
    assert not torch.allclose(other, expected, atol=1e-4)


def test_question_geometry_adds_its_own_parameters():
    plain, placed = tiny("mcan"), tiny("mcan", question_geometry="query")
    more = sum(p.numel() for p in placed.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == 2 * (4 * 8 + 8 + 16 * 16 + 16)
    asked, word_mask, features, _boxes, mask = inputs()
    assert placed(asked, word_mask, features, None, mask).shape == (3, 7)


def test_parameter_count_matches_mcan():
    # 14 words of 300, LSTM, 6 + 6 layers, 2 reductions, 3129 answers: 44 M without word vectors.
    answerer = build_answerer("mcan", vocab_size=1, answers=3129, feature_dim=2048)
    attention, feedforward, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder, decoder = attention + feedforward + 2 * norm, 2 * attention + feedforward + 3 * norm
    flat = 512 * 512 + 512 + 512 + 1 + 512 * 1024 + 1024
    lstm = 4 * 512 * (300 + 512 + 2)
    ends = 300 + lstm + 2048 * 512 + 512 + 2 * 1024 + 1024 * 3129 + 3129
    expected = 6 * (encoder + decoder) + 2 * flat + ends
    assert sum(p.numel() for p in answerer.parameters()) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(geometry="absolute"), "geometry: 'absolute' is not one of"),
        (dict(question_geometry="query+query"), "twice"),
        (dict(regions="none"), "set geometry: none"),
        (dict(heads=3), "heads: 3"),
        (dict(dropout=1.0), "dropout"),
    ],
)
def test_invalid_config_values_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        AnswererConfig(**changes)


def test_invalid_inputs_raise():
    asked, word_mask, features, boxes, mask = inputs()
    answerer = tiny()
    with pytest.raises(ValueError, match="needs the regions' boxes"):
        answerer(asked, word_mask, features, None, mask)
    with pytest.raises(ValueError, match="needs the features"):
        answerer(asked, word_mask)
    with pytest.raises(ValueError, match="features must be"):
        answerer(asked, word_mask, features[..., :4], boxes, mask)
    with pytest.raises(ValueError, match="words must be"):
        answerer(asked[:, :0], word_mask[:, :0], features, boxes, mask)
    with pytest.raises(ValueError, match="answers: 0"):
        build_answerer("mcan", vocab_size=3, feature_dim=3)
