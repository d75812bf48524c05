"""Detectors of torchvision, against a stand-in."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from ngsan.vision.detector import load_detector


def photograph(size):
    return np.random.default_rng(1).integers(0, 256, (size, size, 3), np.uint8)


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
    [("torchvision:any", "torchvision"), ("torchvision:any", "torch")],
)
def test_missing_packages_are_named(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"needs {package}: pip install"):
        load_detector(name)
