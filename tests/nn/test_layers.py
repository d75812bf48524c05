"""Positions, losses, layers, and decoding word by word with the cache."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ngsan.nn import (
    DecoderLayer,
    FeedForward,
    InstanceNorm,
    MultiHeadAttention,
    sinusoidal,
    word_cross_entropy,
)
from ngsan.nn.cache import WordCache
from ngsan.nn.layers import Residual
from tests import reference


def test_sinusoidal_equals_vaswani():
    positions = torch.arange(50, dtype=torch.float64)
    expected = reference.waves(positions.numpy(), 16, 10_000)
    np.testing.assert_allclose(sinusoidal(positions, 16), expected, atol=1e-12)
    with pytest.raises(ValueError, match="must be even, not 7"):
        sinusoidal(positions, 7)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_word_cross_entropy_equals_explicit_sum(smoothing):
    logits = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    targets = torch.randint(0, 5, (2, 3, 4))
    mask = torch.rand(2, 3, 4) > 0.3
    log_p = np.log(reference.softmax(logits.numpy()))
    losses = [
        -(1 - smoothing) * log_p[i][targets[i]] - smoothing * log_p[i].mean()
        for i in map(tuple, mask.nonzero().tolist())
    ]
    ours = word_cross_entropy(logits, targets, mask, label_smoothing=smoothing)
    assert ours.item() == pytest.approx(np.mean(losses))


def test_word_cross_entropy_without_targets_and_with_wrong_shapes():
    logits, targets = torch.randn(1, 2, 3), torch.zeros(1, 2, dtype=torch.long)
    assert word_cross_entropy(logits, targets, torch.zeros(1, 2, dtype=torch.bool)) == 0
    with pytest.raises(ValueError, match="do not match"):
        word_cross_entropy(logits, targets[:, :1], torch.ones(1, 1, dtype=torch.bool))


def test_decoder_layer_without_causal_attention_raises():
    with pytest.raises(ValueError, match="must be causal"):
        DecoderLayer(MultiHeadAttention(8, 2), MultiHeadAttention(8, 2), FeedForward(8, 16), 8)


def test_decoder_layer_rejects_instance_norm_of_words_in_cross_attention():
    causal = MultiHeadAttention(8, 2, causal=True)
    cross = MultiHeadAttention(8, 2, query_norm=InstanceNorm())
    with pytest.raises(ValueError, match="statistics include future words"):
        DecoderLayer(causal, cross, FeedForward(8, 16), 8)


def test_unknown_norm_place_raises():
    with pytest.raises(ValueError, match="'middle'"):
        Residual(8, dropout=0.0, place="middle")


def test_residual_is_post_or_pre_norm():
    x, f = torch.randn(2, 3, 8), torch.nn.Linear(8, 8)
    post = Residual(8, dropout=0.1, place="post").eval()
    torch.testing.assert_close(post(x, f), F.layer_norm(x + f(x), (8,)))
    pre = Residual(8, dropout=0.1, place="pre").eval()
    torch.testing.assert_close(pre(x, f), x + f(F.layer_norm(x, (8,))))


def cached_steps(layer, words, memory, mask, parents=None, reorder_at=None):
    """Runs `DecoderLayer.step` over words (B, W, T, D); returns (B, W, T, D)."""
    images, width, length, dim = words.shape
    joined = layer.self_attention.join_projections()
    remembered = layer.cross_attention.remember(memory, mask)
    heads = layer.self_attention.heads
    cache = WordCache(
        layers=1,
        images=images,
        width=width,
        heads=heads,
        head_dim=dim // heads,
        positions=torch.zeros(length, dim),
    )
    results = []
    for step in range(length):
        if step == reorder_at:
            cache.reorder(parents)
        cache.begin_word()
        results.append(layer.step(words[:, :, step], cache, 0, joined, remembered))
        cache.end_word()
    return torch.stack(results, 2)


@torch.no_grad()
def test_cached_steps_equal_the_whole_decoder_layer():
    layer = DecoderLayer(
        MultiHeadAttention(16, 4, causal=True), MultiHeadAttention(16, 4), FeedForward(16, 32), 16
    ).eval()
    words, memory = torch.randn(3, 2, 5, 16), torch.randn(3, 6, 16)
    # The last image has no regions.
    mask = torch.arange(6) < torch.tensor([[6], [4], [0]])
    torch.testing.assert_close(
        cached_steps(layer, words, memory, mask), layer(words, memory, mask=mask)
    )
    # From the third word on, both captions continue the first caption of image 0, and those of
    # image 1 are swapped.
    parents = torch.tensor([[0, 0], [1, 0], [0, 1]])
    found = cached_steps(layer, words, memory, mask, parents, reorder_at=2)
    past = words[:, :, :2].gather(1, parents[:, :, None, None].expand(-1, -1, 2, 16))
    continued = torch.cat((past, words[:, :, 2:]), 2)
    expected = layer(continued, memory, mask=mask)
    torch.testing.assert_close(found[:, :, 2:], expected[:, :, 2:])
