"""Readers of files from strangers, searched by Hypothesis for an input that they answer badly."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ngsan.atomic_io import read_sealed, seal
from ngsan.config.yaml_text import load_yaml
from ngsan.data.shards import FORMAT, Manifest
from ngsan.data.text_files import read_items, read_lines
from ngsan.predict.manifest import read_weights
from ngsan.vision.images import ImageError, open_image
from tests.hostile import files
from tests.hostile.damage import NUMBERS, WORDS
from tests.hostile.limits import FULL, bounded

pytestmark = pytest.mark.slow

PICTURE = Image.effect_noise((40, 30), 60).convert("RGB")
PICTURES = [files.saved(PICTURE, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]
TENSORS = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {}}
YAML = st.sampled_from([*"abx:,-?[]{}&*!|>'\"%#@`\n \t~0159.", "\n  ", "<<: ", "&a ", "*a", "!!"])
VALUES = st.recursive(
    st.sampled_from((*NUMBERS, *WORDS)) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def written(content, read):
    """Reads a file of some bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        return read(path)


def edited(draw):
    """A picture with a few bytes replaced, removed or inserted where Hypothesis chooses."""
    content = bytearray(draw(st.sampled_from(PICTURES)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        content[place : place + draw(st.integers(0, 6))] = draw(st.binary(max_size=6))
    return bytes(content)


def tensors(draw):
    """A safetensors file whose header has other values."""
    about = {**TENSORS["a"], draw(st.sampled_from(sorted(TENSORS["a"]))): draw(VALUES)}
    head = json.dumps({**TENSORS, draw(st.text(max_size=3)): about}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(draw(st.integers(0, 20)))


def manifest(draw):
    """A sealed manifest of a store with other values."""
    fields = {"source": "x", "format": FORMAT, "shards": [], "index": None, "position": 1}
    key = draw(st.sampled_from([*fields, "feature_dim", "has_boxes", "other"]))
    return seal({**fields, key: draw(VALUES)}).encode()


READERS = {
    "pictures": (edited, open_image),
    "tensors": (tensors, read_weights),
    "manifests": (manifest, lambda content: written(content, Manifest.read)),
    "sealed": (
        lambda draw: draw(st.binary(max_size=40)) + draw(st.sampled_from((b"", b"}", b"{}"))),
        lambda content: written(content, read_sealed),
    ),
    "items": (
        lambda draw: json.dumps(draw(VALUES)).encode() + draw(st.binary(max_size=3)),
        lambda content: written(content, lambda path: list(read_items(path))),
    ),
    "lines": (
        lambda draw: draw(st.binary(max_size=60)),
        lambda content: written(content, lambda path: list(read_lines(path))),
    ),
    "yaml": (lambda draw: "".join(draw(st.lists(YAML, max_size=40))), load_yaml),
}


@pytest.mark.parametrize("name", READERS)
def test_readers_answer_or_refuse(name, tally):
    make, read = READERS[name]
    inputs = 0

    @given(st.data())
    @settings(
        max_examples=1000 if FULL else 30,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def search(data):
        nonlocal inputs
        inputs += 1
        content = make(data.draw)
        with bounded(f"{name}: {content!r}"[:300], ValueError, ImageError):
            read(content)

    search()
    tally(inputs)
