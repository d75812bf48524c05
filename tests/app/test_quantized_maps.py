"""8-bit rows, decoded as in the page's script."""

import base64

import numpy as np
import pytest

from ngsan.app.maps import Blob, quantize_rows


def read(content, entry):
    """Decodes a map as `Rows` in page.js does."""
    *outer, length = entry["shape"]
    count = int(np.prod(outer))
    scales = np.frombuffer(content, "<f4", count, entry["at"])
    numbers = np.frombuffer(content, np.uint8, count * length, entry["at"] + 4 * count)
    values = numbers.reshape(count, length).astype(np.float64)
    values = (values - 128) / 127 if entry["signed"] else values / 255
    return (values * scales[:, None]).reshape(entry["shape"])


def test_maps_round_trip():
    random = np.random.default_rng(0)
    maps = [
        random.dirichlet(np.ones(7), (2, 3, 5)).astype(np.float32),
        random.normal(size=(1, 1, 3)).astype(np.float32),
        random.normal(size=(2, 2, 4, 5)).astype(np.float32),
        random.dirichlet(np.full(9, 0.05), (2, 1, 4)).astype(np.float32),
    ]
    blob = Blob()
    entries = [blob.put(rows, signed=bool((rows < 0).any())) for rows in maps]
    content = base64.b64decode(blob.base64())
    assert len(content) == blob.size
    for rows, entry in zip(maps, entries, strict=True):
        assert entry["at"] % 4 == 0  # a Float32Array needs this alignment
        step = np.abs(rows).max(-1, keepdims=True) / (127 if entry["signed"] else 255)
        assert (np.abs(read(content, entry) - rows) <= 0.501 * step).all()


@pytest.mark.parametrize("signed", [False, True])
def test_row_of_zeros_stays_zero(signed):
    scales, numbers = quantize_rows(np.zeros((2, 4), np.float32), signed=signed)
    assert not scales.any()
    assert (numbers == (128 if signed else 0)).all()
