"""Maps against the equations in NumPy, and against what a search says."""

import numpy as np
import pytest
import torch
from PIL import Image

from ngsan.config import CaptionerConfig, DecodingConfig
from ngsan.explain import Explainer
from ngsan.models import Captioner, build_captioner
from ngsan.predict import Predictor
from ngsan.vision.images import to_square
from tests import reference
from tests.explain.photo_models import COLUMNS, ROWS, VOCABULARY, small


def photograph(seed=0, size=(30, 20)):
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def inputs_of_attention(explainer, image):
    """What each layer's attention is given, caught on the way."""
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
def test_content_geometry_and_both_follow_the_equations(norm, geometry):
    explainer = small(norm=norm, geometry=geometry, signed_geometry=geometry == "query")
    image = photograph()
    found = explainer.explain(image)
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
def test_absolute_geometry_is_no_part_of_the_attention(geometry):
    found = small(geometry=geometry).explain(photograph())
    assert (found.geometry is None) == (geometry == "absolute")


def test_words_are_those_of_the_search_with_its_probabilities_and_attention():
    explainer = small()
    decoding = DecodingConfig(best=3, longest=6)
    image = photograph(3)
    found = explainer.explain(image, decoding=decoding)
    encoder = explainer.captioner.encoder
    pixels = torch.from_numpy(to_square(image, explainer.size)).permute(2, 0, 1)[None]
    cells, boxes = encoder.backbone(pixels).detach(), encoder.boxes[None]
    of_regions = Captioner(encoder.regions, explainer.captioner.decoder)
    captions = Predictor(of_regions, VOCABULARY).caption(
        cells, boxes, decoding=decoding, attention=True
    )
    assert len(found.captions) == 3
    for said, caption in zip(found.captions, captions[0], strict=True):
        assert said.text == caption.text
        known = len(caption.word_log_probabilities)
        np.testing.assert_allclose(
            np.log(said.probabilities[:known]), caption.word_log_probabilities, atol=1e-4
        )
        words = len(said.words)
        assert said.attention.shape == (2, 2, words + 1, ROWS * COLUMNS)
        np.testing.assert_allclose(said.attention[-1].mean(0)[:words], caption.attention, atol=1e-5)
        np.testing.assert_allclose(said.attention.sum(-1), 1, rtol=1e-5)


def test_captions_that_are_given_are_explained_in_place_of_new_ones():
    explainer = small()
    found = explainer.explain(photograph(), said=["word3 word1", "word2"])
    assert [said.words for said in found.captions] == [("word3", "word1"), ("word2",)]
    assert found.captions[0].probability == pytest.approx(np.prod(found.captions[0].probabilities))
    with pytest.raises(ValueError, match="'word77' is not in the vocabulary"):
        explainer.explain(photograph(), said=["word77"])


def test_samples_depend_on_the_number_of_the_image():
    explainer = small()
    decoding = DecodingConfig(method="sample", samples=4, longest=8)

    def texts(number):
        found = explainer.explain(photograph(), decoding=decoding, number=number)
        return [said.text for said in found.captions]

    assert texts(1) == texts(1) != texts(2)


def test_the_grid_has_rows_and_columns():
    assert small().grid == (ROWS, COLUMNS)


def test_a_recurrent_decoder_is_refused():
    with pytest.raises(ValueError, match="decoder: 'up-down': a page knows"):
        small("san", decoder="up-down")


def test_a_model_of_given_regions_is_refused():
    config = CaptionerConfig(vocab_size=13, feature_dim=5, dim=16, heads=2, hidden_dim=16, layers=1)
    with pytest.raises(ValueError, match="backbone: none"):
        Explainer(build_captioner(config), config, VOCABULARY)
