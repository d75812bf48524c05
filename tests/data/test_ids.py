import numpy as np
import pytest

from ngsan.data.ids import canonical_id, id_of_file


@pytest.mark.parametrize(
    "value",
    [
        391895,
        np.int64(391895),
        "391895",
        "000000391895",
        " 391895\n",
        "COCO_val2014_000000391895",
        "COCO_test2015_000000391895",
        "COCO_test2015_000000391895.jpg",
        "000000391895.PNG",
    ],
)
def test_canonical_id_of_coco_names(value):
    assert canonical_id(value) == "391895"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        ("000", "0"),
        ("1000268201_693b08cb0e", "1000268201_693b08cb0e"),
        ("n.1", "n.1"),
        ("dog.jpg", "dog"),
    ],
)
def test_canonical_id_of_other_names(value, expected):
    assert canonical_id(value) == expected


@pytest.mark.parametrize("value", ["", "  ", None, True, 1.5, b"1"])
def test_invalid_ids_raise(value):
    with pytest.raises(ValueError, match="image id"):
        canonical_id(value)


def test_id_of_file():
    assert id_of_file("some/where/COCO_train2014_000000000009.jpg") == "9"
    assert id_of_file("holiday.2020.png") == "holiday.2020"


@pytest.mark.parametrize("value", ["a.jpg.jpg", "a .jpg", "00.png", ".jpg", "COCO_val2014_1.gif"])
def test_canonical_id_is_idempotent(value):
    assert canonical_id(canonical_id(value)) == canonical_id(value)
