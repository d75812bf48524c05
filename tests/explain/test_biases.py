"""What biases read of an image, against the attention's own input and its bias."""

import numpy as np
import pytest
import torch

from ngsan.explain.biases import mean_inputs, region_inputs
from ngsan.studio.bias import Bias
from ngsan.vision.images import to_square
from tests.explain.photo_models import small
from tests.explain.test_maps import inputs_of_attention, photograph


def pixels_of(explainer, image):
    return torch.from_numpy(to_square(image, explainer.size)).permute(2, 0, 1)[None]


def test_they_read_what_the_attention_is_given():
    explainer, image = small(), photograph()
    found = region_inputs(explainer.captioner, pixels_of(explainer, image))
    wanted = inputs_of_attention(explainer, image)
    assert len(found) == len(wanted) == 2
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_bias_of_a_photograph_follows_from_them():
    explainer, image = small(signed_geometry=True), photograph(1)
    boxes = explainer.captioner.encoder.boxes.numpy()
    state = {name: value.numpy() for name, value in explainer.captioner.state_dict().items()}
    config = explainer.config
    told = explainer.explain(image).geometry
    for layer, x in enumerate(region_inputs(explainer.captioner, pixels_of(explainer, image))):
        prefixed = {name.replace("encoder.regions.", "encoder."): v for name, v in state.items()}
        found = Bias.of(prefixed, config, layer).of_pairs(boxes, x)
        # What is told is shifted in every row.
        shift = told[layer] - found
        np.testing.assert_allclose(shift, shift[..., :1] + 0 * shift, atol=1e-4)


def test_the_mean_is_over_all_regions_of_all_images():
    explainer = small()
    images = [pixels_of(explainer, photograph(seed)) for seed in range(3)]
    means = mean_inputs(explainer.captioner, ((image, None) for image in images))
    each = [region_inputs(explainer.captioner, image) for image in images]
    for layer, mean in enumerate(means):
        wanted = np.concatenate([found[layer] for found in each]).mean(0)
        np.testing.assert_allclose(mean, wanted, atol=1e-5)


def test_refusals():
    explainer = small("san")
    with pytest.raises(ValueError, match="no geometric bias"):
        region_inputs(explainer.captioner, pixels_of(explainer, photograph()))
    with pytest.raises(ValueError, match="no images"):
        mean_inputs(small().captioner, [])
