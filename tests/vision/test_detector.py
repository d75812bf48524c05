"""The shipped detector against LiteRT, suppression against brute force, and unusual images."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image, ImageDraw

from ngsan.text.objects import CLASSES
from ngsan.vision.detector import (
    SHIPPED_DETECTOR,
    Detections,
    OnnxDetector,
    best_detections,
    load_detector,
    objects_of,
    select,
    without_duplicates,
)
from ngsan.vision.images import to_square

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "src" / "ngsan" / "examples"
GOLDEN = json.loads((ROOT / "tests" / "golden" / "detector.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def detector():
    return load_detector(threads=1)


def corners(boxes):
    boxes = np.asarray(boxes, np.float64)
    return np.concatenate((boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2), 1)


def overlap(one, other):
    """Intersection over union of two boxes of corners, one side at a time."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


@pytest.mark.parametrize("name", GOLDEN)
def test_detections_equal_those_of_litert(detector, name):
    image = Image.open(EXAMPLES / name).convert("RGB")
    size = (detector.size, detector.size)
    found = detector.detect(np.asarray(image.resize(size, Image.Resampling.BICUBIC)))
    wanted = np.array(GOLDEN[name]["logits"])
    logits = np.log(found.class_scores / (1 - found.class_scores))
    # A step of 8 bits is 0.08; most of the difference is that of weights that cannot saturate.
    assert np.abs(logits - wanted).mean() < 0.2
    assert np.corrcoef(logits, wanted)[0, 1] > 0.98
    for one in GOLDEN[name]["detections"]:
        same = [
            (score, overlap(box, one["corners"]))
            for label, score, box in zip(
                found.classes, found.scores, corners(found.boxes), strict=True
            )
            if CLASSES[label] == one["label"] and abs(score - one["score"]) < 0.08
        ]
        assert max(shared for _, shared in same) > 0.9


def test_names_are_those_of_coco(detector):
    assert detector.names == CLASSES
    assert detector.size == 448


def test_products_of_weights_and_bytes_never_exceed_16_bits():
    graph = onnx.load(SHIPPED_DETECTOR).graph
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    convolutions = [node for node in graph.node if node.op_type == "QLinearConv"]
    groups = [{a.name: a.i for a in node.attribute}["group"] for node in convolutions]
    checked = 0
    for node, group in zip(convolutions, groups, strict=True):
        weight = weights[node.input[3]].astype(int)
        if group > 1:  # depthwise kernels add in 32 bits
            continue
        for order in ((0, 1, 2, 3), (0, 2, 3, 1)):
            rows = weight.transpose(order).reshape(len(weight), -1)
            pairs = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2))).reshape(len(rows), -1, 2)
            assert 255 * pairs.clip(0).sum(2).max() < 2**15
            assert 255 * pairs.clip(None, 0).sum(2).min() >= -(2**15)
        checked += 1
    assert checked > 100


def test_duplicates_are_dropped_as_by_brute_force():
    rng = np.random.default_rng(0)
    low = rng.random((120, 2)) * 0.7
    boxes = np.concatenate((low, low + 0.05 + 0.25 * rng.random((120, 2))), 1).astype(np.float32)
    classes = rng.integers(0, 3, 120)
    wanted: list[int] = []
    for number in range(120):
        rivals = (other for other in wanted if classes[other] == classes[number])
        if all(overlap(boxes[other], boxes[number]) <= 0.5 for other in rivals):
            wanted.append(number)
    assert 20 < len(wanted) < 120
    assert without_duplicates(boxes, classes, 120).tolist() == wanted
    assert without_duplicates(boxes, classes, 7).tolist() == wanted[:7]


def test_boxes_are_clipped_and_those_outside_dropped():
    boxes = np.array(
        [[0.5, 0.5, 2, 0.2], [1.4, 0.5, 0.2, 0.2], [np.nan, 0, 1, 1], [0.9, 0.9, 0.4, 0.2]],
        np.float32,
    )
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32)
    found = best_detections(boxes, scores, np.arange(4), np.ones(4, np.float32), max_boxes=9)
    np.testing.assert_allclose(found.boxes, [[0.5, 0.5, 1, 0.2], [0.85, 0.9, 0.3, 0.2]], atol=1e-6)
    assert found.classes.tolist() == [0, 3]


def crowd(count):
    """Logits and boxes of `count` certain objects side by side, among uncertain anchors."""
    logits = np.zeros((3000, len(CLASSES)), np.uint8)
    boxes = np.full((3000, 4), 0.5, np.float32)
    for number in range(count):
        place = (np.array([number % 20, number // 20]) + 0.5) / 20
        # A duplicate of each, a little weaker.
        for row in (number, 2000 + number):
            boxes[row] = [*place, 0.04, 0.04]
            logits[row, number % 80] = 250 if row == number else 240
    scores = np.linspace(0, 1, 256, dtype=np.float32)
    return select(logits, boxes, max_boxes=100, min_score=0.05, scores=scores)


@pytest.mark.parametrize(("count", "wanted"), [(0, 0), (1, 1), (100, 100), (300, 100)])
def test_any_number_of_objects(count, wanted):
    found = crowd(count)
    assert len(found.boxes) == len(found.scores) == len(found.classes) == wanted
    assert found.class_scores.shape == (80,)
    assert (found.scores[:-1] >= found.scores[1:]).all()
    assert sorted(found.classes.tolist()) == sorted(number % 80 for number in range(wanted))


def drawing():
    image = Image.new("RGB", (300, 200), "white")
    draw = ImageDraw.Draw(image)
    draw.ellipse((40, 40, 120, 160), outline="black", width=3)
    draw.line((150, 20, 280, 180), fill="blue", width=4)
    return image


IMAGES = {
    "black": Image.new("RGB", (640, 480)),
    "white": Image.new("RGB", (640, 480), "white"),
    "1x1": Image.new("RGB", (1, 1), (200, 30, 40)),
    "grey": Image.linear_gradient("L").convert("RGB"),
    "wide": Image.linear_gradient("L").convert("RGB").resize((4000, 10)),
    "drawing": drawing(),
}


@pytest.mark.parametrize("name", IMAGES)
def test_unusual_images_have_no_certain_objects(detector, name):
    found = detector.detect(to_square(IMAGES[name], detector.size), min_score=0.0)
    assert not (found.scores > 0.6).any()
    assert np.isfinite(found.boxes).all()
    sides = corners(found.boxes)
    assert sides.min() >= -1e-6
    assert sides.max() <= 1 + 1e-6


def test_lower_limit_adds_weaker_boxes_only(detector):
    pixels = to_square(Image.open(EXAMPLES / "coffee.jpg").convert("RGB"), detector.size)
    some, many = (detector.detect(pixels, min_score=limit) for limit in (0.4, 0.05))
    assert 0 < len(some.scores) < len(many.scores)
    np.testing.assert_array_equal(many.boxes[: len(some.boxes)], some.boxes)
    np.testing.assert_array_equal(some.class_scores, many.class_scores)
    assert len(detector.detect(pixels, min_score=1.0).scores) == 0
    assert len(detector.detect(pixels, max_boxes=2, min_score=0.01).scores) == 2
    # The best box of a class has the class's highest score.
    for number in set(some.classes.tolist()):
        best = some.scores[some.classes == number].max()
        assert best == some.class_scores[number]


def test_objects_have_names_and_plain_numbers():
    found = Detections(
        np.array([[0.5, 0.25, 0.123456, 1]], np.float32),
        np.array([0.87654321], np.float32),
        np.array([1]),
        np.zeros(2, np.float32),
    )
    (one,) = objects_of(found, ("cat", "dog"))
    assert one.label == "dog"
    assert json.loads(json.dumps(one.as_record())) == {
        "label": "dog",
        "box": [0.5, 0.25, 0.1235, 1.0],
        "confidence": 0.8765,
    }


def test_wrong_pixels_and_files_raise(detector, tmp_path):
    with pytest.raises(ValueError, match=r"\(448, 448, 3\) uint8, not \(2, 2, 3\)"):
        detector.detect(np.zeros((2, 2, 3), np.uint8))
    with pytest.raises(ValueError, match="float32"):
        detector.detect(np.zeros((448, 448, 3), np.float32))
    with pytest.raises(ValueError, match=r"none\.onnx: file not found"):
        OnnxDetector(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(SHIPPED_DETECTOR.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"bad\.onnx: ONNX Runtime cannot open it"):
        OnnxDetector(tmp_path / "bad.onnx")
    other = ROOT / "src" / "ngsan" / "shipped" / "coco" / "backbone.onnx"
    with pytest.raises(ValueError, match="names of its classes|cannot open"):
        OnnxDetector(other)


@pytest.mark.parametrize("by_class", [True, False])
@pytest.mark.parametrize("bytes_", [True, False])
def test_selection_equals_brute_force(by_class, bytes_, monkeypatch):
    monkeypatch.setattr("ngsan.vision.detector._CANDIDATES", 60)
    rng = np.random.default_rng(1)
    ranks = rng.integers(0, 40, (90, 4)).astype(np.uint8)  # with many ties
    table = np.linspace(0, 1, 256, dtype=np.float32)
    low = rng.random((90, 2)) * 0.6
    boxes = np.concatenate((low + 0.15, np.full((90, 2), 0.3)), 1).astype(np.float32)
    rows = [
        (-int(ranks[anchor, number]), anchor, number)
        for anchor in range(90)
        for number in range(4)
        if table[ranks[anchor, number]] >= 0.02
    ]
    if not by_class:  # every anchor once, as its best class
        rows = [min(row for row in rows if row[1] == anchor) for anchor in range(90)]
    wanted: list[tuple[int, int]] = []
    for _, anchor, number in sorted(rows)[:60]:
        sides = corners(boxes)
        rivals = [other for other, kind in wanted if kind == number or not by_class]
        if all(overlap(sides[other], sides[anchor]) <= 0.5 for other in rivals):
            wanted.append((anchor, number))
    given = {"scores": table} if bytes_ else {}
    found = select(
        ranks if bytes_ else table[ranks],
        boxes,
        max_boxes=100,
        min_score=0.02,
        by_class=by_class,
        **given,
    )
    assert 5 < len(wanted) < 60
    assert found.classes.tolist() == [number for _, number in wanted]
    np.testing.assert_allclose(found.boxes, boxes[[anchor for anchor, _ in wanted]], atol=1e-6)
    np.testing.assert_array_equal(found.scores, [table[ranks[pair]] for pair in wanted])
