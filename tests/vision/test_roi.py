"""Regions that are pooled from the map of a backbone."""

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

from ngsan.vision.backbone import build_backbone  # noqa: E402
from ngsan.vision.regions import GivenBoxes  # noqa: E402
from ngsan.vision.roi import RoiSource  # noqa: E402

from .test_backbone import with_random_statistics  # noqa: E402


def test_source_pools_boxes_by_id():
    backbone = with_random_statistics(
        build_backbone("efficientnet-lite0", size=64, pretrained=False)
    )
    boxes = {"1": np.array([[0.5, 0.5, 1, 1]], np.float32)}
    boxes["2"] = np.array([[0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]], np.float32)
    source = RoiSource(GivenBoxes(boxes), backbone)
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)) for _ in range(2)]
    one, two = source.regions([source.prepare(image) for image in images], ["1", "2"])
    np.testing.assert_array_equal(two.boxes, boxes["2"])
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
    with torch.inference_mode():
        cells = backbone.eval()(pixels.permute(0, 3, 1, 2)).numpy()  # 2 x 2 cells
    np.testing.assert_allclose(one.features[0], cells[0].mean(0), rtol=1e-3, atol=1e-3)
    # A box that is one cell: near the border only that cell, towards the others less of it.
    assert two.features.shape == (2, backbone.channels)
    assert source.feature_dim == backbone.channels
    with pytest.raises(ValueError, match="no boxes of image 3"):
        source.regions(images[:1], ["3"])
