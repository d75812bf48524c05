"""The compared decoders against their equations in NumPy, one caption at a time."""

import math

import numpy as np
import pytest
import torch

from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner
from ngsan.models.steps import CaptionerSteps
from ngsan.nn.masks import Packing
from ngsan.search import Beam, Greedy
from ngsan.train.self_critical import set_dropout

SMALL = dict(vocab_size=11, feature_dim=7, dim=16, heads=2, layers=2, dropout=0.1)
RECURRENT = ("up-down", "aoa", "lstm")
DECODERS = (*RECURRENT, "mt")


def build(decoder, dtype=torch.float64, **overrides):
    """A small model; all its parameters are random."""
    captioner = build_captioner("san", **SMALL, decoder=decoder, **overrides).double().eval()
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        captioner.decoder.output.weight.mul_(2.0)
    return captioner.to(dtype)


def regions(images=3, count=5, dtype=torch.float64):
    """Features and mask: the first image has all its regions, others fewer, the last has none."""
    features = torch.randn(images, count, 7, dtype=dtype)
    real = torch.linspace(count, 0, images).round().long()
    return features, torch.arange(count) < real[:, None]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    grown = np.exp(x - x.max())
    return grown / grown.sum()


class NumpyReference:
    """Both models in NumPy, for one image and one caption, with the weights of a captioner."""

    def __init__(self, captioner):
        self.weights = {k: v.detach().numpy() for k, v in captioner.state_dict().items()}

    def dense(self, name, x):
        return self.weights[name + ".weight"] @ x + self.weights.get(name + ".bias", 0.0)

    def lstm(self, name, x, h, c):
        w = self.weights
        z = w[name + ".weight_ih"] @ x + w[name + ".bias_ih"]
        z = z + w[name + ".weight_hh"] @ h + w[name + ".bias_hh"]
        into, forget, new, out = np.split(z, 4)
        c = sigmoid(forget) * c + sigmoid(into) * np.tanh(new)
        return sigmoid(out) * np.tanh(c), c

    def layer_norm(self, name, x):
        scaled = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return scaled * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def heads(self, name, query, elements):
        """Multi-head attention of one query over elements; the heads are concatenated."""
        q = self.dense(name + ".query", query)
        found = []
        for part in np.split(np.arange(16), 2):
            keys = [self.dense(name + ".key", x)[part] for x in elements]
            values = [self.dense(name + ".value", x)[part] for x in elements]
            weights = softmax(np.array([key @ q[part] / math.sqrt(8) for key in keys]))
            found.append(sum(w * value for w, value in zip(weights, values, strict=True)))
        return np.concatenate(found)

    def attention_on_attention(self, name, found, query):
        z = self.dense(name + ".gate.dense", np.concatenate((found, query)))
        information, gate = np.split(z, 2)
        return sigmoid(gate) * information

    def embed(self, features):
        return [np.maximum(self.dense("encoder.embed", x), 0) for x in features]

    def word(self, word):
        return self.weights["decoder.embed.weight"][word] * 4.0

    def up_down(self, features, words):
        regions = self.embed(features)
        mean = sum(regions) / len(regions)
        h1 = c1 = h2 = c2 = np.zeros(16)
        logits = []
        for word in words:
            x = np.concatenate((h2, mean, self.word(word)))
            h1, c1 = self.lstm("decoder.cell.attention_lstm", x, h1, c1)
            hidden = self.dense("decoder.cell.of_hidden", h1)
            scores = [
                self.dense(
                    "decoder.cell.score",
                    np.tanh(self.dense("decoder.cell.of_region", region) + hidden),
                )[0]
                for region in regions
            ]
            weights = softmax(np.array(scores))
            found = sum(w * region for w, region in zip(weights, regions, strict=True))
            h2, c2 = self.lstm("decoder.cell.language_lstm", np.concatenate((found, h1)), h2, c2)
            logits.append(self.dense("decoder.output", h2))
        return np.stack(logits)

    def refine(self, regions, place):
        for layer in (0, 1):
            at = f"encoder.layers.{layer}"
            norm = at + ".residual.norm"
            given = [self.layer_norm(norm, x) for x in regions] if place == "pre" else regions
            refined = [
                self.attention_on_attention(at, self.heads(at + ".attention", x, given), x)
                for x in given
            ]
            regions = [x + y for x, y in zip(regions, refined, strict=True)]
            if place == "post":
                regions = [self.layer_norm(norm, x) for x in regions]
        return [self.layer_norm("encoder.norm", x) for x in regions] if place == "pre" else regions

    def aoa(self, features, words, place="post"):
        regions = self.refine(self.embed(features), place)
        mean = sum(regions) / len(regions)
        h = c = context = np.zeros(16)
        logits = []
        for word in words:
            x = np.concatenate((self.word(word), mean + context))
            h, c = self.lstm("decoder.cell.lstm", x, h, c)
            found = self.heads("decoder.cell.attention", h, regions)
            context = self.attention_on_attention("decoder.cell", found, h)
            logits.append(self.dense("decoder.output", context))
        return np.stack(logits)

    def lstm_over(self, name, inputs, width):
        """All outputs of a `nn.LSTM`."""
        w, h, c, outputs = self.weights, np.zeros(width), np.zeros(width), []
        for x in inputs:
            z = w[name + ".weight_ih_l0"] @ x + w[name + ".bias_ih_l0"]
            z = z + w[name + ".weight_hh_l0"] @ h + w[name + ".bias_hh_l0"]
            into, forget, new, out = np.split(z, 4)
            c = sigmoid(forget) * c + sigmoid(into) * np.tanh(new)
            h = sigmoid(out) * np.tanh(c)
            outputs.append(h)
        return outputs

    def lstm_model(self, features, words):
        """Frames through LSTMs in both directions, then an LSTM with attention to them."""
        frames = self.embed(features)
        for layer in (0, 1):
            at = f"encoder.layers.{layer}"
            ahead = self.lstm_over(at + ".ahead", frames, 8)
            back = self.lstm_over(at + ".back", frames[::-1], 8)[::-1]
            frames = [np.concatenate(both) for both in zip(ahead, back, strict=True)]
        h = c = np.zeros(16)
        logits = []
        for word in words:
            asked = self.dense("decoder.cell.of_hidden", h)
            weights = softmax(np.array([asked @ frame for frame in frames]))
            found = sum(w * frame for w, frame in zip(weights, frames, strict=True))
            h, c = self.lstm("decoder.cell.lstm", np.concatenate((self.word(word), found)), h, c)
            logits.append(self.dense("decoder.output", h))
        return np.stack(logits)

    def joined_heads(self, name, query, elements):
        return self.dense(name + ".output", self.heads(name, query, elements))

    def feedforward(self, name, x):
        return self.dense(name + ".narrow", np.maximum(self.dense(name + ".widen", x), 0))

    def mt(self, features, words):
        """The Transformer, post-norm, with an LSTM over the words."""
        regions = self.embed(features)
        for layer in (0, 1):
            at = f"encoder.layers.{layer}"
            found = [self.joined_heads(at + ".attention", x, regions) for x in regions]
            regions = [
                self.layer_norm(at + ".attention_residual.norm", x + y)
                for x, y in zip(regions, found, strict=True)
            ]
            regions = [
                self.layer_norm(
                    at + ".feedforward_residual.norm", x + self.feedforward(at + ".feedforward", x)
                )
                for x in regions
            ]
        read = self.lstm_over("decoder.reader.lstm", [self.word(word) for word in words], 16)
        for layer in (0, 1):
            at = f"decoder.layers.{layer}"
            own = [
                self.joined_heads(at + ".self_attention", x, read[: place + 1])
                for place, x in enumerate(read)
            ]
            read = [
                self.layer_norm(at + ".self_residual.norm", x + y)
                for x, y in zip(read, own, strict=True)
            ]
            read = [
                self.layer_norm(
                    at + ".cross_residual.norm",
                    x + self.joined_heads(at + ".cross_attention", x, regions),
                )
                for x in read
            ]
            read = [
                self.layer_norm(
                    at + ".feedforward_residual.norm", x + self.feedforward(at + ".feedforward", x)
                )
                for x in read
            ]
        return np.stack([self.dense("decoder.output", x) for x in read])


@pytest.mark.parametrize(("decoder", "reference"), [("lstm", "lstm_model"), ("mt", "mt")])
def test_lstm_and_mt_equal_their_equations(decoder, reference):
    captioner = build(decoder)
    features, mask = regions(images=3)
    mask = mask[:, torch.randperm(5)]  # padding may be anywhere
    words = torch.randint(0, 11, (3, 2, 6))
    found = captioner(features, None, mask, words).detach().numpy()
    for image in range(2):
        for caption in range(2):
            expected = getattr(NumpyReference(captioner), reference)(
                features[image, mask[image]].numpy(), words[image, caption].tolist()
            )
            np.testing.assert_allclose(found[image, caption], expected, atol=1e-10)


def test_up_down_equals_published_equations():
    captioner = build("up-down")
    features, mask = regions(images=4)
    words = torch.randint(0, 11, (4, 3, 6))
    found = captioner(features, None, mask, words).detach().numpy()
    for image, real in enumerate(mask.sum(1).tolist()[:-1]):
        for caption in range(3):
            expected = NumpyReference(captioner).up_down(
                features[image, :real].numpy(), words[image, caption].tolist()
            )
            np.testing.assert_allclose(found[image, caption], expected, atol=1e-10)


@pytest.mark.parametrize("place", ["post", "pre"])
def test_aoa_equals_published_equations(place):
    captioner = build("aoa", norm_place=place)
    features, mask = regions(images=4)
    words = torch.randint(0, 11, (4, 3, 6))
    found = captioner(features, None, mask, words).detach().numpy()
    for image, real in enumerate(mask.sum(1).tolist()[:-1]):
        for caption in range(3):
            expected = NumpyReference(captioner).aoa(
                features[image, :real].numpy(), words[image, caption].tolist(), place
            )
            np.testing.assert_allclose(found[image, caption], expected, atol=1e-10)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("count", "masked"), [(5, True), (5, False), (8, False), (0, True)])
@torch.inference_mode()
def test_steps_equal_full_decoding_with_reordered_captions(decoder, count, masked):
    captioner = build(decoder)
    features, mask = regions(count=count)
    mask = mask if masked else None
    memory = captioner.encode(features, None, mask)
    steps = CaptionerSteps(captioner, features, None, mask)
    for width, max_length in ((4, 7), (1, 3), (4, 7)):
        steps.start(width, max_length)
        written = torch.zeros(3, width, 1, dtype=torch.long)
        parents = None
        for place in range(max_length):
            logits = steps.step(written[..., -1], parents)
            expected = captioner.decode(written, memory, mask)[:, :, -1]
            torch.testing.assert_close(logits, expected)
            parents = None
            if place % 3 != 2:
                parents = torch.randint(width, (3, width))
                written = written.gather(1, parents.unsqueeze(2).expand_as(written))
            written = torch.cat((written, torch.randint(0, 11, (3, width, 1))), 2)


@pytest.mark.parametrize("decoder", DECODERS)
@torch.inference_mode()
def test_output_does_not_depend_on_padding_or_batch(decoder):
    captioner = build(decoder)
    features, mask = regions()
    spoilt = features.masked_fill(~mask.unsqueeze(2), math.nan)
    words = torch.randint(0, 11, (3, 2, 4))
    found = captioner(spoilt, None, mask, words)
    assert found.isfinite().all()
    for image, real in enumerate(mask.sum(1).tolist()):
        alone = captioner(features[image : image + 1, :real], None, None, words[image : image + 1])
        torch.testing.assert_close(found[image], alone[0])
    single = captioner(features, None, mask, words[:, 0])
    torch.testing.assert_close(single, found[:, 0])
    real = torch.arange(4) < torch.tensor([[4, 1], [0, 2], [3, 4]]).unsqueeze(2)
    some = captioner(features, None, mask, words, packing=Packing.of(real))
    torch.testing.assert_close(some, found[real])


@pytest.mark.parametrize("decoder", DECODERS)
@torch.inference_mode()
def test_steps_can_load_other_images(decoder):
    captioner = build(decoder)
    features, mask = regions()
    steps = CaptionerSteps(captioner, features.clone().fill_(math.nan), None, mask)
    assert Greedy(steps, max_length=4).run().log_probs.isnan().any()
    search = Beam(steps, beam=3, num_return=3, max_length=6)
    steps.load(features, None, mask)
    first = search.run()
    steps.load(features.flip(0), None, mask.flip(0))
    second = search.run()
    assert torch.equal(second.words, first.words.flip(0))
    given = torch.cat((torch.zeros_like(first.words[..., :1]), first.words[..., :-1]), 2)
    log_probs = captioner(features, None, mask, given).log_softmax(-1)
    chosen = log_probs.gather(3, first.words.unsqueeze(3)).squeeze(3)
    counted = torch.arange(6) <= first.lengths.unsqueeze(2)
    expected = chosen.masked_fill(~counted, 0.0).sum(2).float()
    torch.testing.assert_close(first.log_probs, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("decoder", DECODERS)
def test_gradients_reach_every_weight_under_autocast(decoder):
    captioner = build(decoder, torch.float32).train()
    features, mask = regions(dtype=torch.float32)
    words = torch.randint(0, 11, (3, 2, 4))
    with torch.autocast("cpu", torch.bfloat16):
        logits = captioner(features, None, mask, words)
    logits.float().log_softmax(-1)[..., 0].sum().backward()
    for name, parameter in captioner.named_parameters():
        assert parameter.grad.isfinite().all(), name
        # A bias of the keys shifts all scores of an image alike, so its gradient is zero.
        assert parameter.grad.abs().sum() > 0 or name.endswith("key.bias"), name


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 0.05), (torch.bfloat16, 0.3)], ids=["half", "bfloat"]
)
@torch.inference_mode()
def test_half_precision(decoder, dtype, tolerance):
    captioner = build(decoder)
    features, mask = regions()
    words = torch.randint(0, 11, (3, 2, 4))
    exact = captioner(features, None, mask, words)
    half = captioner.to(dtype)(features.to(dtype), None, mask, words)
    torch.testing.assert_close(half.double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("decoder", DECODERS)
def test_dropout_acts_only_in_training_and_can_be_set_to_zero(decoder):
    captioner = build(decoder).train()
    features, mask = regions()
    words = torch.randint(0, 11, (3, 2, 4))
    first, second = (captioner(features, None, mask, words) for _ in range(2))
    assert not torch.equal(first, second)
    set_dropout(captioner, 0.0)
    torch.testing.assert_close(
        captioner(features, None, mask, words), captioner.eval()(features, None, mask, words)
    )


def test_aoa_supports_norms_and_geometry():
    captioner = build("aoa", norm="instance", geometry="query")
    assert captioner.encoder.needs_boxes
    features, mask = regions()
    boxes = 0.1 + torch.rand(3, 5, 4, dtype=torch.float64)
    words = torch.zeros(3, 2, dtype=torch.long)
    assert captioner(features, boxes, mask, words).shape == (3, 2, 11)


@pytest.mark.parametrize("decoder", RECURRENT)
def test_recording_attention_raises(decoder):
    captioner = build(decoder)
    features, mask = regions()
    memory = captioner.encode(features, None, mask)
    with pytest.raises(ValueError, match="only the Transformer decoder returns attention"):
        captioner.decode(torch.zeros(3, 2, dtype=torch.long), memory, mask, record=[])


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        (dict(decoder="up-down"), "norm: 'instance' cannot be used with decoder: up-down"),
        (dict(decoder="up-down", norm="none"), "geometry: 'query' cannot be used"),
        (dict(decoder="aoa", decoder_norm="layer"), "decoder_norm: 'layer' cannot be used"),
        (dict(decoder="lstm"), "norm: 'instance' cannot be used with decoder: lstm"),
        (
            dict(decoder="lstm", norm="none", geometry="none", positions="sinusoidal"),
            "positions: 'sinusoidal' cannot be used",
        ),
        (dict(decoder="gru"), "decoder"),
        (dict(geometry="relation-plus-one+query"), "relation-plus-one cannot be part of a sum"),
    ],
)
def test_unsupported_combinations_raise(keys, match):
    with pytest.raises(ValueError, match=match):
        CaptionerConfig(**keys)


def test_named_models_use_the_transformer_decoder():
    config = CaptionerConfig.for_model("san", decoder="aoa")
    assert config.as_model("ng-san") == CaptionerConfig()
    CaptionerConfig().require_transformer("an export")
    with pytest.raises(ValueError, match="decoder: 'aoa': an export supports only"):
        config.require_transformer("an export")
