"""Region sources: inputs, outputs and errors."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from ngsan.data.store import checked_regions
from ngsan.vision.backbone import build_backbone
from ngsan.vision.images import to_square
from ngsan.vision.sources import (
    GridSource,
    OnnxDetectorSource,
    TorchvisionSource,
    best_regions,
    open_source,
    weights_hash,
)

from .test_backbone import with_random_statistics


def pictures(*sizes):
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in sizes]


def test_grid_source_equals_the_backbone():
    backbone = with_random_statistics(
        build_backbone("efficientnet-lite0", size=64, pretrained=False)
    )
    source = GridSource(backbone)
    images = pictures((100, 80), (64, 64), (30, 200))
    found = source.regions(images)
    pixels = torch.from_numpy(np.stack([to_square(image, 64) for image in images]))
    with torch.inference_mode():
        expected = backbone(pixels.permute(0, 3, 1, 2)).numpy()
    for number, regions in enumerate(found):
        np.testing.assert_allclose(regions.features, expected[number], rtol=2e-3, atol=2e-3)
        np.testing.assert_array_equal(regions.boxes, backbone.cell_boxes().numpy())
        assert regions.size == images[number].size
        checked_regions(regions)
    # Prepared pictures give equal regions, alone and in a batch.
    ahead = source.regions([source.prepare(images[2])])[0]
    np.testing.assert_allclose(ahead.features, found[2].features, rtol=2e-3, atol=2e-3)
    assert source.feature_dim == backbone.channels
    assert backbone.training is False
    assert [part for part in backbone.modules() if isinstance(part, nn.BatchNorm2d)]


def test_signature_depends_on_weights_and_size():
    def made(seed, size):
        return GridSource(
            with_random_statistics(
                build_backbone("efficientnet-lite0", size=size, pretrained=False), seed
            )
        )

    signatures = {made(seed, size).signature for seed, size in ((0, 32), (0, 32), (1, 32), (0, 64))}
    assert len(signatures) == 3
    layer = nn.Linear(3, 3)
    before = weights_hash(layer)
    with torch.no_grad():
        layer.bias[0] += 1e-6
    assert weights_hash(layer) != before


def test_highest_scoring_boxes_are_kept():
    corners = np.array([[0, 0, 10, 20], [5, 5, 5, 9], [-10, 0, 30, 40], [90, 0, 99, 9.0]])
    scores = np.array([0.1, 0.9, 0.8, 0.7])
    features = np.arange(8, dtype=np.float32).reshape(4, 2)
    found = best_regions(features, corners, (20, 40), max_regions=2, scores=scores, size=(40, 80))
    # The second has no width, the last lies outside.
    np.testing.assert_allclose(found.boxes, [[0.5, 0.5, 1, 1], [0.25, 0.25, 0.5, 0.5]])
    np.testing.assert_array_equal(found.features, features[[2, 0]])
    assert found.size == (40, 80)
    first = best_regions(features, corners, (20, 40), max_regions=1)
    np.testing.assert_array_equal(first.features, features[:1])
    with pytest.raises(ValueError, match="found no regions"):
        best_regions(features[:0], corners[:0], (20, 40), max_regions=2)
    with pytest.raises(ValueError, match="found no regions"):
        best_regions(features[:1], np.full((1, 4), np.nan), (20, 40), max_regions=2)
    with pytest.raises(ValueError, match="instead of"):
        best_regions(features, corners[:3], (20, 40), max_regions=2)


def graph(path, *, kind="uint8", shape=(1, 3, "height", "width"), names=("features", "boxes")):
    """An ONNX detector with one box for the whole picture; its feature is the mean."""
    onnx = pytest.importorskip("onnx")
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    real, types = onnx.TensorProto.FLOAT, {"uint8": 2, "float": 1, "int64": 7}
    order = onnx.numpy_helper.from_array(np.array([3, 2], np.int64), "order")
    zeros = onnx.numpy_helper.from_array(np.zeros(2, np.float32), "zeros")
    first = onnx.numpy_helper.from_array(np.array([0], np.int64), "first")
    nodes = [
        node("Cast", ["pixels"], ["real"], to=real),
        node("ReduceMean", ["real"], ["mean"], axes=[2, 3], keepdims=0),
        node("Unsqueeze", ["mean", "first"], [names[0]]),
        node("Shape", ["pixels"], ["shape"]),
        node("Gather", ["shape", "order"], ["sides"]),
        node("Cast", ["sides"], ["far"], to=real),
        node("Concat", ["zeros", "far"], ["corners"], axis=0),
        node("Unsqueeze", ["corners", "first"], [names[1]]),
    ]
    made = onnx.helper.make_graph(
        nodes,
        "detector",
        [info("pixels", types[kind], shape)],
        [info(names[0], real, [1, 1, 3]), info(names[1], real, [1, 4])],
        [order, zeros, first],
    )
    opset = [onnx.helper.make_opsetid("", 13)]
    onnx.save(onnx.helper.make_model(made, opset_imports=opset, ir_version=8), path)
    return path


def test_onnx_detector_input_size_and_type(tmp_path):
    pytest.importorskip("onnxruntime")
    image = Image.fromarray(np.full((30, 60, 3), (10, 200, 30), np.uint8))
    source = open_source(f"onnx:{graph(tmp_path / 'bytes.onnx')}")
    assert source.feature_dim == 3
    (found,) = source.regions([image])
    np.testing.assert_allclose(found.features, [[10, 200, 30]], atol=1e-4)
    np.testing.assert_allclose(found.boxes, [[0.5, 0.5, 1, 1]])
    assert found.size == (60, 30)
    floats = OnnxDetectorSource(graph(tmp_path / "real.onnx", kind="float"), max_side=20)
    assert floats.prepare(image).size == (20, 10)
    (found,) = floats.regions([image])
    np.testing.assert_allclose(found.features, [[10 / 255, 200 / 255, 30 / 255]], atol=1e-4)
    assert found.size == (60, 30)
    fixed = OnnxDetectorSource(graph(tmp_path / "fixed.onnx", shape=(1, 3, 24, 48)))
    assert fixed.prepare(image).size == (48, 24)
    assert len({source.signature, floats.signature, fixed.signature}) == 3


def test_invalid_detectors(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "text.onnx").write_text("no graph")
    with pytest.raises(ValueError, match="ONNX Runtime cannot open it"):
        OnnxDetectorSource(tmp_path / "text.onnx")
    with pytest.raises(ValueError, match="file not found"):
        OnnxDetectorSource(tmp_path / "missing.onnx")
    for wrong in ({"shape": (2, 3, 8, 8)}, {"shape": (1, 4, 8, 8)}, {"kind": "int64"}):
        with pytest.raises(ValueError, match="a detector must have one input"):
            OnnxDetectorSource(graph(tmp_path / "wrong.onnx", **wrong))
    with pytest.raises(ValueError, match="'features' and 'boxes', but this one returns a, b"):
        OnnxDetectorSource(graph(tmp_path / "wrong.onnx", names=("a", "b")))


class FakeDetector(nn.Module):
    """Has the parts of a Faster R-CNN: halves the picture and detects its left and upper half."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.roi_heads = FakeHeads()

    def transform(self, images):
        small = images[0][None, :, ::2, ::2]
        return SimpleNamespace(tensors=small, image_sizes=[tuple(small.shape[2:])]), None

    def backbone(self, tensors):
        return tensors

    def rpn(self, images, maps):
        assert list(maps) == ["0"]
        return ["proposals"], {}


class FakeHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.box_predictor = SimpleNamespace(cls_score=nn.Linear(3, 5))

    def forward(self, maps, proposals, sizes):
        height, width = sizes[0]
        boxes = torch.tensor([[0, 0, width / 2, height], [0, 0, width, height / 2], [1, 1, 1, 1]])
        return [{"boxes": boxes, "scores": torch.tensor([0.9, 0.8, 0.7])}], {}

    def box_roi_pool(self, maps, boxes, sizes):
        (picture,) = maps["0"]
        cuts = [
            picture[:, int(y1) : int(y2), int(x1) : int(x2)] for x1, y1, x2, y2 in boxes[0].tolist()
        ]
        return torch.stack([cut.mean((1, 2)) if cut.numel() else torch.zeros(3) for cut in cuts])

    def box_head(self, pooled):
        return pooled


def test_torchvision_s_detectors(monkeypatch):
    asked = []
    detection = ModuleType("torchvision.models.detection")
    detection.a_detector = lambda **how: asked.append(how) or FakeDetector()
    detection.one_stage = lambda **how: nn.Linear(1, 1)
    for name in ("torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "torchvision.models.detection", detection)
    source = open_source("torchvision:a_detector")
    assert asked == [{"weights": "DEFAULT"}]
    assert source.feature_dim == 3
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20] = 255
    (found,) = source.regions([Image.fromarray(pixels)])
    np.testing.assert_allclose(found.features, [[1, 1, 1], [0.5, 0.5, 0.5]])
    np.testing.assert_allclose(found.boxes, [[0.25, 0.5, 0.5, 1], [0.5, 0.25, 1, 0.5]])
    assert found.size == (40, 20)
    with pytest.raises(ValueError, match="has no 'other'"):
        TorchvisionSource("other")
    with pytest.raises(ValueError, match="choose a Faster R-CNN"):
        TorchvisionSource("one_stage")


def test_missing_package_error_names_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ValueError, match="pip install torchvision"):
        TorchvisionSource("a_detector")
    path = tmp_path / "any.onnx"
    path.touch()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"pip install ngsan"):
        OnnxDetectorSource(path)
