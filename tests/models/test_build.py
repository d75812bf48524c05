"""The parts that all builders share."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from ngsan.config import AnswererConfig, CaptionerConfig, TranslatorConfig
from ngsan.models.build import (
    Parts,
    build_answerer,
    build_captioner,
    geometry_bias,
    init_glorot,
)

SHAPE = {"dim": 16, "heads": 2, "hidden_dim": 24, "layers": 1, "dropout": 0.25}


def dropouts(module):
    return {part.p for part in module.modules() if isinstance(part, nn.Dropout)}


@pytest.mark.parametrize("kind", [CaptionerConfig, AnswererConfig])
def test_captioners_and_answerers_use_one_dropout_rate(kind):
    parts = Parts(kind(**SHAPE))
    layer = parts.encoder_layer(parts.attention())
    assert dropouts(layer) == {0.25}
    assert layer.attention.attend.dropout == 0.25


def test_translators_use_three_dropout_rates():
    parts = Parts(TranslatorConfig(**SHAPE, attention_dropout=0.5, hidden_dropout=0.125))
    layer = parts.decoder_layer(parts.attention(causal=True), parts.attention())
    assert layer.feedforward.dropout.p == 0.125
    assert layer.self_attention.attend.dropout == layer.cross_attention.attend.dropout == 0.5
    for residual in (layer.self_residual, layer.cross_residual, layer.feedforward_residual):
        assert residual.dropout.p == 0.25


def test_layers_follow_the_config():
    parts = Parts(AnswererConfig(**SHAPE, norm_place="pre", backend="explicit"))
    layer = parts.guided_layer(parts.attention(), parts.attention())
    assert layer.feedforward.widen.weight.shape == (24, 16)
    assert layer.guided_residual.place == "pre"
    assert parts.final_norm
    assert not Parts(CaptionerConfig(**SHAPE)).final_norm


def test_geometry_bias_by_name():
    config = CaptionerConfig(**SHAPE, geometry_dim=12, signed_geometry=True)
    assert geometry_bias("none", config) is None
    bias = geometry_bias("query+key", config)
    assert (bias.kind, bias.dim, bias.heads, bias.width, bias.features) == (
        "query+key",
        16,
        2,
        12,
        6,
    )


def test_init_glorot_range_and_variance():
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "dense": nn.Linear(300, 200),
            "plain": nn.Linear(40, 60, bias=False),
            "words": nn.Embedding(500, 64),
            "norm": nn.LayerNorm(8),
        }
    )
    init_glorot(model)
    for name in ("dense", "plain"):
        weight = model[name].weight
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.95 * bound < weight.abs().max() <= bound
        # The standard deviation of a uniform distribution.
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert not model["dense"].bias.any()
    assert model["words"].weight.square().sum(1).mean().item() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(model["norm"].weight, torch.ones(8))


def test_answerers_use_pytorch_init_except_for_the_score_bias():
    sizes = {"vocab_size": 9, "answers": 3, "feature_dim": 5}
    config = AnswererConfig(**{**SHAPE, **sizes, "geometry": "query"})
    torch.manual_seed(0)
    with_bias = build_answerer(config)
    attention = with_bias.regions.layers[0].self_attention
    assert not attention.score_bias.query.weight.any()
    assert attention.query.bias.any()  # Glorot's would be zero
    without = build_answerer(dataclasses.replace(config, geometry="none"))
    assert without.regions.layers[0].self_attention.score_bias is None


@pytest.mark.parametrize("kind", ["query", "key", "query+key"])
def test_plain_init_treats_the_bias_like_other_projections(kind):
    def layers(init):
        torch.manual_seed(0)
        small = {**SHAPE, "dim": 64, "vocab_size": 9, "feature_dim": 5, "geometry": kind}
        return build_captioner("g-san", **small, geometry_init=init).encoder.layers

    for layer in layers("constant"):
        bias = layer.attention.score_bias
        for projection in filter(None, (bias.query, bias.key)):
            assert not projection.weight.any()
            assert projection.bias.std() > 0
    for layer in layers("plain"):
        bias = layer.attention.score_bias
        for projection in filter(None, (bias.query, bias.key)):
            bound = math.sqrt(6 / sum(projection.weight.shape))  # Glorot's
            assert 0.9 * bound < projection.weight.abs().max() <= bound
            assert not projection.bias.any()
