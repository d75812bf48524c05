"""Captions by PyTorch against teacher forcing, with every decoding method."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from ngsan.config import DecodingConfig
from ngsan.models import build_captioner
from ngsan.predict.captioner import Captioner
from ngsan.text.vocabulary import Vocabulary
from tests.predict.outputs import n_best

WORDS = ("a", "man", "on", "horse", "Horse", "with", "dog", "grass", "red", "<unk>")
VOCABULARY = Vocabulary(WORDS)
SMALL = dict(vocab_size=11, feature_dim=7, dim=16, heads=2, hidden_dim=24, layers=2, geometry_dim=6)

DECODINGS = {
    "beam": DecodingConfig(max_length=8, num_return=3),
    "mean": DecodingConfig(max_length=8, num_return=2, length_penalty=1.0, min_length=2),
    "diverse": DecodingConfig(max_length=8, beam=4, num_return=4, groups=2),
    "required": DecodingConfig(max_length=8, num_return=2, require="dog grass", no_repeat_ngram=2),
    "greedy": DecodingConfig(max_length=8, method="greedy"),
    "sample": DecodingConfig(max_length=8, method="sample", num_return=4),
    "cold": DecodingConfig(max_length=8, method="sample", num_return=2, temperature=0.5, top_k=4),
    "nucleus": DecodingConfig(max_length=8, method="sample", num_return=2, top_p=0.8, seed=3),
}


def build(seed=0, model="ng-san", dtype=torch.float64, **overrides):
    """A small model with varied captions, in double precision to avoid ties."""
    torch.manual_seed(seed)
    captioner = build_captioner(model, **{**SMALL, **overrides}).double().eval()
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        captioner.decoder.output.weight.mul_(3.0)
        captioner.decoder.output.bias[0] += 2.0
    return captioner.to(dtype)


@pytest.fixture
def images(make_boxes):
    """Features, boxes and mask of six images with 5, 4, 3, 2, 1 and 0 regions."""
    features = 3 * torch.randn(6, 5, 7, dtype=torch.float64)
    mask = torch.arange(5) < torch.arange(5, -1, -1)[:, None]
    return features, make_boxes(6, 5), mask


def assert_same(one, other, atol=1e-5):
    """Asserts that two lists of captions are equal up to rounding."""
    assert [c.ids for c in one] == [c.ids for c in other]
    for a, b in zip(one, other, strict=True):
        assert a.score == pytest.approx(b.score, abs=atol)
        assert a.word_log_probabilities == pytest.approx(b.word_log_probabilities, abs=atol)


def teacher_forced(captioners, images, image, words, max_length):
    """The log-probabilities of words and end token by teacher forcing, averaged over models."""
    features, boxes, mask = (part[image : image + 1] for part in images)
    given = torch.tensor([[0, *words]])[:, :max_length]
    with torch.no_grad():
        each = [c(features, boxes, mask, given).softmax(-1) for c in captioners]
    log_probs = torch.stack(each).mean(0).log()[0]
    targets = [*words, 0][:max_length]
    return [log_probs[place, word].item() for place, word in enumerate(targets)]


@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
@pytest.mark.parametrize("count", [1, 3], ids=["one", "ensemble"])
def test_probabilities_equal_teacher_forcing(images, decoding, count):
    captioners = [build(seed) for seed in range(count)]
    predictor = Captioner.from_model(captioners[0] if count == 1 else captioners, VOCABULARY)
    for image, captions in enumerate(n_best(predictor, *images, decoding=decoding)):
        assert captions
        for caption in captions:
            expected = teacher_forced(captioners, images, image, caption.ids, decoding.max_length)
            assert caption.word_log_probabilities == pytest.approx(expected, abs=1e-4)
            assert caption.log_probability == pytest.approx(sum(expected), abs=1e-4)
            power = decoding.length_penalty if decoding.method == "beam" else 0.0
            score = sum(expected) / len(expected) ** power
            assert caption.score == pytest.approx(score, abs=1e-4)
            assert caption.text == " ".join(WORDS[word - 1] for word in caption.ids)
            assert caption.attention is None


@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
@pytest.mark.parametrize("model", ["ng-san", "san"])
def test_captions_do_not_depend_on_batch_order_or_padding(images, decoding, model):
    features, boxes, mask = images
    captioner = build(model=model)
    together = n_best(Captioner.from_model(captioner, VOCABULARY), *images, decoding=decoding)
    for image in range(6):  # alone, without its padding
        real = mask[image]
        alone = n_best(Captioner.from_model(captioner, VOCABULARY),
            features[image : image + 1, real], boxes[image : image + 1, real],
            decoding=decoding, first=image,
        )  # fmt: skip
        assert_same(alone[0], together[image])
    spoilt, nowhere = features.clone(), boxes.clone()
    spoilt[~mask], nowhere[~mask] = math.nan, math.nan
    more = [torch.nn.functional.pad(x, (0, 0, 0, 4), value=9.0) for x in (spoilt, nowhere)]
    padded = n_best(
        Captioner.from_model(captioner, VOCABULARY),
        *more,
        torch.nn.functional.pad(mask, (0, 4)),
        decoding=decoding,
    )
    for image in range(6):
        assert_same(padded[image], together[image])
    if decoding.method != "sample":  # samples are seeded by the image's index
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        shuffled = n_best(
            Captioner.from_model(captioner, VOCABULARY),
            *(part[order] for part in images),
            decoding=decoding,
        )
        for place, image in enumerate(order.tolist()):
            assert_same(shuffled[place], together[image])


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_batch_of_500_equals_single_images(make_boxes, method):
    features, boxes = 3 * torch.randn(500, 3, 7, dtype=torch.float64), make_boxes(500, 3)
    decoding = DecodingConfig(method=method, max_length=5)
    predictor = Captioner.from_model(build(), VOCABULARY)
    together = n_best(predictor, features, boxes, decoding=decoding)
    assert len(together) == 500
    assert len({captions[0].ids for captions in together}) > 50
    assert {len(captions[0].ids) for captions in together} > {0, 2, 5}
    for image in range(0, 500, 20):
        alone = slice(image, image + 1)
        assert_same(
            n_best(predictor, features[alone], boxes[alone], decoding=decoding, first=image)[0],
            together[image],
        )
    for part in (slice(0, 250), slice(250, 500)):
        half = n_best(predictor, features[part], boxes[part], decoding=decoding, first=part.start)
        for one, other in zip(half, together[part], strict=True):
            assert_same(one, other)


def test_cached_buffers_are_not_mixed_up(images):
    """A predictor keeps the buffers of the last few kinds of batches."""
    predictor = Captioner.from_model(build(), VOCABULARY)
    kinds = [*DECODINGS.values()] * 2 + [DECODINGS["beam"], DECODINGS["sample"]] * 2
    for turn, decoding in enumerate(kinds):
        first = turn % 3
        part = tuple(x[first : first + 3] for x in images)
        fresh = n_best(
            Captioner.from_model(build(), VOCABULARY), *part, decoding=decoding, first=first
        )
        for one, other in zip(
            n_best(predictor, *part, decoding=decoding, first=first), fresh, strict=True
        ):
            assert_same(one, other)


def test_predictor_sees_changed_weights_and_mode(images):
    """Weights and training mode may change between two batches."""
    captioner = build(dropout=0.5)
    predictor = Captioner.from_model(captioner, VOCABULARY)
    before = n_best(predictor, *images)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    captioner.train()
    after = n_best(predictor, *images)
    fresh = n_best(Captioner.from_model(captioner.eval(), VOCABULARY), *images)
    for image in range(6):
        assert_same(after[image], fresh[image])
    assert [c[0].log_probability for c in before] != [c[0].log_probability for c in after]


@pytest.mark.parametrize("name", ["beam", "sample"])
def test_nan_batch_does_not_affect_the_next(images, name):
    features, boxes, mask = images
    decoding = DECODINGS[name]
    predictor = Captioner.from_model(build(), VOCABULARY)
    expected = n_best(predictor, *images, decoding=decoding)
    bad = features.clone()
    bad[0, 0, 0] = math.nan
    with pytest.raises(ValueError, match="NaN in the scores of 1 of 6"):
        n_best(predictor, bad, boxes, mask, decoding=decoding)
    for one, other in zip(n_best(predictor, *images, decoding=decoding), expected, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("count", [1, 2], ids=["one", "ensemble"])
def test_attention_equals_the_last_decoder_layer(images, count):
    captioners = [build(seed) for seed in range(count)]
    decoding = DECODINGS["beam"]
    captions = n_best(
        Captioner.from_model(captioners, VOCABULARY), *images, decoding=decoding, attention=True
    )
    for image, of_image in enumerate(captions):
        features, boxes, mask = (part[image : image + 1] for part in images)
        for caption in of_image:
            assert caption.attention.shape == (len(caption.ids), 5)
            assert not caption.attention[:, ~mask[0]].any()
            given = torch.tensor([[0, *caption.ids]])[:, : len(caption.ids)]
            if not caption.ids:
                continue
            each = []
            for captioner in captioners:
                maps = []
                with torch.no_grad():
                    memory = captioner.encode(features, boxes, mask)
                    captioner.decode(given, memory, mask, record=maps)
                each.append(maps[-1].weights[0].mean(0))
            expected = torch.stack(each).mean(0)
            np.testing.assert_allclose(caption.attention, expected, atol=1e-5)
            total = 1.0 if mask[0].any() else 0.0
            np.testing.assert_allclose(caption.attention.sum(1), total, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
def test_half_precision(images, dtype, decoding):
    predictor = Captioner.from_model(build(dtype=dtype), VOCABULARY)
    captions = n_best(predictor, *images, decoding=decoding, attention=True)
    for of_image in captions:
        for caption in of_image:
            assert math.isfinite(caption.log_probability)
            assert caption.attention.dtype == np.float32


@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
def test_no_images_and_no_regions(decoding):
    predictor = Captioner.from_model(build(), VOCABULARY)
    empty = torch.zeros(0, 5, 7), torch.zeros(0, 5, 4), torch.zeros(0, 5, dtype=torch.bool)
    assert n_best(predictor, *empty, decoding=decoding) == []
    assert n_best(predictor, *empty, decoding=decoding, attention=True) == []
    bare = n_best(
        predictor, torch.zeros(2, 0, 7), torch.zeros(2, 0, 4), decoding=decoding, attention=True
    )
    assert all(c.attention.shape == (len(c.ids), 0) for of_image in bare for c in of_image)
    hidden = n_best(
        predictor,
        torch.randn(2, 3, 7),
        torch.zeros(2, 3, 4),
        torch.zeros(2, 3, dtype=torch.bool),
        decoding=decoding,
    )
    for one, other in zip(bare, hidden, strict=True):
        assert_same(one, other)


def test_samples_differ_between_images_and_seeds():
    features = torch.randn(1, 4, 7, dtype=torch.float64).expand(8, -1, -1)
    predictor = Captioner.from_model(build(model="san"), VOCABULARY)
    decoding = DecodingConfig(method="sample", num_return=4, min_length=6)
    captions = n_best(predictor, features, decoding=decoding)
    assert len({caption.ids for of_image in captions for caption in of_image}) > 28
    again = n_best(predictor, features, decoding=decoding)
    assert [[c.ids for c in x] for x in again] == [[c.ids for c in x] for x in captions]
    other = n_best(predictor, features, decoding=dataclasses.replace(decoding, seed=1))
    assert [[c.ids for c in x] for x in other] != [[c.ids for c in x] for x in captions]


def test_unknown_word_needs_allow_unknown(images):
    captioner = build()
    with torch.no_grad():
        captioner.decoder.output.bias[10] += 50.0  # otherwise it writes only this word
    predictor = Captioner.from_model(captioner, VOCABULARY)
    for decoding in DECODINGS.values():
        for of_image in n_best(predictor, *images, decoding=decoding):
            assert all(10 not in caption.ids for caption in of_image)
    captions = n_best(predictor, *images, decoding=DecodingConfig(allow_unknown=True, max_length=3))
    assert {caption.text for of_image in captions for caption in of_image} == {"<unk> <unk> <unk>"}


def test_captions_satisfy_the_constraints(images):
    predictor = Captioner.from_model(build(), VOCABULARY)
    decoding = DecodingConfig(
        max_length=7, num_return=3, prefix="a red", require="dog", forbid="man grass", min_length=4,
        no_bad_ending=True, no_repeat_ngram=1,
    )  # fmt: skip
    for captions in n_best(predictor, *images, decoding=decoding):
        for caption in captions:
            words = caption.text.split()
            assert words[:2] == ["a", "red"]
            assert "dog" in words
            assert not {"man", "grass", "<unk>"} & set(words)
            assert 4 <= len(words) == len(set(words))
            assert words[-1] not in ("a", "on", "with")


def test_no_bad_ending_prevents_bad_endings(images):
    captioner = build()
    with torch.no_grad():
        captioner.decoder.output.bias[6] += 50.0  # with, with, with
    predictor = Captioner.from_model(captioner, VOCABULARY)
    free = n_best(predictor, *images, decoding=DecodingConfig(max_length=4))
    assert all(captions[0].text.endswith("with") for captions in free)
    decoding = DecodingConfig(max_length=4, no_bad_ending=True)
    for captions in n_best(predictor, *images, decoding=decoding):
        assert captions[0].ids
        assert captions[0].text.split()[-1] not in ("a", "on", "with")


def test_fewer_captions_than_num_return(images):
    """Only the prefix, and the prefix with one more word, are possible."""
    decoding = DecodingConfig(
        beam=9, num_return=9, max_length=2, prefix="a", forbid="man on horse Horse dog grass with a"
    )
    for captions in n_best(Captioner.from_model(build(), VOCABULARY), *images, decoding=decoding):
        assert {caption.text for caption in captions} == {"a", "a red"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"forbid": "man zebra"}, "forbid: 'zebra'"),
        ({"require": "zebra"}, "require: 'zebra'"),
        ({"prefix": "a photo of"}, "prefix: 'photo'"),
        ({"require": "man", "forbid": "red man"}, "'man' is in both forbid and require"),
        ({"require": "<unk>"}, "require: '<unk>'.*unknown"),
        ({"require": "a man on horse", "max_length": 3}, "required: 4 words do not fit .* most 3"),
        ({"prefix": "a man on horse", "max_length": 3}, "prefix: 4 words do not fit"),
        ({"forbid": " ".join(WORDS), "min_length": 1}, "every word is forbidden"),
        ({"no_repeat_ngram": 1, "min_length": 10}, "no caption .* for 6 of 6 images"),
    ],
)
@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_impossible_constraints_raise(images, keys, message, method):
    predictor = Captioner.from_model(build(), VOCABULARY)
    with pytest.raises(ValueError, match=message):
        n_best(predictor, *images, decoding=DecodingConfig(method=method, **keys))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "beams"}, "method: 'beams'"),
        ({"beam": 2}, None),
        ({"beam": 2, "num_return": 3}, "num_return: 3 .* beam: 2"),
        ({"beam": 4, "groups": 3}, "groups: 3 does not divide beam: 4"),
        ({"min_length": 30}, "min_length: 30 is above max_length: 20"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p: 1.1"),
        ({"temperature": 0.0}, "temperature"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"max_length": 0}, "max_length: 0"),
        ({"num_return": 0}, "num_return: 0"),
        ({"diversity": -0.1}, "diversity: -0.1"),
    ],
)
def test_decoding_config_is_validated(keys, message):
    if message is None:
        assert DecodingConfig(**keys).beam == 2
    else:
        with pytest.raises(ValueError, match=message):
            DecodingConfig(**keys)


def test_invalid_inputs_raise(images):
    features, boxes, mask = images
    captioner = build()
    predictor = Captioner.from_model(captioner, VOCABULARY)
    with pytest.raises(ValueError, match="11 word ids and the vocabulary 10"):
        Captioner.from_model(captioner, Vocabulary(WORDS[:-1]))
    with pytest.raises(ValueError, match="at least one model"):
        Captioner.from_model([], VOCABULARY)
    with pytest.raises(ValueError, match="needs the regions' boxes"):
        n_best(predictor, features)
    with pytest.raises(ValueError, match="features must be"):
        n_best(predictor, features[..., :5], boxes, mask)
    with pytest.raises(ValueError, match=r"\(6, 4"):
        n_best(predictor, features, boxes[:, :4], mask)
    with pytest.raises(ValueError, match="mask"):
        n_best(predictor, features, boxes, mask[:, :4])
    with pytest.raises(ValueError, match="boolean"):
        n_best(predictor, features, boxes, mask.long())
    boxes[0, 0, 2] = -1.0
    with pytest.raises(ValueError, match="box 0 of image 0"):
        n_best(predictor, features, boxes, mask)


def test_rejected_batch_does_not_affect_the_next(images):
    """The rejected batch has the shape of the previous one, so its buffers are reused."""
    features, boxes, mask = images
    predictor = Captioner.from_model(build(), VOCABULARY)
    expected = n_best(predictor, *images)
    for wrong in (mask[:, :4], mask.long()):
        with pytest.raises(ValueError, match="mask"):
            n_best(predictor, features.flip(0), boxes.flip(0), wrong)
    for one, other in zip(n_best(predictor, *images), expected, strict=True):
        assert_same(one, other)
