"""The bias without torch: against the equations spelled out, against PyTorch, in closed form."""

import dataclasses

import numpy as np
import pytest
import torch

from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner
from ngsan.studio.bias import HELD, Bias, bias_surfaces, relative_features
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
STEPS = 7


def random_state(config, seed=0):
    """A captioner whose weights are all random, also those that begin at zero."""
    torch.manual_seed(seed)
    captioner = build_captioner(config).eval()
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.normal_(std=0.5)
    return captioner, {name: value.numpy() for name, value in captioner.state_dict().items()}


def random_boxes(count, seed=0):
    numbers = np.random.default_rng(seed).uniform(0.1, 0.9, (count, 4))
    return numbers.astype(np.float32)


@pytest.mark.parametrize("signed", [False, True])
def test_features_are_those_of_eq_8(signed):
    boxes = random_boxes(6)
    boxes[3, 0] = boxes[2, 0]  # aligned
    wanted = reference.relative_geometry(boxes, signed)
    np.testing.assert_allclose(relative_features(boxes, signed=signed), wanted, atol=1e-5)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_have_the_bias_of_the_equations(kind, signed):
    config = dataclasses.replace(SMALL, geometry=kind, signed_geometry=signed)
    _, state = random_state(config)
    boxes = random_boxes(5)
    x = np.random.default_rng(1).normal(size=(5, config.dim)).astype(np.float32)
    found = Bias.of(state, config, 1).of_pairs(boxes, x)
    wanted = reference.geometry_bias(
        kind.split("+"),
        reference.relative_geometry(boxes, signed),
        x,
        state,
        "encoder.layers.1.attention.score_bias.",
        config.heads,
    )
    np.testing.assert_allclose(found, wanted, atol=2e-4)


def two_boxes(dx, dy, dw, dh):
    """The looking box and another one with these relations, the other on the right and below."""
    width, height = 0.3, 0.2
    other = (0.5 + dx * width, 0.5 + dy * height, width / dw, height / dh)
    return np.array([(0.5, 0.5, width, height), other])


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_value_of_a_surface_is_the_bias_of_two_such_boxes(kind, signed):
    config = dataclasses.replace(SMALL, geometry=kind, signed_geometry=signed)
    captioner, state = random_state(config)
    module = captioner.encoder.layers[0].attention.score_bias
    bias = Bias.of(state, config, 0)
    x = torch.randn(1, 2, config.dim)
    both = {name: bias.project(x[0].numpy(), name) for name in ("query", "key")}
    surfaces = bias_surfaces(
        bias,
        head=1,
        query=None if both["query"] is None else both["query"][0],
        key=None if both["key"] is None else both["key"][1],
        steps=STEPS,
    )
    assert (surfaces.kind, surfaces.steps, surfaces.range) == (kind, STEPS, (0.0, 3.0))
    axis = np.linspace(0, 3, STEPS)
    for held in HELD:
        for row, column in ((1, 4), (6, 2), (0, 3), (5, 0), (0, 0)):
            first, second = max(axis[column], 1e-3), max(axis[row], 1e-3)
            # Aligned boxes are as far apart as the floor; their sign is that of nothing.
            place = two_boxes(axis[column], axis[row], held, held)
            size = two_boxes(held, held, first, second)
            for name, boxes in (("position", place), ("size", size)):
                geometry = torch.tensor(
                    reference.relative_geometry(boxes, signed), dtype=torch.float32
                )
                with torch.no_grad():
                    wanted = module(geometry[None], x)[0, 1, 0, 1].item()
                found = getattr(surfaces, name)[f"{held:g}"][row][column]
                assert found == pytest.approx(wanted, abs=2e-4), (name, held, row, column)


def test_the_content_independent_surface_in_closed_form():
    config = dataclasses.replace(SMALL, geometry="content-independent", heads=2)
    _, state = random_state(config, seed=3)
    at = "encoder.layers.0.attention.score_bias."
    weight, shift = state[f"{at}embedding.weight"], state[f"{at}embedding.bias"]
    head = state[f"{at}content_independent.weight"]
    mean = bias_surfaces(Bias.of(state, config, 0), head=None, steps=4).position["2"]
    for row, dy in enumerate((1e-3, 1.0, 2.0, 3.0)):
        for column, dx in enumerate((1e-3, 1.0, 2.0, 3.0)):
            f = np.log([dx, dy, 2.0, 2.0])
            each = np.maximum(head @ np.maximum(weight @ f + shift, 0), 0)
            assert mean[row][column] == pytest.approx(each.mean(), abs=1e-4)


def test_without_a_query_its_constant_part_is_drawn():
    config = dataclasses.replace(SMALL, geometry="query")
    _, state = random_state(config)
    bias = Bias.of(state, config, 0)
    shift = state["encoder.layers.0.attention.score_bias.query.bias"]
    given = bias_surfaces(bias, query=shift.reshape(config.heads, -1), steps=3)
    assert bias_surfaces(bias, steps=3) == given


def test_two_sides_meet_in_the_middle():
    config = dataclasses.replace(SMALL, geometry="query", signed_geometry=True)
    _, state = random_state(config)
    bias = Bias.of(state, config, 0)
    both = bias_surfaces(bias, steps=13, two_sided=True)
    one = bias_surfaces(bias, steps=7)
    assert both.offsets == (-3.0, 3.0)
    assert one.offsets == (0.0, 3.0)
    for held in ("0.5", "1", "2"):
        quarter = np.array(both.position[held])[6:, 6:]
        np.testing.assert_allclose(quarter, one.position[held], atol=1e-6)
        assert abs(np.array(both.position[held]) - np.fliplr(both.position[held])).max() > 1e-2
    assert len(both.size["1"]) == 13


def test_without_signs_both_sides_are_alike():
    config = dataclasses.replace(SMALL, geometry="query")
    _, state = random_state(config)
    both = np.array(
        bias_surfaces(Bias.of(state, config, 0), steps=13, two_sided=True).position["1"]
    )
    np.testing.assert_allclose(both, both[::-1, ::-1], atol=1e-5)


def test_what_does_not_exist_is_named():
    config = dataclasses.replace(SMALL, geometry="query")
    _, state = random_state(config)
    bias = Bias.of(state, config, 0)
    with pytest.raises(ValueError, match="layer: 2 is not one of 0 to 1"):
        Bias.of(state, config, 2)
    with pytest.raises(ValueError, match="head: -1 is not one of 0 to 1"):
        bias_surfaces(bias, head=-1)
    with pytest.raises(ValueError, match="steps: 1"):
        bias_surfaces(bias, steps=1)
    with pytest.raises(ValueError, match="depends on the query"):
        bias(np.zeros((1, 4), np.float32))
    assert Bias.of({}, dataclasses.replace(config, geometry="absolute"), 0) is None
