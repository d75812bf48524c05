"""Frame positions: the order of frames matters, padding and batch do not."""

import math

import numpy as np
import pytest
import torch

from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner
from ngsan.nn.geometry import FramePositions

SMALL = dict(
    vocab_size=11, feature_dim=7, dim=16, heads=2, hidden_dim=24, layers=2, geometry="none"
)


def build(**overrides):
    torch.manual_seed(0)
    config = {**SMALL, "positions": "sinusoidal", **overrides}
    return build_captioner("n-san", **config).double().eval()


def clips(count=3, frames=6):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(count, frames, 7, dtype=torch.float64, generator=generator)
    return features, torch.arange(frames) < torch.tensor([[6], [4], [1]])[:count]


def formula(place, width):
    """The sinusoidal encoding of Vaswani et al. 2017, section 3.5."""
    return [
        math.sin(place / 10_000 ** (2 * (k // 2) / width))
        if k % 2 == 0
        else math.cos(place / 10_000 ** (2 * (k // 2) / width))
        for k in range(width)
    ]


def test_positions_are_sinusoids():
    found = FramePositions()(torch.zeros(1, 5, 8))
    np.testing.assert_allclose(found, [formula(place, 8) for place in range(5)], atol=1e-6)


def test_padding_does_not_count_as_a_position():
    mask = torch.tensor([[True, False, True, True, False]])
    found = FramePositions()(torch.zeros(1, 5, 8), mask)[0]
    wanted = torch.tensor([formula(place, 8) for place in range(3)])
    torch.testing.assert_close(found[mask[0]], wanted)


def test_cells_of_a_frame_share_its_position():
    mask = torch.tensor([[True, True, False, True, True, True]])
    found = FramePositions(2)(torch.zeros(1, 6, 8), mask)[0]
    wanted = torch.tensor([formula(place // 2, 8) for place in range(5)])
    torch.testing.assert_close(found[mask[0]], wanted)
    whole = FramePositions(2)(torch.zeros(1, 5, 8))
    torch.testing.assert_close(whole, wanted)
    with pytest.raises(ValueError, match="cells: 0"):
        FramePositions(0)


def test_half_precision_keeps_late_positions_exact():
    found = FramePositions()(torch.zeros(1, 4000, 8, dtype=torch.bfloat16))
    assert found.dtype == torch.bfloat16
    wanted = torch.tensor(formula(3999, 8))
    torch.testing.assert_close(found[3999].float(), wanted, atol=1e-2, rtol=0)


@pytest.mark.parametrize("norm", ["none", "instance", "instance-affine", "layer"])
@pytest.mark.parametrize("norm_place", ["post", "pre"])
def test_output_does_not_depend_on_padding_or_batch(norm, norm_place):
    model = build(norm=norm, norm_place=norm_place)
    features, mask = clips()
    whole = model.encode(features, None, mask)
    for clip, length in enumerate((6, 4, 1)):
        alone = model.encode(features[clip : clip + 1, :length])
        torch.testing.assert_close(whole[clip, :length], alone[0])
    noise = torch.where(mask[..., None], features, torch.nan)
    torch.testing.assert_close(model.encode(noise, None, mask)[mask], whole[mask])


def test_padding_between_frames_does_not_change_output():
    model = build()
    features, _ = clips(1)
    mask = torch.tensor([[True, True, False, True, False, True]])
    spread = model.encode(features, None, mask)[mask]
    torch.testing.assert_close(spread, model.encode(features[mask][None])[0])


def test_frame_order_matters_only_with_positions():
    features, _ = clips(1)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    words = torch.zeros(1, 3, dtype=torch.long)
    for positions, same in (("none", True), ("sinusoidal", False)):
        model = build(positions=positions)
        logits = [model(some, None, None, words) for some in (features, features[:, order])]
        assert torch.allclose(*logits, atol=1e-9) == same


def test_positions_order_frames_but_not_cells():
    """Swapping two cells of a frame with their boxes changes nothing; swapping two frames does."""
    model = build(frame_grid=2, geometry="absolute")
    generator = torch.Generator().manual_seed(1)
    cells = torch.randn(1, 8, 7, dtype=torch.float64, generator=generator)
    boxes = torch.rand(1, 8, 4, dtype=torch.float64, generator=generator) + 0.1
    words = torch.zeros(1, 3, dtype=torch.long)
    plain = model(cells, boxes, None, words)
    for order, same in (([1, 0, 2, 3, 4, 5, 7, 6], True), ([4, 5, 6, 7, 0, 1, 2, 3], False)):
        moved = model(cells[:, order], boxes[:, order], None, words)
        assert torch.allclose(plain, moved, atol=1e-9) == same


def test_positions_default_to_none():
    assert CaptionerConfig().positions == "none"
    assert build_captioner("n-san", **SMALL).encoder.positions is None
    with_positions = build().state_dict()
    assert with_positions.keys() == build(positions="none").state_dict().keys()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"positions": "learned"}, "positions: 'learned' is not one of none, sinusoidal"),
        ({"positions": "sinusoidal", "backbone": "efficientnet-lite2"}, "cells of one image"),
        ({"frame_grid": -1}, "frame_grid: -1 must be at least 0"),
        (
            {"frame_grid": 2},
            "frame_grid: 2 is for the frames of clips, whose order needs positions",
        ),
    ],
)
def test_invalid_config_raises(overrides, message):
    with pytest.raises(ValueError, match=message):
        CaptionerConfig(**overrides)
