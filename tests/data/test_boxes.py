"""Boxes of images from COCO's annotations and from npz files."""

import json
import re

import numpy as np
import pytest

from ngsan.data.boxes import read_boxes

ANNOTATIONS = {
    "images": [{"id": 7, "width": 200, "height": 100}, {"id": 9, "width": 10, "height": 10}],
    "annotations": [
        {"image_id": 7, "bbox": [20, 10, 40, 50], "category_id": 1},
        {"image_id": 7, "bbox": [0, 0, 200, 100], "iscrowd": 1},
        {"image_id": 7, "bbox": [180, 90, 40, 40]},
        {"image_id": 9, "bbox": [5, 5, 0, 3]},
    ],
}


def test_annotations(tmp_path):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(ANNOTATIONS))
    found = read_boxes(path)
    assert found.keys() == {"7", "9"}
    # The third is clipped to the image; crowds and empty boxes are dropped.
    np.testing.assert_allclose(
        found["7"], [[0.2, 0.35, 0.2, 0.5], [0.95, 0.95, 0.1, 0.1]], atol=1e-6
    )
    assert found["9"].shape == (0, 4)


@pytest.mark.parametrize("kind", [np.uint16, np.float32])
def test_npz(tmp_path, kind):
    boxes = np.array([[0.5, 0.5, 1, 1], [0.2, 0.4, 0.1, 0.2], [0.9, 0.9, 0.4, 0.4]])
    stored = np.rint(boxes * 65535).astype(kind) if kind is np.uint16 else boxes.astype(kind)
    path = tmp_path / "boxes.npz"
    np.savez(path, image_id=np.array([3, 4, 5], np.int32), offset=[0, 1, 1, 3], box=stored)
    found = read_boxes(path)
    assert {image: len(box) for image, box in found.items()} == {"3": 1, "4": 0, "5": 2}
    np.testing.assert_allclose(found["3"], boxes[:1], atol=1e-4)
    np.testing.assert_allclose(found["5"], [boxes[1], [0.85, 0.85, 0.3, 0.3]], atol=1e-4)


def test_wrong_files_raise(tmp_path):
    path = tmp_path / "boxes.npz"
    for arrays, match in (
        ({"image_id": [1], "offset": [0, 1]}, "not an npz file of image_id, offset and box"),
        ({"image_id": [1], "offset": [0, 2], "box": np.ones((1, 4))}, "rise from 0 to 1, the num"),
        ({"image_id": [1, 2], "offset": [0, 2, 1], "box": np.ones((1, 4))}, "must rise from 0"),
        ({"image_id": [1], "offset": [1, 1], "box": np.ones((1, 4))}, "must rise from 0 to 1"),
        ({"image_id": [1], "offset": [0, -1], "box": np.ones((0, 4))}, "must rise from 0 to 0"),
        ({"image_id": [1], "offset": [0.0, 1.0], "box": np.ones((1, 4))}, "2 integers, not float"),
        (
            {"image_id": [1], "offset": [0], "box": np.ones((1, 4))},
            "2 integers, not int64 of shape",
        ),
        ({"image_id": 1, "offset": [0, 1], "box": np.ones((1, 4))}, "image_id must be one integer"),
        ({"image_id": [1.5], "offset": [0, 1], "box": np.ones((1, 4))}, "image_id must be one"),
        ({"image_id": [1], "offset": [0, 1], "box": np.ones((1, 3))}, "float64 of shape (1, 3)"),
        ({"image_id": [1], "offset": [0, 1], "box": np.ones(())}, "of shape (boxes, 4), not float"),
        ({"image_id": [1], "offset": [0, 1], "box": np.ones((1, 4), np.int8)}, "not int8 of shape"),
        ({"image_id": [1], "offset": [0, 1], "box": np.full((1, 4), 9.0)}, "divide pixels by its"),
        ({"image_id": [1], "offset": [0, 1], "box": np.full((1, 4), np.nan)}, "is not finite"),
        ({"image_id": [1, 1], "offset": [0, 0, 0], "box": np.ones((0, 4))}, "1 occurs twice"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=re.escape(match)):
            read_boxes(path)
    path.write_bytes(b"PK broken")
    with pytest.raises(ValueError, match="not an npz file"):
        read_boxes(path)
    other = tmp_path / "boxes.json"
    for document, match in (
        ([], "expected COCO's annotations"),
        ({"images": [], "annotations": []}, "no boxes"),
        ({"images": [{"id": 1}], "annotations": []}, "have no id, width or height"),
        ({**ANNOTATIONS, "annotations": [{"image_id": 8, "bbox": [0] * 4}]}, "entry 1: no image_"),
        ({**ANNOTATIONS, "annotations": [{"image_id": 7, "bbox": [0, 1]}]}, "entry 1: no image_"),
        ({**ANNOTATIONS, "annotations": ["x"]}, "entry 1: no image_"),
        (
            {"images": [{"id": 1, "width": 0, "height": 5}], "annotations": []},
            "image 1 has no width",
        ),
        ({**ANNOTATIONS, "annotations": 5}, "are not a list"),
    ):
        other.write_text(json.dumps(document))
        with pytest.raises(ValueError, match=match):
            read_boxes(other)
    with pytest.raises((ValueError, OSError)):
        read_boxes(tmp_path / "none.npz")
