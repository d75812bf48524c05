"""Packed weights without torch, against the safetensors library and plain NumPy."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from ngsan.predict.manifest import Made, read_weights

RANDOM = np.random.default_rng(0)
TENSORS = {
    "matrix": RANDOM.integers(-127, 128, (5, 40)).astype(np.int8),
    "matrix.scale": RANDOM.random(5).astype(np.float32),
    "conv": RANDOM.integers(-127, 128, (4, 3, 2, 1)).astype(np.int8),
    "conv.scale": RANDOM.random(4).astype(np.float32),
    "half": RANDOM.standard_normal((3, 2)).astype(np.float16),
    "float": RANDOM.standard_normal((2, 3)).astype(np.float32),
    "lonely": np.ones((2, 32), np.int8),
    "count": np.array(7),
    "empty": np.zeros((0, 3), np.float32),
}


def test_tensors_equal_the_safetensors_library():
    found = read_weights(save(TENSORS, {"some": "metadata"}))
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert np.array_equal(found[name], tensor)


def test_floats_and_transposed_tensors():
    for name, wanted in (
        ("matrix", TENSORS["matrix"] * TENSORS["matrix.scale"][:, None]),
        ("half", TENSORS["half"].astype(np.float32)),
    ):
        for transposed in (False, True):
            found = Made(name, "floats", transposed).of(TENSORS)
            assert found.dtype == np.float32
            assert found.flags.c_contiguous
            assert np.array_equal(found, wanted.T if transposed else wanted)
    conv = Made("conv", "floats").of(TENSORS)
    assert np.array_equal(conv, TENSORS["conv"] * TENSORS["conv.scale"][:, None, None, None])
    assert np.array_equal(Made("float", transposed=True).of(TENSORS), TENSORS["float"].T)
    assert Made("count").of(TENSORS) == 7


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Made("nothing").of(TENSORS), "has no nothing"),
        (lambda: Made("lonely", "floats").of(TENSORS), "has no lonely.scale"),
        (lambda: Made("x", "other"), "way: 'other' is not one of same, floats"),
    ],
)
def test_invalid_requests_raise(made, message):
    with pytest.raises(ValueError, match=message):
        made()


def with_header(header, numbers=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + numbers


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 20,
        with_header(b"[[[["),
        with_header([]),
        with_header({"x": 1}),
        with_header({"x": {"dtype": "F32", "shape": [2]}}),
        with_header({"x": {"dtype": "F8", "shape": [2], "data_offsets": [0, 8]}}),
        with_header({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}),
        with_header({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
        with_header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}),
        with_header({"x": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}}),
        with_header(b"[" * 100_000),
    ],
)
def test_invalid_files_raise(content):
    with pytest.raises(ValueError, match="damaged or not packed weights"):
        read_weights(content)
