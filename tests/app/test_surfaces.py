"""Bias surfaces against the torch module at pairs of boxes, and in closed form."""

import dataclasses

import numpy as np
import pytest
import torch

from ngsan.app.attention import FIXED_VALUES, from_torch
from ngsan.config import PLUS_ONE, CaptionerConfig
from ngsan.models import build_captioner
from ngsan.text.vocabulary import Vocabulary
from tests import reference

SMALL = CaptionerConfig(
    vocab_size=11,
    feature_dim=12,
    dim=16,
    heads=2,
    hidden_dim=24,
    layers=2,
    geometry_dim=8,
    norm_place="pre",
)
KINDS = ("content-independent", "query", "key", "relation", "query+key+content-independent")
VOCABULARY = Vocabulary([f"w{number}" for number in range(10)])
STEPS = 7


def random_model(kind, seed=0, **keys):
    """A captioner with random weights, including those initialized to zero."""
    torch.manual_seed(seed)
    config = dataclasses.replace(SMALL, geometry=kind, **keys)
    captioner = build_captioner(config).eval()
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.normal_(std=0.5)
    return captioner, from_torch(captioner, config, VOCABULARY)


def two_boxes(dx, dy, dw, dh):
    """Box i, and a box j to the right of and below it with the given geometry."""
    width, height = 0.3, 0.2
    other = (0.5 + dx * width, 0.5 + dy * height, width / dw, height / dh)
    return np.array([(0.5, 0.5, width, height), other])


@pytest.mark.parametrize("kind", KINDS)
def test_surface_values_equal_the_bias_of_box_pairs(kind):
    signed = kind != "key"
    captioner, model = random_model(kind, signed_geometry=signed)
    module = captioner.encoder.layers[1].attention.score_bias
    x = torch.randn(2, 2, SMALL.dim)  # layers, regions
    query, key = x[:, 0].numpy(), x[:, 1].numpy()
    surfaces = model.surfaces(layer=1, head=1, query=query, key=key, steps=STEPS)
    assert (surfaces.kind, surfaces.steps, surfaces.range) == (kind, STEPS, (0.0, 3.0))
    axis = np.linspace(0, 3, STEPS)
    for fixed in FIXED_VALUES:
        for row, column in ((1, 4), (6, 2), (0, 3), (5, 0), (0, 0)):
            first, second = max(axis[column], 1e-3), max(axis[row], 1e-3)
            pairs = {
                "position": two_boxes(axis[column], axis[row], fixed, fixed),
                "size": two_boxes(fixed, fixed, first, second),
            }
            for name, boxes in pairs.items():
                geometry = torch.tensor(
                    reference.relative_geometry(boxes, signed), dtype=torch.float32
                )
                with torch.no_grad():
                    wanted = module(geometry[None], x[1][None])[0, 1, 0, 1].item()
                found = getattr(surfaces, name)[f"{fixed:g}"][row][column]
                assert found == pytest.approx(wanted, abs=3e-4), (name, fixed, row, column)


def test_content_independent_surface_equals_closed_form():
    captioner, model = random_model("content-independent", seed=3)
    state = captioner.encoder.layers[0].attention.score_bias.state_dict()
    weight, shift, head = (
        state[name].numpy()
        for name in ("embedding.weight", "embedding.bias", "content_independent.weight")
    )
    mean = model.surfaces(head=None, steps=4).position["2"]
    for row, dy in enumerate((1e-3, 1.0, 2.0, 3.0)):
        for column, dx in enumerate((1e-3, 1.0, 2.0, 3.0)):
            f = np.log([dx, dy, 2.0, 2.0])
            each = np.maximum(head @ np.maximum(weight @ f + shift, 0), 0)
            assert mean[row][column] == pytest.approx(each.mean(), abs=1e-4)


def test_two_sided_surfaces_contain_the_one_sided():
    _, model = random_model("query", signed_geometry=True)
    both, one = model.surfaces(steps=13, two_sided=True), model.surfaces(steps=7)
    assert both.offsets == (-3.0, 3.0)
    assert one.offsets == (0.0, 3.0)
    for fixed in ("0.5", "1", "2"):
        quarter = np.array(both.position[fixed])[6:, 6:]
        np.testing.assert_allclose(quarter, one.position[fixed], atol=1e-5)
        assert abs(np.array(both.position[fixed]) - np.fliplr(both.position[fixed])).max() > 1e-2
    assert len(both.size["1"]) == 13
    _, model = random_model("query")  # without signs, both sides are equal
    both = np.array(model.surfaces(steps=13, two_sided=True).position["1"])
    np.testing.assert_allclose(both, both[::-1, ::-1], atol=1e-5)


def test_errors_name_the_value():
    _, model = random_model("query")
    for keys, message in (
        ({"layer": 2}, "layer: 2 is not one of 0 to 1"),
        ({"head": -1}, "head: -1 is not one of 0 to 1"),
        ({"steps": 1}, "steps: 1"),
    ):
        with pytest.raises(ValueError, match=message):
            model.surfaces(**keys)
    with pytest.raises(ValueError, match="no geometric bias"):
        random_model("absolute")[1].surfaces()
    with pytest.raises(ValueError, match="not supported"):
        random_model(PLUS_ONE)[1].surfaces()
