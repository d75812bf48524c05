"""Captions of exports with NumPy and ONNX Runtime, against PyTorch's model and search."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest
import torch

import ngsan
from ngsan.config import CaptionerConfig
from ngsan.export.write import export_model
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.text.vocabulary import UNKNOWN, Vocabulary
from tests.predict.outputs import n_best
from tests.search.test_backends import WORDS, random_decoding

VOCABULARY = Vocabulary([*WORDS[:-1], *(f"word{index}" for index in range(80)), UNKNOWN])
CONFIG = CaptionerConfig(
    vocab_size=len(VOCABULARY),
    feature_dim=6,
    dim=16,
    heads=2,
    hidden_dim=24,
    layers=1,
    geometry="absolute+query",
    geometry_dim=4,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder beside its export."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(2)
    captioner = build_captioner(CONFIG)
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter, std=0.5 if parameter.ndim > 1 else 0.2)
    # Some captions end and some are cut off.
    captioner.decoder.output.bias.data[0] += 3
    save_model(folder / "model", captioner, CONFIG, {"vocabulary": VOCABULARY})
    export_model(folder / "model", folder / "export")
    return folder


@pytest.fixture(scope="module")
def exported(folder):
    return ngsan.load(folder / "export", threads=1)


def regions(*counts):
    """Random regions, `counts[i]` for image i; the padding is NaN."""
    random = np.random.default_rng(sum(counts))
    shape = (len(counts), max(counts, default=0))
    features = random.standard_normal((*shape, CONFIG.feature_dim)).astype("f4")
    boxes = (0.1 + 0.8 * random.random((*shape, 4))).astype("f4")
    mask = np.arange(shape[1]) < np.array(counts, dtype=int).reshape(-1, 1)
    features[~mask], boxes[~mask] = np.nan, np.nan
    return features, boxes, mask


def assert_same(ours, theirs):
    assert [len(image) for image in ours] == [len(image) for image in theirs]
    for found, wanted in zip(chain(*ours), chain(*theirs), strict=True):
        assert found.score == pytest.approx(wanted.score, abs=1e-4, rel=1e-5)
    # Rounding may swap captions whose scores are equal.
    ours, theirs = (
        [sorted(row, key=lambda caption: caption.ids) for row in rows] for rows in (ours, theirs)
    )
    for found, wanted in zip(chain(*ours), chain(*theirs), strict=True):
        assert (found.text, found.ids) == (wanted.text, wanted.ids)
        assert found.log_probability == pytest.approx(wanted.log_probability, abs=1e-4, rel=1e-5)
        assert found.word_log_probabilities == pytest.approx(
            wanted.word_log_probabilities, abs=1e-4
        )
        assert (found.attention is None) == (wanted.attention is None)
        if wanted.attention is not None:
            np.testing.assert_allclose(found.attention, wanted.attention, atol=1e-4)


def test_captions_equal_torch_for_random_settings(folder, exported):
    on_torch = ngsan.load(folder / "model")
    for counts in ((9,), (4, 7, 1), (5, 0), (0,)):
        images = regions(*counts)
        for seed in range(15):
            decoding = random_decoding(np.random.default_rng(seed))
            keys = dict(decoding=decoding, attention=seed % 2 == 0, first=seed)
            try:
                wanted = n_best(on_torch, *images, **keys)
            except ValueError as error:
                with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
                    n_best(exported, *images, **keys)
            else:
                assert_same(n_best(exported, *images, **keys), wanted)


def test_captions_end_or_are_cut_off(exported):
    # The comparison above covers both cases.
    (first,) = exported.caption_regions(*regions(9), method="sample", num_return=30, max_length=6)
    captions = [first, *first.others]
    cut = {len(caption.word_log_probabilities) == len(caption.words) for caption in captions}
    assert cut == {True, False}


def test_other_array_types_and_tensors_are_accepted(exported):
    features, boxes, mask = regions(4, 7)
    wanted = n_best(exported, features, boxes, mask)
    doubles = (np.asfortranarray(features.astype("f8")), boxes.astype("f8"), mask)
    assert_same(n_best(exported, *doubles), wanted)
    tensors = [torch.from_numpy(part) for part in (features, boxes, mask)]
    assert_same(n_best(exported, *tensors), wanted)
    whole = regions(6)
    assert_same(n_best(exported, *whole[:2]), n_best(exported, *whole))
    assert exported.caption_regions(features[:0], boxes[:0], mask[:0]) == []


def test_captioner_is_thread_safe(exported):
    images = [regions(count) for count in range(3, 11)]
    wanted = [exported.caption_regions(*image) for image in images]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda image: exported.caption_regions(*image), images))
    assert found == wanted


def test_invalid_arrays_raise(exported):
    features, boxes, mask = regions(3)
    for change, message in (
        (dict(features=np.zeros((1, 3, 5), "f4")), r"features must be \(images, regions, 6\)"),
        (dict(features=np.zeros((1, 3, 6), int)), "features must be floating point"),
        (dict(boxes=None), "this model is geometry-aware"),
        (dict(boxes=np.ones((1, 2, 4), "f4")), r"boxes must be of shape \(1, 3, 4\)"),
        (dict(boxes=np.ones((1, 3, 4), int)), "boxes must be floating point"),
        (dict(boxes=np.full((1, 3, 4), 3.0)), "the largest number here is 3"),
        (dict(boxes=np.zeros((1, 3, 4))), "box 0 of image 0 is"),
        (dict(mask=np.ones((1, 3))), "mask must be boolean"),
        (dict(mask=np.ones((1, 2), bool)), "mask of shape"),
        (dict(features=np.full((1, 3, 6), np.nan, "f4")), "1 of 1 images"),
    ):
        given = {**dict(features=features, boxes=boxes, mask=mask), **change}
        with pytest.raises(ValueError, match=message):
            exported.caption_regions(**given)


def test_invalid_box_is_named_and_padding_is_ignored(exported):
    features, boxes, mask = regions(2, 5, 3)
    boxes[2, 1, 2] = 0
    with pytest.raises(ValueError, match="box 1 of image 2 is"):
        exported.caption_regions(features, boxes, mask)


def test_torch_is_never_imported(folder):
    program = f"""
import sys
import numpy as np
import ngsan
captioner = ngsan.load({str(folder / "export")!r})
features, boxes = np.zeros((1, 3, 6), "f4"), np.full((1, 3, 4), 0.5, "f4")
for method in ("beam", "greedy", "sample"):
    captioner.caption_regions(features, boxes, method=method, attention=True)
heavy = {{"torch", "jsonargparse", "rich", "lightning_fabric"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)
