"""PyTorch captioners with threads, training, autocast and changed weights."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest
import torch

from ngsan import build_captioner
from ngsan.config import DecodingConfig
from ngsan.predict.backend_torch import TorchBackend, best_device
from ngsan.predict.captioner import Captioner
from ngsan.text.vocabulary import Vocabulary
from tests.predict.outputs import n_best

VOCABULARY = Vocabulary([*(f"w{index}" for index in range(20)), "of", "with", "<unk>"])


def make(seed=0, **keys):
    torch.manual_seed(seed)
    shape = dict(layers=1, dim=16, heads=2, hidden_dim=32, feature_dim=6)
    captioner = build_captioner("ng-san", vocab_size=len(VOCABULARY), **{**shape, **keys})
    for parameter in captioner.parameters():
        parameter.data *= 1.5
    return captioner


def regions(count, seed=0, most=5):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, most, 6, generator=generator)
    boxes = torch.rand(count, most, 4, generator=generator) * 0.4 + 0.1
    return features, boxes, torch.rand(count, most, generator=generator) > 0.3


def texts(captions):
    return [[caption.text for caption in image] for image in captions]


def test_captioner_is_thread_safe():
    predictor = Captioner.from_model(make(), VOCABULARY)
    inputs = [regions(1, seed) for seed in range(12)]
    alone = [texts(n_best(predictor, *images)) for images in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda images: texts(n_best(predictor, *images)), inputs * 5))
    assert found == alone * 5


def test_captioning_restores_training_mode():
    captioner = make(dropout=0.5)
    captioner.train()
    captioner.encoder.eval()  # frozen
    predictor = Captioner.from_model(captioner, VOCABULARY)
    images = regions(3)
    assert texts(n_best(predictor, *images)) == texts(n_best(predictor, *images))
    assert captioner.training
    assert captioner.decoder.training
    assert not captioner.encoder.training
    quiet = Captioner.from_model(make(dropout=0.5).eval(), VOCABULARY)
    assert texts(n_best(predictor, *images)) == texts(n_best(quiet, *images))


def test_autocast_does_not_affect_captions():
    predictor = Captioner.from_model(make(), VOCABULARY)
    images = regions(3)
    expected = texts(n_best(predictor, *images))
    fresh = Captioner.from_model(make(), VOCABULARY)
    with torch.autocast("cpu", torch.bfloat16):
        assert texts(n_best(fresh, *images)) == expected
    assert texts(n_best(fresh, *images)) == expected


def test_changed_weights_take_effect():
    captioner, images = make(), regions(3)
    predictor = Captioner.from_model(captioner, VOCABULARY)
    before = texts(n_best(predictor, *images))
    other = make(seed=9)
    captioner.decoder.output.weight.data = other.decoder.output.weight.data.clone()
    captioner.decoder.output.bias.data.copy_(other.decoder.output.bias)
    after = texts(n_best(predictor, *images))
    assert after != before
    assert after == texts(n_best(Captioner.from_model(captioner, VOCABULARY), *images))


def test_new_seed_reuses_the_buffers():
    predictor = Captioner.from_model(make(), VOCABULARY)
    images = regions(3)
    found = [
        texts(n_best(predictor, *images, decoding=DecodingConfig(method="sample", seed=seed)))
        for seed in (1, 2, 1)
    ]
    assert found[0] == found[2] != found[1]
    assert len(predictor.backend._ready) == 1


def test_arrays_are_accepted():
    predictor = Captioner.from_model(make(), VOCABULARY)
    images = regions(2)
    expected = texts(n_best(predictor, *images))
    arrays = [np.asarray(part) for part in images]
    assert texts(n_best(predictor, *arrays)) == expected


def test_region_padding_does_not_change_captions(monkeypatch):
    images = regions(4)
    expected = n_best(Captioner.from_model(make().double(), VOCABULARY), *images, attention=True)
    monkeypatch.setattr(TorchBackend, "region_multiple", 16)
    predictor = Captioner.from_model(make().double(), VOCABULARY)
    found = n_best(predictor, *images, attention=True)
    assert predictor.backend._latest[0].mask.shape == (4, 16)
    assert texts(found) == texts(expected)
    for mine, its in zip(chain(*expected), chain(*found), strict=True):
        assert mine.attention.shape == its.attention.shape
        np.testing.assert_allclose(mine.attention, its.attention, atol=1e-6)


@pytest.mark.parametrize("method", ["greedy", "sample"])
@pytest.mark.parametrize("require", ["of", "with w3", "of with"])
def test_required_bad_endings_are_followed_by_another_word(method, require):
    decoding = DecodingConfig(
        method=method, num_return=20, require=require, no_bad_ending=True, max_length=6
    )
    captions = n_best(Captioner.from_model(make(), VOCABULARY), *regions(12), decoding=decoding)
    for image in captions:
        assert len(image) == (20 if method == "sample" else 1)
        for caption in image:
            assert set(require.split()) <= set(caption.text.split())
            assert caption.text.split()[-1] not in ("of", "with")


def test_required_bad_endings_need_room_for_another_word():
    decoding = DecodingConfig(require="of with", no_bad_ending=True, max_length=2)
    with pytest.raises(ValueError, match="do not fit"):
        n_best(Captioner.from_model(make(), VOCABULARY), *regions(1), decoding=decoding)


@pytest.mark.parametrize("penalty", [40.0, -40.0])
def test_extreme_length_penalties_raise(penalty):
    decoding = DecodingConfig(length_penalty=penalty)
    with pytest.raises(ValueError, match=r"length_penalty: -?40.0 is too extreme"):
        n_best(Captioner.from_model(make(), VOCABULARY), *regions(1), decoding=decoding)


def test_huge_max_length_raises():
    decoding = DecodingConfig(max_length=10**9)
    with pytest.raises(ValueError, match="lower max_length"):
        n_best(Captioner.from_model(make(), VOCABULARY), *regions(1), decoding=decoding)


def test_nan_features_error_names_the_image():
    features, boxes, mask = regions(3)
    mask[:] = True
    features[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"1 of 3 images \(the first is number 1\)"):
        n_best(Captioner.from_model(make(), VOCABULARY), features, boxes, mask)


def test_unknown_device_raises():
    with pytest.raises(ValueError, match="device: 'abacus' cannot be used"):
        best_device("abacus")
