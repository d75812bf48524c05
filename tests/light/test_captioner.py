"""Exports captioned without torch, against the predictor on the same export."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest
import torch

from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.export import OnnxModel, export_captioner
from ngsan.light import LightCaptioner
from ngsan.models import build_captioner
from ngsan.models.saved_captioner import save_captioner
from ngsan.predict import Predictor
from ngsan.text.vocabulary import UNKNOWN, Vocabulary
from tests.light.test_search import WORDS, random_decoding

VOCABULARY = Vocabulary([*WORDS[:-1], *(f"word{index}" for index in range(80)), UNKNOWN])
TINY = dict(vocab_size=len(VOCABULARY), feature_dim=6, dim=16, heads=2, hidden_dim=24)

VARIANTS = {
    "geometry": dict(layers=2, geometry="absolute+query", geometry_dim=4),
    "int8": dict(layers=1, geometry="none"),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A variant's export folder, the predictor with torch, and the captioner without; once."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            torch.manual_seed(2)
            config = CaptionerConfig(**TINY, **VARIANTS[name])
            captioner = build_captioner(config)
            for parameter in captioner.parameters():
                torch.nn.init.normal_(parameter, std=0.5 if parameter.ndim > 1 else 0.2)
            # Some captions end and some are cut off.
            captioner.decoder.output.bias.data[0] += 3
            save_captioner(folder / "model", captioner, config, VOCABULARY)
            precision = "int8" if name == "int8" else "float32"
            export_captioner(folder / "model", folder / "export", precision=precision)
            model = OnnxModel(folder / "export", threads=1)
            predictor = Predictor(model, model.vocabulary)
            light = LightCaptioner.open(folder / "export", threads=1)
            made[name] = folder / "export", predictor, light
        return made[name]

    return get


def regions(*counts):
    """Random regions, so many of each image; padding that holds no numbers."""
    random = np.random.default_rng(sum(counts))
    shape = (len(counts), max(counts, default=0))
    features = random.standard_normal((*shape, TINY["feature_dim"])).astype("f4")
    boxes = (0.1 + 0.8 * random.random((*shape, 4))).astype("f4")
    mask = np.arange(shape[1]) < np.array(counts, dtype=int).reshape(-1, 1)
    features[~mask], boxes[~mask] = np.nan, np.nan
    return features, boxes, mask


def assert_same(ours, theirs):
    assert [len(image) for image in ours] == [len(image) for image in theirs]
    for found, wanted in zip(chain(*ours), chain(*theirs), strict=True):
        assert (found.text, found.words) == (wanted.text, wanted.words)
        assert found.score == pytest.approx(wanted.score, abs=1e-5, rel=1e-6)
        assert found.log_probability == pytest.approx(wanted.log_probability, abs=1e-5, rel=1e-6)
        assert found.word_log_probabilities == pytest.approx(
            wanted.word_log_probabilities, abs=1e-5
        )
        assert (found.attention is None) == (wanted.attention is None)
        if wanted.attention is not None:
            np.testing.assert_allclose(found.attention, wanted.attention, atol=1e-5)


@pytest.mark.parametrize("counts", [(9,), (4, 7, 1), (5, 0), (0,)])
def test_random_settings_give_what_the_predictor_gives(counts, opened):
    _, predictor, light = opened("geometry")
    images = regions(*counts)
    for seed in range(20):
        decoding = random_decoding(np.random.default_rng(seed))
        keys = dict(decoding=decoding, attention=seed % 2 == 0, first=seed)
        try:
            wanted = predictor.caption(*images, **keys)
        except ValueError as error:
            with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
                light.caption(*images, **keys)
        else:
            assert_same(light.caption(*images, **keys), wanted)


def test_captions_end_and_are_cut_off(opened):
    # Otherwise the comparison above would have missed one or the other.
    _, _, light = opened("geometry")
    decoding = DecodingConfig(method="sample", samples=30, longest=6)
    captions = light.caption(*regions(9), decoding=decoding)[0]
    cut = {len(caption.word_log_probabilities) == len(caption.words) for caption in captions}
    assert cut == {True, False}


def test_eight_bits_and_no_geometry(opened):
    _, predictor, light = opened("int8")
    for count in range(1, 12):
        images = regions(count, count // 2)
        for method in ("beam", "greedy", "sample"):
            decoding = DecodingConfig(method=method, samples=5, best=2)
            wanted = predictor.caption(*images, decoding=decoding)
            assert_same(light.caption(*images, decoding=decoding), wanted)
    alone = images[0][:1]
    assert_same(light.caption(alone), predictor.caption(alone))


def test_arrays_of_other_kinds(opened):
    _, _, light = opened("geometry")
    features, boxes, mask = regions(4, 7)
    wanted = light.caption(features, boxes, mask)
    doubles = (np.asfortranarray(features.astype("f8")), boxes.astype("f8"), mask)
    assert_same(light.caption(*doubles), wanted)
    whole = regions(6)
    assert_same(light.caption(*whole[:2]), light.caption(*whole))
    assert light.caption(features[:0], boxes[:0], mask[:0]) == []


def test_several_threads_at_a_time(opened):
    _, _, light = opened("geometry")
    images = [regions(count) for count in range(3, 11)]
    wanted = [light.caption(*image) for image in images]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda image: light.caption(*image), images))
    assert found == wanted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(features=np.zeros((1, 3, 5), "f4")), r"features must be \(images, regions, 6\)"),
        (dict(features=np.zeros((1, 3, 6), int)), "features must be floating point"),
        (dict(boxes=None), "this model is geometry-aware"),
        (dict(boxes=np.ones((1, 2, 4), "f4")), r"boxes must be of shape \(1, 3, 4\)"),
        (dict(boxes=np.ones((1, 3, 4), int)), "boxes must be floating point"),
        (dict(boxes=np.full((1, 3, 4), 3.0)), "the largest number here is 3"),
        (dict(boxes=np.zeros((1, 3, 4))), "box 0 of image 0 is"),
        (dict(mask=np.ones((1, 3))), "mask must be boolean"),
        (dict(mask=np.ones((1, 2), bool)), "mask of shape"),
        (dict(features=np.full((1, 3, 6), np.nan, "f4")), "are no numbers"),
    ],
)
def test_wrong_arrays_are_refused(change, message, opened):
    features, boxes, mask = regions(3)
    given = {**dict(features=features, boxes=boxes, mask=mask), **change}
    with pytest.raises(ValueError, match=message):
        opened("geometry")[2].caption(**given)


def test_a_bad_box_is_named_and_padding_is_not_looked_at(opened):
    features, boxes, mask = regions(2, 5, 3)
    boxes[2, 1, 2] = 0
    with pytest.raises(ValueError, match="box 1 of image 2 is"):
        opened("geometry")[2].caption(features, boxes, mask)


def test_folders_that_are_no_exports(opened, tmp_path):
    folder = opened("int8")[0]
    with pytest.raises(ValueError, match="is not an export: export.json and encoder.onnx"):
        LightCaptioner.open(tmp_path)
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match="threads: 0 must be at least 1"):
        LightCaptioner.open(tmp_path, threads=0)
    graph = tmp_path / "decoder.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(ValueError, match="damaged or from another export"):
        LightCaptioner.open(tmp_path)


def test_torch_is_never_imported(opened):
    folder = opened("int8")[0]
    program = f"""
import sys
import numpy as np
from ngsan.config import DecodingConfig
from ngsan.light import LightCaptioner
captioner = LightCaptioner.open({str(folder)!r})
features = np.zeros((1, 3, 6), "f4")
for method in ("beam", "greedy", "sample"):
    captioner.caption(features, decoding=DecodingConfig(method=method), attention=True)
heavy = {{"torch", "jsonargparse", "rich", "lightning_fabric"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)
