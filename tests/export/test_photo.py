"""Exports of models of pixels, against PyTorch."""

import shutil

import numpy as np
import pytest
import torch

from ngsan.__main__ import main
from ngsan.export import OnnxModel, export_captioner
from ngsan.light import LightCaptioner, LightModel
from ngsan.light.manifest import BACKBONE, DECODER, ENCODER, FILES, cell_boxes
from ngsan.models.saved_captioner import load_captioner
from ngsan.predict import Predictor, TorchModel
from ngsan.vision.backbone import build_backbone
from tests.export.worlds import CHANNELS, PHOTO, VOCABULARY, make_model, pixels, random_images, walk


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model folder and its export."""
    folder = tmp_path_factory.mktemp("photo")
    model = make_model(folder / "model", **PHOTO)
    report = export_captioner(model, folder / "export")
    assert report.difference < 1e-4
    return model, folder / "export"


def test_the_folder_has_a_third_graph(exported):
    assert {path.name for path in exported[1].iterdir()} == {*FILES, BACKBONE}


@pytest.mark.parametrize("count", [1, 2, 9])
def test_features_and_logits_are_those_of_torch(count, exported):
    model, folder = exported
    captioner = load_captioner(model)[0]
    images = random_images(count, seed=count)
    with torch.inference_mode():
        wanted = captioner.encoder.backbone(images)
    boxes = captioner.encoder.backbone.cell_boxes().expand(count, -1, -1)
    other, light = OnnxModel(folder, threads=1), LightModel(folder, threads=1)
    for features, places in (
        other.describe(images),
        map(torch.from_numpy, map(np.array, light.describe(pixels(images)))),
    ):
        torch.testing.assert_close(features, wanted, rtol=1e-4, atol=1e-4)
        assert torch.equal(places, boxes)
    given = (images, None, None)
    expected, found = (walk(one, given) for one in (TorchModel(captioner), other))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_captions_are_the_same_three_ways(exported):
    model, folder = exported
    images = random_images(6, seed=5)
    captioner, _, vocabulary = load_captioner(model)
    onnx = OnnxModel(folder, threads=1)
    wanted = Predictor(captioner, vocabulary).caption(images)
    light = LightCaptioner.open(folder, threads=1)
    regions = light.model.describe(pixels(images))
    assert regions[0].shape == (6, 4, CHANNELS)
    for found in (Predictor(onnx, vocabulary).caption(images), light.caption(*regions)):
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours[0].text == theirs[0].text
            assert ours[0].score == pytest.approx(theirs[0].score, abs=1e-3)


def test_numbers_from_0_to_1_are_images_as_well(exported):
    model = OnnxModel(exported[1], threads=1)
    images = random_images(2)
    features, _ = model.describe(images)
    assert torch.equal(model.describe(images / 255)[0], features)


def test_no_images(exported):
    images = random_images(1)[:0]
    light = LightCaptioner.open(exported[1])
    features, boxes = light.model.describe(pixels(images))
    assert features.shape == (0, 4, CHANNELS)
    assert boxes.shape == (0, 4, 4)
    assert light.caption(features, boxes) == []
    assert Predictor(OnnxModel(exported[1]), VOCABULARY).caption(images) == []


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((1, 64, 64, 3), np.float32),
        np.zeros((1, 3, 64, 64), np.uint8),
        np.zeros((64, 64, 3), np.uint8),
        np.zeros((1, 32, 32, 3), np.uint8),
    ],
)
def test_wrong_images_are_refused(images, exported):
    with pytest.raises(ValueError, match=r"images must be \(images, 64, 64, 3\) uint8, not"):
        LightModel(exported[1]).describe(images)
    with pytest.raises(ValueError, match=r"images must be \(images, 3, 64, 64\), not"):
        OnnxModel(exported[1]).describe(torch.zeros(1, 64, 64, 3))


@pytest.mark.parametrize("name", [BACKBONE, ENCODER, DECODER])
def test_missing_and_damaged_graphs(name, exported, tmp_path):
    folder = shutil.copytree(exported[1], tmp_path / "copy")
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"is not an export: {name} missing"):
        LightModel(folder)
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"{name} is damaged or from another export"):
        LightModel(folder)


@pytest.mark.parametrize("size", [32, 64, 256])
def test_cells_are_those_of_the_backbone(size):
    backbone = build_backbone("efficientnet-lite0", size=size, pretrained=False)
    np.testing.assert_array_equal(cell_boxes(size), backbone.cell_boxes().numpy())


def test_eight_bits_and_the_command(exported, tmp_path, capsys, monkeypatch):
    def write_graphs(captioner, config, folder):
        for name in (BACKBONE, ENCODER, DECODER):
            shutil.copy(exported[1] / name, folder / name)
        names = {BACKBONE: [], ENCODER: [], DECODER: []}
        return names, names

    monkeypatch.setattr("ngsan.export.write.write_graphs", write_graphs)
    target = tmp_path / "small"
    for _ in range(2):  # it may take its own place
        assert main(["export", str(exported[0]), "--to", str(target), "--precision", "int8"]) == 0
    assert "captions of random images" in " ".join(capsys.readouterr().out.split())
    images = random_images(3)
    exact, rounded = (OnnxModel(one, threads=1) for one in (exported[1], target))
    assert torch.equal(exact.describe(images)[0], rounded.describe(images)[0])
    given = (images, None, None)
    both = torch.stack([walk(one, given).flatten() for one in (exact, rounded)])
    assert not torch.equal(*both)
    assert torch.corrcoef(both)[0, 1] > 0.99
