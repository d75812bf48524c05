"""Translators against PyTorch's layers and published sizes; independence of padding."""

import pytest
import torch
from torch import nn

from ngsan.config import TranslatorConfig
from ngsan.models.build import build_translator
from ngsan.models.steps import TranslatorSteps
from ngsan.nn.geometry import sinusoidal
from ngsan.nn.masks import Packing
from ngsan.nn.normalize import InstanceNorm
from ngsan.search import Beam

SMALL = dict(vocab_size=50, dim=32, heads=4, hidden_dim=64, layers=2, dropout=0.0)
MODELS = ["transformer", "transformer-nsa"]


def small(model="transformer-nsa", **overrides):
    torch.manual_seed(1)
    translator = build_translator(model, **{**SMALL, **overrides}).double().eval()
    with torch.no_grad():  # biases and scales away from their initial values
        for parameter in translator.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return translator


def sentences(lengths=(9, 4, 1), width=9):
    torch.manual_seed(2)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return torch.randint(1, 50, mask.shape) * mask, mask


def copy_attention(theirs: nn.MultiheadAttention, ours):
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in projections]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in projections]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_layer(theirs, ours):
    """Copies the weights of one of our layers to PyTorch's layer."""
    theirs.linear1.load_state_dict(ours.feedforward.widen.state_dict())
    theirs.linear2.load_state_dict(ours.feedforward.narrow.state_dict())
    if isinstance(theirs, nn.TransformerEncoderLayer):
        copy_attention(theirs.self_attn, ours.attention)
        residuals = (ours.attention_residual, ours.feedforward_residual)
    else:
        copy_attention(theirs.self_attn, ours.self_attention)
        copy_attention(theirs.multihead_attn, ours.cross_attention)
        residuals = (ours.self_residual, ours.cross_residual, ours.feedforward_residual)
    for number, residual in enumerate(residuals, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(residual.norm.state_dict())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("place", ["post", "pre"])
def test_equals_pytorch_transformer(place):
    ours = small("transformer", norm_place=place)
    theirs = nn.Transformer(
        32, 4, 2, 2, 64, 0.0, batch_first=True, norm_first=place == "pre", dtype=torch.double
    )
    with torch.no_grad():
        for half, other in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
            for one, its in zip(half.layers, other.layers, strict=True):
                copy_layer(its, one)
        if place == "pre":
            theirs.encoder.norm.load_state_dict(ours.encoder.norm.state_dict())
            theirs.decoder.norm.load_state_dict(ours.decoder.norm.state_dict())
        else:
            theirs.encoder.norm = theirs.decoder.norm = None
    source, mask = sentences()
    words = torch.randint(1, 50, (3, 6))
    matrix = ours.decoder.embed.weight

    def embed(ids):
        positions = sinusoidal(torch.arange(ids.shape[1]).double(), 32)
        return matrix[ids] * 32**0.5 + positions

    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = theirs(
        embed(source),
        embed(words),
        tgt_mask=later,
        src_key_padding_mask=~mask,
        memory_key_padding_mask=~mask,
    )
    found = ours(source, mask, words)
    torch.testing.assert_close(found, expected @ matrix.T)


def test_parameter_count_matches_transformer_base():
    # Each projection of attention has 512 x 512 + 512 numbers, each layer norm 2 x 512.
    attention, norm = 4 * (512 * 512 + 512), 2 * 512
    dense = 512 * 2048 + 2048 + 2048 * 512 + 512
    layers = 6 * (attention + dense + 2 * norm) + 6 * (2 * attention + dense + 3 * norm)
    for name in MODELS:
        with torch.device("meta"):
            model = build_translator(name, vocab_size=37_000)
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == layers + 37_000 * 512
        assert 60e6 < count < 65e6  # Vaswani et al. 2017, Table 3, gives 65 million


def test_nsa_normalizes_every_encoder_layer_only():
    plain, normed = small("transformer"), small()
    norms = [name for name, part in normed.named_modules() if isinstance(part, InstanceNorm)]
    assert norms == [f"encoder.layers.{layer}.attention.query_norm" for layer in range(2)]
    assert not any(isinstance(part, InstanceNorm) for part in plain.modules())
    normed.load_state_dict(plain.state_dict())  # it has no weights of its own
    source, mask = sentences()
    assert not torch.allclose(plain.encode(source, mask), normed.encode(source, mask))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", ["fused", "explicit"])
def test_output_does_not_depend_on_padding_or_batch(name, backend):
    model = small(name, backend=backend)
    source, mask = sentences()
    words = torch.randint(1, 50, (3, 5))
    whole = model(source, mask, words)
    other = source.masked_fill(~mask, 17)
    torch.testing.assert_close(model(other, mask, words), whole)
    for place, length in enumerate((9, 4, 1)):
        alone = model(source[place : place + 1, :length], None, words[place : place + 1])
        torch.testing.assert_close(alone[0], whole[place])


@pytest.mark.parametrize("name", MODELS)
def test_later_words_do_not_change_earlier_logits(name):
    model = small(name)
    source, mask = sentences()
    words = torch.randint(1, 50, (3, 6))
    changed = words.clone()
    changed[:, 4:] = 7
    first, second = model(source, mask, words), model(source, mask, changed)
    torch.testing.assert_close(first[:, :4], second[:, :4])
    real = torch.arange(6) < torch.tensor([[6], [0], [3]])
    chosen = model(source, mask, words, packing=Packing.of(real))
    torch.testing.assert_close(chosen, first[real])


@pytest.mark.parametrize("name", MODELS)
def test_steps_equal_full_decoding(name):
    model = small(name)
    source, mask = sentences()
    words = torch.randint(1, 50, (3, 2, 6))
    words[..., 0] = 0
    steps = TranslatorSteps(model, source, mask)
    steps.start(2, 6)
    found = torch.stack([steps.step(words[..., place]) for place in range(6)], 2)
    torch.testing.assert_close(found, model.decode(words, model.encode(source, mask), mask))
    more, more_mask = sentences((2, 9, 5))
    steps.load(more, None, more_mask)
    steps.start(2, 6)
    again = steps.step(words[..., 0])
    torch.testing.assert_close(again, model(more, more_mask, words[:, 0, :1]).expand(-1, 2, -1))


def test_beam_search_scores_use_the_length_penalty():
    source, mask = sentences()
    written = Beam(TranslatorSteps(small(), source, mask), beam=4, length_penalty=0.6).run()
    assert written.words.shape == (3, 1, 20)
    total = written.log_probs / (written.lengths + written.ended) ** 0.6
    torch.testing.assert_close(written.scores, total)


def test_word_vectors_are_stored_once():
    names = [name for name in small().state_dict() if "embed" in name or "output.weight" in name]
    assert [name for name in names if "attention" not in name] == ["decoder.embed.weight"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("heads", 5, "does not divide"),
        ("dim", 33, "does not divide|even"),
        ("norm", "group", "norm: 'group' is not one of"),
        ("dropout", 1.0, "dropout: 1.0 must be below 1"),
        ("vocab_size", 1, "vocab_size: 1 must be at least 2"),
    ],
)
def test_invalid_config_values_raise(key, value, message):
    with pytest.raises(ValueError, match=message):
        build_translator("transformer", **{**SMALL, key: value})


def test_invalid_inputs_raise():
    model = small()
    with pytest.raises(ValueError, match="source must be \\(sentences, words\\)"):
        model.encode(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="mask of shape"):
        model.encode(torch.zeros(3, 4, dtype=torch.long), torch.ones(3, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="model: 'transformers' is not one of .* did you mean"):
        build_translator("transformers")
    assert TranslatorConfig().as_model("transformer").norm == "none"
