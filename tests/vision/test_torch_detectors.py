"""Detectors of other libraries: transformers' with random weights, torchvision's as a stand-in."""

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from ngsan.vision.detector import load_detector

transformers = pytest.importorskip("transformers")


def save(folder, config, **processor):
    """A detector with random weights and its image processor, as on the hub."""
    torch.manual_seed(0)
    model = transformers.AutoModelForObjectDetection.from_config(config)
    with torch.no_grad():  # random boxes would all lie at the same place
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    content = {"do_resize": True, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    (folder / "preprocessor_config.json").write_text(json.dumps({**content, **processor}))
    return model.eval()


@pytest.fixture(scope="module")
def yolos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("yolos")
    config = transformers.YolosConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=[64, 64],
        patch_size=16,
        num_detection_tokens=12,
        id2label={0: "cat", 1: "dog", 2: "bird"},
    )
    return folder, save(folder, config, size={"shortest_edge": 64, "longest_edge": 96})


def photograph(size):
    return np.random.default_rng(1).integers(0, 256, (size, size, 3), np.uint8)


@pytest.mark.slow
def test_transformers_detector_equals_its_own_postprocessing(yolos):
    folder, model = yolos
    detector = load_detector(f"hf:{folder}")
    assert detector.names == ("cat", "dog", "bird")
    assert detector.size == 64
    pixels = photograph(64)
    found = detector.detect(pixels, min_score=0.0)
    # Computed step by step, with the processor's numbers.
    image = (pixels / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.3, 0.4]
    with torch.no_grad():
        output = model(pixel_values=torch.tensor(image, dtype=torch.float32).permute(2, 0, 1)[None])
    scores = output.logits[0].softmax(-1)[:, :3].numpy()
    np.testing.assert_allclose(found.class_scores, scores.max(0), rtol=1e-4)
    query, label = np.unravel_index(scores.argmax(), scores.shape)
    assert found.classes[0] == label
    assert found.scores[0] == pytest.approx(scores.max(), rel=1e-4)
    cx, cy, width, height = output.pred_boxes[0, query].numpy().astype(float)
    low = np.clip([cx - width / 2, cy - height / 2], 0, 1)
    high = np.clip([cx + width / 2, cy + height / 2], 0, 1)
    np.testing.assert_allclose(found.boxes[0], [*(low + high) / 2, *(high - low)], atol=1e-4)
    # No box is dropped as a duplicate: these detectors find every object once.
    assert len(found.scores) == 3 * 12
    assert len(detector.detect(pixels, max_boxes=2, min_score=0.0).scores) == 2


@pytest.mark.slow
def test_detectors_without_a_class_of_nothing_use_sigmoids(yolos, monkeypatch):
    detector = load_detector(f"hf:{yolos[0]}")
    logits = torch.tensor([[[2.0, -1.0, 0.5], [-3.0, 1.0, 0.0]]])
    boxes = torch.tensor([[[0.3, 0.3, 0.2, 0.2], [0.7, 0.7, 0.2, 0.2]]])
    answer = SimpleNamespace(logits=logits, pred_boxes=boxes)
    monkeypatch.setattr(detector, "_model", lambda pixel_values: answer)
    found = detector.detect(photograph(64), min_score=0.6)
    wanted = 1 / (1 + np.exp(-np.array([2.0, 1.0, 0.5])))
    np.testing.assert_allclose(found.scores, wanted, rtol=1e-5)
    assert found.classes.tolist() == [0, 1, 2]
    np.testing.assert_allclose(found.boxes[1], [0.7, 0.7, 0.2, 0.2], rtol=1e-5)


@pytest.mark.slow
def test_another_model_of_transformers_is_not_a_detector(tmp_path):
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    config.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 32, "width": 32}}')
    with pytest.raises(ValueError, match="is not a detector of transformers"):
        load_detector(f"hf:{tmp_path}")
    with pytest.raises(ValueError, match="cannot be opened by transformers"):
        load_detector(f"hf:{tmp_path / 'none'}")


class StandIn(torch.nn.Module):
    """torchvision's interface: a list of images in, dictionaries of boxes out."""

    def forward(self, images):
        (image,) = images
        assert image.shape == (3, 800, 800)
        assert 0 <= image.min() < image.max() <= 1
        boxes = [[0.0, 0.0, 400.0, 200.0], [400.0, 0.0, 800.0, 800.0], [80.0, 80.0, 160.0, 160.0]]
        return [
            {
                "boxes": torch.tensor(boxes),
                "scores": torch.tensor([0.3, 0.9, 0.06]),
                "labels": torch.tensor([1, 2, 2]),
            }
        ]


@pytest.fixture
def stand_in(monkeypatch):
    """A module in the place of torchvision, which does not come with every PyTorch."""
    builders = ModuleType("torchvision.models.detection")
    builders.small_detector = lambda weights: StandIn()
    models = ModuleType("torchvision.models")
    meta = {"categories": ["__background__", "cat", "dog"]}
    models.get_model_weights = lambda name: SimpleNamespace(DEFAULT=SimpleNamespace(meta=meta))
    for name, module in {
        "torchvision": ModuleType("torchvision"),
        "torchvision.models": models,
        "torchvision.models.detection": builders,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_torchvision_detector(stand_in):
    detector = load_detector("torchvision:small_detector")
    found = detector.detect(photograph(800), min_score=0.1)
    assert [detector.names[number] for number in found.classes] == ["dog", "cat"]
    np.testing.assert_allclose(found.boxes, [[0.75, 0.5, 0.5, 1], [0.25, 0.125, 0.5, 0.25]])
    np.testing.assert_allclose(found.class_scores, [0, 0.3, 0.9])
    with pytest.raises(ValueError, match="has no 'other'"):
        load_detector("torchvision:other")


@pytest.mark.parametrize(
    ("name", "package"),
    [("hf:any", "transformers"), ("torchvision:any", "torchvision"), ("hf:any", "torch")],
)
def test_missing_packages_are_named(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"needs {package}: pip install"):
        load_detector(name)
