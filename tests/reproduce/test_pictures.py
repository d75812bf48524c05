"""Features of a dataset are extracted from its photographs."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from ngsan.__main__ import main
from ngsan.data import FeatureStore
from ngsan.predict.answerer import photo_source
from ngsan.predict.captioner import PHOTO_MODEL
from ngsan.text.vocabulary import Vocabulary

SMALL = [
    "--seeds=1", "--model.dim=16", "--model.heads=2", "--model.hidden_dim=16", "--model.layers=1",
    "--cross_entropy.epochs=1", "--runtime.device=cpu", "--runtime.threads=1",
]  # fmt: skip


@pytest.fixture
def coco(tmp_path):
    """Six images with captions, and seven photographs, one of them without captions."""
    random = np.random.default_rng(0)
    data, pictures = tmp_path / "coco", tmp_path / "pictures"
    data.mkdir()
    pictures.mkdir()
    for number in range(1, 8):
        pixels = random.integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(pictures / f"COCO_val2014_{number:012d}.jpg")
    lines = [
        {"id": str(number), "split": "val" if number > 4 else "train", "captions": ["a red dog"]}
        for number in range(1, 7)
    ]
    (data / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Vocabulary.build([["a", "red", "dog"]], more_than=0, tokenizer="plain-a").save(
        data / "vocabulary.json"
    )
    return data, pictures


def reproduce(data, *words, name="models-cross-entropy"):
    to = str(data.parent / "to")
    return main(["reproduce", name, "--data", str(data), "--output", to, *words, *SMALL])


def test_features_are_extracted_with_the_photo_model(coco):
    data, pictures = coco
    assert reproduce(data, "--rows", "SAN", "--images", str(pictures)) == 0
    store = FeatureStore(data)
    assert sorted(store.ids()) == ["1", "2", "3", "4", "5", "6"]
    source = photo_source(PHOTO_MODEL)
    with Image.open(pictures / "COCO_val2014_000000000003.jpg") as image:
        (expected,) = source.regions([source.prepare(image.convert("RGB"))])
    np.testing.assert_allclose(store["3"].features, expected.features, rtol=2e-3, atol=2e-3)
    # Now the photographs are not needed any more.
    shutil.rmtree(pictures)
    assert reproduce(data, "--rows", "N-SAN") == 0


def test_missing_photographs_raise(coco, capsys):
    data, pictures = coco
    assert reproduce(data, "--rows", "SAN") == 2
    assert "no feature store" in capsys.readouterr().err
    assert reproduce(data, "--rows", "SAM", "--images", str(pictures)) == 2
    assert "no row 'SAM'" in capsys.readouterr().err
    assert not (data / "features").exists()  # raised before the extraction
    (data.parent / "none").mkdir()
    assert reproduce(data, "--rows", "SAN", "--images", str(data.parent / "none")) == 2
    assert "no file there is named like an image of" in capsys.readouterr().err
    (pictures / "COCO_val2014_000000000002.jpg").write_bytes(b"no picture")
    assert reproduce(data, "--rows", "SAN", "--images", str(pictures)) == 2
    printed = capsys.readouterr()
    assert "000000000002.jpg" in printed.err
    assert "no features" in printed.err
