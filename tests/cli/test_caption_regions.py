"""`ngsan caption` with a model of regions."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import ngsan
from ngsan.__main__ import main
from ngsan.config import CaptionerConfig
from ngsan.data.store import FeatureStore
from ngsan.export.write import pack_model
from ngsan.models import build_captioner
from ngsan.models.checkpoint import read_features, save_model
from ngsan.predict.captioner import PHOTO_DECODING
from tests.export.helpers import VOCABULARY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for number in range(3):
        pixels = np.kron(random.integers(0, 255, (4, 4, 3)), np.ones((40, 30, 1)))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def model(photos, tmp_path_factory):
    """A model of the cells of a small grid, and the dataset folder with their features."""
    folder = tmp_path_factory.mktemp("regions")
    words = ["extract", str(photos), "-o", str(folder / "data"), "--size", "64", "--device", "cpu"]
    assert main(words) == 0
    store = FeatureStore(folder / "data")
    config = CaptionerConfig(
        vocab_size=len(VOCABULARY), feature_dim=352, dim=16, heads=2, hidden_dim=16, layers=1
    )
    torch.manual_seed(0)
    captioner = build_captioner(config)
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    companions = {"vocabulary": VOCABULARY}
    save_model(folder / "model", captioner, config, companions, features=store.source)
    return folder


def test_photographs_are_read_as_the_training_data_was(photos, model, tmp_path):
    output = tmp_path / "found.json"
    arguments = [str(photos), "--model", str(model / "model"), "-o", str(output)]
    assert main(["caption", *arguments]) == 0
    captioner, store = ngsan.load(model / "model"), FeatureStore(model / "data")
    for number, record in enumerate(json.loads(output.read_text())):
        regions = store[str(number)]
        (wanted,) = captioner.caption_regions(
            regions.features[None].astype(np.float32),
            regions.boxes[None].copy(),
            **vars(PHOTO_DECODING),
        )
        assert record["caption"] == wanted.text


def test_a_model_that_does_not_say_what_made_its_features(photos, model, tmp_path, capsys):
    from ngsan.models.checkpoint import load_model

    captioner, config, companions = load_model(model / "model", "captioning")
    for name, source in (("none", ""), ("given", "extract at most 100 given boxes 0123456789ab")):
        save_model(tmp_path / name, captioner, config, companions, features=source)
        assert main(["caption", str(photos), "--model", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "caption_regions" in error


def test_packing_keeps_what_made_the_features(model, tmp_path):
    pack_model(model / "model", tmp_path / "packed", attention=False)
    assert read_features(tmp_path / "packed") == FeatureStore(model / "data").source


@pytest.mark.parametrize(
    "how", [[], ["--pool", "roi", "--extractor", "grid", "--size", "64", "--top", "features"]]
)
def test_sources_of_detected_regions_are_found_again(photos, tmp_path, how):
    """What opens them again is found by the description that the store has."""
    from ngsan.cli.extract import source_of_model

    limits = ["--min-regions", "4", "--max-regions", "6", "--min-score", "0.3", "--threads", "1"]
    words = ["extract", str(photos), "-o", str(tmp_path / "data"), "--source", "objects"]
    assert main([*words, *limits, "--device", "cpu", *how]) == 0
    store = FeatureStore(tmp_path / "data")
    config = CaptionerConfig(
        vocab_size=len(VOCABULARY),
        feature_dim=store.feature_dim,
        dim=16,
        heads=2,
        hidden_dim=16,
        layers=1,
    )
    companions = {"vocabulary": VOCABULARY}
    save_model(
        tmp_path / "model", build_captioner(config), config, companions, features=store.source
    )
    source = source_of_model(tmp_path / "model")
    assert f"extract {source.signature}" == store.source
    (found,) = source.regions([Image.open(photos / "1.png")])
    np.testing.assert_array_equal(found.boxes, store["1"].boxes)
    np.testing.assert_allclose(found.features, store["1"].features, rtol=1e-2, atol=1e-2)
