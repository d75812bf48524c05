"""Exports of photo models, against PyTorch."""

import shutil

import numpy as np
import pytest
import torch

import ngsan
from ngsan.__main__ import main
from ngsan.export.checking import onnx_logits, torch_logits
from ngsan.export.write import export_model
from ngsan.models.checkpoint import load_model
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.captioner import Captioner
from ngsan.predict.manifest import BACKBONE, DECODER, ENCODER, FILES, cell_boxes
from ngsan.vision.backbone import build_backbone
from tests.export.helpers import CHANNELS, PHOTO, make_model, pixels, random_images

pytestmark = pytest.mark.slow
"""The packed photo models in test_pack use the same code in the fast tier."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model folder and its export."""
    folder = tmp_path_factory.mktemp("photo")
    model = make_model(folder / "model", **PHOTO)
    report = export_model(model, folder / "export")
    assert report.difference < 1e-4
    return model, folder / "export"


def test_export_contains_the_backbone(exported):
    assert {path.name for path in exported[1].iterdir()} == {*FILES, BACKBONE}


@pytest.mark.parametrize("count", [1, 2, 9])
def test_features_and_logits_equal_torch(count, exported):
    model, folder = exported
    captioner = load_model(model, "captioning")[0]
    images = random_images(count, seed=count)
    with torch.inference_mode():
        wanted = captioner.encoder.backbone(images)
    boxes = captioner.encoder.backbone.cell_boxes().expand(count, -1, -1)
    backend = OnnxBackend(folder, threads=1)
    features, places = backend.describe(pixels(images))
    np.testing.assert_allclose(features, wanted.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(places, boxes.numpy())
    given = (images, None, None)
    expected, found = torch_logits(captioner, given), onnx_logits(backend, given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_captions_equal_torch(exported):
    model, folder = exported
    images = random_images(6, seed=5)
    captioner, _, companions = load_model(model, "captioning")
    vocabulary = companions["vocabulary"]
    wanted = Captioner.from_model(captioner, vocabulary).caption_regions(images)
    backend = OnnxBackend(folder, threads=1)
    features, boxes = backend.describe(pixels(images))
    assert features.shape == (6, 4, CHANNELS)
    for ours, theirs in zip(
        Captioner(backend).caption_regions(features, boxes), wanted, strict=True
    ):
        assert ours.text == theirs.text
        assert ours.score == pytest.approx(theirs.score, abs=1e-3)


def test_no_images(exported):
    nothing = pixels(random_images(1))[:0]
    captioner = ngsan.load(exported[1])
    features, boxes = captioner.backend.describe(nothing)
    assert features.shape == (0, 4, CHANNELS)
    assert boxes.shape == (0, 4, 4)
    assert captioner.caption_regions(features, boxes) == captioner.caption([]) == []
    assert captioner.caption_pixels(nothing) == []


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((1, 64, 64, 3), np.float32),
        np.zeros((1, 3, 64, 64), np.uint8),
        np.zeros((64, 64, 3), np.uint8),
        np.zeros((1, 32, 32, 3), np.uint8),
    ],
)
def test_invalid_images_raise(images, exported):
    with pytest.raises(ValueError, match=r"images must be \(images, 64, 64, 3\) uint8, not"):
        OnnxBackend(exported[1]).describe(images)


@pytest.mark.parametrize("name", [BACKBONE, ENCODER, DECODER])
def test_missing_and_damaged_graphs_raise(name, exported, tmp_path):
    folder = shutil.copytree(exported[1], tmp_path / "copy")
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"is not an export: {name} missing"):
        OnnxBackend(folder)
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"{name} is damaged or from another export"):
        OnnxBackend(folder)


@pytest.mark.parametrize("size", [32, 64, 256])
def test_cell_boxes_equal_the_backbone(size):
    backbone = build_backbone("efficientnet-lite0", size=size, pretrained=False)
    np.testing.assert_array_equal(cell_boxes(size // 32), backbone.cell_boxes().numpy())


def test_int8_export_by_the_command(exported, tmp_path, capsys, monkeypatch):
    def write_graphs(captioner, config, folder):
        for name in (BACKBONE, ENCODER, DECODER):
            shutil.copy(exported[1] / name, folder / name)
        names = {BACKBONE: [], ENCODER: [], DECODER: []}
        return names, names

    monkeypatch.setattr("ngsan.export.write.write_graphs", write_graphs)
    target = tmp_path / "small"
    for _ in range(2):  # the second export replaces the first
        assert (
            main(["export", str(exported[0]), "--output", str(target), "--precision", "int8"]) == 0
        )
    assert "captions of random images" in " ".join(capsys.readouterr().out.split())
    images = random_images(3)
    exact, quantized = (OnnxBackend(one, threads=1) for one in (exported[1], target))
    squares = pixels(images)
    assert np.array_equal(exact.describe(squares)[0], quantized.describe(squares)[0])
    both = [onnx_logits(one, (images, None, None)).ravel() for one in (exact, quantized)]
    assert not np.array_equal(*both)
    assert np.corrcoef(both)[0, 1] > 0.99
