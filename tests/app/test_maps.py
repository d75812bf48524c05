"""Attention maps against the equations in NumPy, and against the search."""

import numpy as np
import pytest
import torch
from PIL import Image

from ngsan.app.attention import from_torch
from ngsan.app.maps import Explainer
from ngsan.config import CaptionerConfig
from ngsan.models import CaptionerModel, build_captioner
from ngsan.predict.captioner import Captioner
from ngsan.vision.images import to_square
from tests import reference
from tests.app.photo_models import COLUMNS, ROWS, VOCABULARY, small


def photograph(seed=0, size=(30, 20)):
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def inputs_of_attention(explainer, image):
    """The inputs of each layer's attention, recorded by hooks."""
    caught, hooks = [], []
    for layer in explainer.captioner.encoder.regions.layers:
        hooks.append(
            layer.attention.register_forward_pre_hook(
                lambda _, given: caught.append(given[0][0].double().numpy())
            )
        )
    pixels = torch.from_numpy(to_square(image, explainer.size)).permute(2, 0, 1)[None]
    with torch.inference_mode():
        explainer.captioner.encode(pixels)
    for hook in hooks:
        hook.remove()
    return caught


@pytest.mark.parametrize("geometry", ["none", "query", "content-independent", "query+key"])
@pytest.mark.parametrize("norm", ["none", "instance"])
def test_content_geometry_and_weights_equal_the_equations(norm, geometry):
    explainer = small(norm=norm, geometry=geometry, signed_geometry=geometry == "query")
    image = photograph()
    found = explainer.explain(image, ["word1"])
    boxes = explainer.captioner.encoder.boxes.double().numpy()
    places = reference.relative_geometry(boxes, signed=geometry == "query")
    layers = explainer.captioner.encoder.regions.layers
    for number, x in enumerate(inputs_of_attention(explainer, image)):
        parameters = layers[number].attention.state_dict().items()
        state = {name: weight.double().numpy() for name, weight in parameters}
        query = reference.linear(x, state, "query")
        query = reference.instance_norm(query) if norm == "instance" else query
        key = reference.linear(x, state, "key")
        terms = [] if geometry == "none" else geometry.split("+")
        bias = reference.geometry_bias(terms, places, x, state, "score_bias.", 2)
        for head in range(2):
            part = slice(8 * head, 8 * head + 8)
            scores = query[:, part] @ key[:, part].T / np.sqrt(8)
            content, both = reference.softmax(scores), reference.softmax(scores + bias[head])
            np.testing.assert_allclose(found.content[number, head], content, atol=1e-5)
            np.testing.assert_allclose(found.weights[number, head], both, atol=1e-5)
            if terms:
                np.testing.assert_allclose(
                    np.exp(found.geometry[number, head]), both / content, rtol=1e-3
                )
                shift = found.geometry[number, head] - bias[head]
                np.testing.assert_allclose(shift, shift[:, :1].repeat(6, 1), atol=1e-4)
    assert (found.geometry is None) == (geometry == "none")


@pytest.mark.parametrize("geometry", ["absolute", "absolute+query"])
def test_absolute_geometry_is_not_part_of_the_attention(geometry):
    found = small(geometry=geometry).explain(photograph(), ["word1"])
    assert (found.geometry is None) == (geometry == "absolute")


def test_probabilities_and_attention_equal_the_search():
    explainer = small()
    image = photograph(3)
    encoder = explainer.captioner.encoder
    pixels = torch.from_numpy(to_square(image, explainer.size)).permute(2, 0, 1)[None]
    cells, boxes = encoder.backbone(pixels).detach(), encoder.boxes[None]
    of_regions = CaptionerModel(encoder.regions, explainer.captioner.decoder)
    (best,) = Captioner.from_model(of_regions, VOCABULARY).caption_regions(
        cells, boxes, attention=True, num_return=3, max_length=6
    )
    captions = (best, *best.others)
    found = explainer.explain(image, [caption.text for caption in captions])
    assert len(found.captions) == 3
    for written, caption in zip(found.captions, captions, strict=True):
        assert written.text == caption.text
        known = len(caption.word_log_probabilities)
        np.testing.assert_allclose(
            np.log(written.probabilities[:known]), caption.word_log_probabilities, atol=1e-4
        )
        assert written.probability == pytest.approx(np.prod(written.probabilities))
        words = len(written.words)
        assert written.attention.shape == (2, 2, words + 1, ROWS * COLUMNS)
        np.testing.assert_allclose(
            written.attention[-1].mean(0)[:words], caption.attention, atol=1e-5
        )
        np.testing.assert_allclose(written.attention.sum(-1), 1, rtol=1e-5)
    with pytest.raises(ValueError, match="'word77' is not in the vocabulary"):
        explainer.explain(image, ["word77"])
    assert explainer.grid == (ROWS, COLUMNS)


def test_bias_of_cells_and_mean_inputs():
    """The bias graph, for pairs of cells and for the mean input of several photographs."""
    explainer = small(signed_geometry=True, geometry="query+key")
    found = explainer.explain(photograph(1), ["word1"])
    boxes = explainer.cell_boxes
    for row, column in ((0, 5), (3, 1)):
        inputs = found.inputs[:, [row, column]]
        bias = explainer.model.bias(boxes[[row, column]][None], inputs)[:, :, 0]
        other = explainer.model.bias(boxes[[row, row]][None], found.inputs[:, [row, row]])[:, :, 0]
        shown = found.geometry[:, :, row, column] - found.geometry[:, :, row, row]
        np.testing.assert_allclose(bias - other, shown, atol=1e-4)
    images = [photograph(seed) for seed in range(3)]
    cells = [
        (explainer.model.cell_features(to_square(image, explainer.size)), boxes) for image in images
    ]
    each = [explainer.explain(image, ["word1"]).inputs.mean(1) for image in images]
    np.testing.assert_allclose(explainer.model.mean_inputs(cells), np.mean(each, 0), atol=1e-5)
    with pytest.raises(ValueError, match="needs at least one image"):
        explainer.model.mean_inputs([])
    with pytest.raises(ValueError, match="no geometric bias"):
        small("san").model.mean_inputs(cells)


def test_other_models_are_rejected():
    config = CaptionerConfig(vocab_size=13, feature_dim=5, dim=16, heads=2, hidden_dim=16, layers=1)
    with pytest.raises(ValueError, match="backbone: none"):
        Explainer(from_torch(build_captioner(config), config, VOCABULARY))
    recurrent = CaptionerConfig.for_model("san", decoder="up-down")
    with pytest.raises(ValueError, match="decoder: 'up-down'"):
        from_torch(None, recurrent, VOCABULARY)
