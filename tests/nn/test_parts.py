"""The small parts: positions, losses, layers."""

import numpy as np
import pytest
import torch

from ngsan.nn import (
    DecoderLayer,
    FeedForward,
    InstanceNorm,
    MultiHeadAttention,
    sinusoidal,
    word_cross_entropy,
)
from ngsan.nn.layers import Residual
from tests import reference


def test_sinusoidal_is_vaswani_s():
    positions = torch.arange(50, dtype=torch.float64)
    expected = reference.waves(positions.numpy(), 16, 10_000)
    np.testing.assert_allclose(sinusoidal(positions, 16), expected, atol=1e-12)
    with pytest.raises(ValueError, match="even width, not 7"):
        sinusoidal(positions, 7)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_word_cross_entropy_spelled_out(smoothing):
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


def test_word_cross_entropy_of_nothing_is_zero_and_wrong_shapes_are_errors():
    logits, targets = torch.randn(1, 2, 3), torch.zeros(1, 2, dtype=torch.long)
    assert word_cross_entropy(logits, targets, torch.zeros(1, 2, dtype=torch.bool)) == 0
    with pytest.raises(ValueError, match="do not fit"):
        word_cross_entropy(logits, targets[:, :1], torch.ones(1, 1, dtype=torch.bool))


def test_decoder_layer_wants_causal_attention():
    with pytest.raises(ValueError, match="must be causal"):
        DecoderLayer(MultiHeadAttention(8, 2), MultiHeadAttention(8, 2), FeedForward(8, 16), 8)


def test_decoder_layer_refuses_instance_norm_of_words_in_cross_attention():
    causal = MultiHeadAttention(8, 2, causal=True)
    cross = MultiHeadAttention(8, 2, query_norm=InstanceNorm())
    with pytest.raises(ValueError, match="words that are still to be written"):
        DecoderLayer(causal, cross, FeedForward(8, 16), 8)


def test_unknown_place_of_layer_norm_is_an_error():
    with pytest.raises(ValueError, match="'middle'"):
        Residual(8, dropout=0.0, place="middle")
