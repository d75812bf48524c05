"""Parameter counts of whole models at published sizes, from closed forms."""

from dataclasses import replace

import pytest
import torch

from ngsan.config import AnswererConfig, read_recipe
from ngsan.models.build import build_model
from ngsan.reproduce.published import SYSTEMS


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def dense(into, out):
    return into * out + out


def attention(dim):
    return 4 * dense(dim, dim)


def feedforward(dim, hidden):
    return dense(dim, hidden) + dense(hidden, dim)


def encoder_layer(dim, hidden):
    return attention(dim) + feedforward(dim, hidden) + 2 * 2 * dim


def decoder_layer(dim, hidden):
    return 2 * attention(dim) + feedforward(dim, hidden) + 3 * 2 * dim


def lstm(into, out):
    """PyTorch has two biases."""
    return 4 * (into * out + out * out + 2 * out)


def gsa(dim, heads, width=64, inputs=4):
    """A geometric bias by the query: Q' and the embedding of relative geometry."""
    return dense(dim, heads * width) + dense(inputs, width)


def built(recipe, **sizes):
    """The parameters of a recipe's model with some sizes changed."""
    run = read_recipe(recipe)
    with torch.device("meta"):
        return count(build_model(replace(run.model, **sizes)))


def test_mt_has_the_parameters_that_the_paper_prints():
    layers = 6 * (encoder_layer(512, 2048) + decoder_layer(512, 2048))
    words = 9488 * 512 + lstm(512, 512) + dense(512, 9488)
    final_norms = 2 * 2 * 512
    expected = dense(2048, 512) + layers + words + final_norms
    assert built("mt") == expected
    assert round(expected / 1e6, 1) == SYSTEMS["MT"]["M"] == 57.0
    # The final norms are those of pre-norm layers.
    assert built("mt", norm_place="post") == expected - final_norms


@pytest.mark.parametrize(
    ("recipe", "dim", "hidden", "millions"),
    [("transformer-base", 512, 2048, 65), ("transformer-big", 1024, 4096, 213)],
)
def test_transformers_have_about_the_published_parameters(recipe, dim, hidden, millions):
    words = 37_000  # about, says Vaswani et al. 2017; one matrix for both languages and the output
    expected = words * dim + 6 * (encoder_layer(dim, hidden) + decoder_layer(dim, hidden))
    assert built(recipe, vocab_size=words) == expected
    assert expected / 1e6 == pytest.approx(millions, rel=0.03)


def test_vatex_lstm():
    frames = dense(1000, 512) + 2 * lstm(512, 256)
    words = 9488 * 512 + 512 * 512 + lstm(2 * 512, 512) + dense(512, 9488)
    assert built("vatex-lstm") == frames + words


@pytest.mark.parametrize("bias", [False, True])
def test_mcan_with_geometry_in_all_self_attention(bias):
    words, answers = 20_000, 3129
    layers = 6 * (encoder_layer(512, 2048) + decoder_layer(512, 2048))
    reductions = 2 * (dense(512, 512) + dense(512, 1) + dense(512, 1024))
    question = words * 300 + lstm(300, 512)
    output = 2 * 1024 + dense(1024, answers)
    expected = question + dense(2048, 512) + layers + reductions + output
    if bias:
        expected += 12 * gsa(512, 8)  # six layers over words, six over regions
    with torch.device("meta"):
        config = AnswererConfig.for_model(
            "mcan-gsa" if bias else "mcan", vocab_size=words, answers=answers, feature_dim=2048
        )
        assert count(build_model(config)) == expected
