import itertools
import math

import pytest
import torch

from ngsan.models import build_captioner
from ngsan.models.steps import CaptionerSteps
from ngsan.search import Beam, Greedy

SMALL = dict(vocab_size=11, feature_dim=7, dim=16, heads=2, hidden_dim=24, layers=2, geometry_dim=6)

VARIANTS = {
    f"{place}, {norm}, {backend}": dict(norm_place=place, decoder_norm=norm, backend=backend)
    for place, norm, backend in itertools.product(
        ("post", "pre"), ("none", "layer"), ("fused", "explicit")
    )
}


def build(dtype=torch.float64, **overrides):
    """A small model; all its parameters are random."""
    captioner = build_captioner("san", **SMALL, **overrides).double().eval()
    with torch.no_grad():
        for parameter in captioner.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        captioner.decoder.output.weight.mul_(2.0)
    return captioner.to(dtype)


def regions(captioner, images=3, count=5, seed=0):
    """Features and mask: the first image has all its regions, others fewer, the last has none."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(images, count, 7, generator=random, dtype=torch.float64)
    real = torch.linspace(count, 0, images).round().long()
    mask = torch.arange(count) < real[:, None]
    return features.to(captioner.decoder.embed.weight.dtype), mask


def assert_steps_equal_decode(captioner, features, mask, *, width, max_length, steps=None, **close):
    """Feeds random words with random reordering, and compares with a full decoding."""
    images = features.shape[0]
    memory = captioner.encode(features, None, mask)
    steps = CaptionerSteps(captioner, features, None, mask) if steps is None else steps
    steps.start(width, max_length)
    written = torch.zeros(images, width, 1, dtype=torch.long)
    parents = None
    for place in range(max_length):
        logits = steps.step(written[..., -1], parents)
        assert logits.shape == (images, width, 11)
        torch.testing.assert_close(
            logits, captioner.decode(written, memory, mask)[:, :, -1], **close
        )
        parents = None
        if place % 3 != 2:  # a search need not reorder
            parents = torch.randint(width, (images, width))
            written = written.gather(1, parents.unsqueeze(2).expand_as(written))
        written = torch.cat((written, torch.randint(0, 11, (images, width, 1))), 2)


@torch.inference_mode()
def test_steps_equal_full_decoding():
    for variant in VARIANTS.values():
        captioner = build(**variant)
        features, mask = regions(captioner)
        for width in (1, 4):
            assert_steps_equal_decode(captioner, features, mask, width=width, max_length=8)
            assert_steps_equal_decode(captioner, features, None, width=width, max_length=3)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 0.03), (torch.bfloat16, 0.2)]
)
@torch.inference_mode()
def test_steps_in_lower_precision(dtype, tolerance):
    captioner = build(dtype)
    features, mask = regions(captioner)
    assert_steps_equal_decode(
        captioner, features, mask, width=3, max_length=6, atol=tolerance, rtol=tolerance
    )


@torch.inference_mode()
def test_images_without_regions():
    """All regions masked, or zero regions."""
    captioner = build()
    features, mask = regions(captioner)
    nothing = torch.zeros_like(mask)
    assert_steps_equal_decode(captioner, features, nothing, width=2, max_length=4)
    empty = features[:, :0]
    for none in (None, nothing[:, :0]):
        assert_steps_equal_decode(captioner, empty, none, width=2, max_length=4)
    masked, absent = (
        Greedy(CaptionerSteps(captioner, *given)).run()
        for given in ((features, None, nothing), (empty, None, None))
    )
    assert torch.equal(masked.words, absent.words)


@torch.inference_mode()
def test_any_number_of_regions():
    captioner = build()
    for count in (1, 7, 8, 9, 16, 17):
        features, mask = regions(captioner, count=count)
        for given in (mask, None):
            assert_steps_equal_decode(captioner, features, given, width=3, max_length=3)


@torch.inference_mode()
def test_nan_in_padding_does_not_change_steps():
    captioner = build()
    features, mask = regions(captioner)
    spoilt = features.masked_fill(~mask.unsqueeze(2), math.nan)
    one, other = (CaptionerSteps(captioner, x, None, mask) for x in (features, spoilt))
    for steps in (one, other):
        steps.start(2, 3)
    words = torch.zeros(3, 2, dtype=torch.long)
    for _ in range(3):
        assert torch.equal(one.step(words), other.step(words))
        words = torch.randint(0, 11, (3, 2))


@torch.inference_mode()
def test_start_clears_the_cache():
    captioner = build()
    features, mask = regions(captioner)
    steps = CaptionerSteps(captioner, features, None, mask)
    for width, max_length in ((3, 6), (3, 6), (2, 6), (3, 4), (3, 6)):
        assert_steps_equal_decode(
            captioner, features, mask, width=width, max_length=max_length, steps=steps
        )


@torch.inference_mode()
def test_nan_features_leave_no_trace_in_the_cache():
    """Masking hides old cache entries only if they are finite."""
    captioner = build()
    features, mask = regions(captioner)
    steps = CaptionerSteps(captioner, features.clone().fill_(math.nan), None, mask)
    assert Greedy(steps, max_length=4).run().log_probs.isnan().any()
    steps.load(features, None, mask)
    assert_steps_equal_decode(captioner, features, mask, width=1, max_length=4, steps=steps)


@torch.inference_mode()
def test_steps_can_load_other_images():
    captioner = build()
    features, mask = regions(captioner)
    steps = CaptionerSteps(captioner, features, None, mask)
    assert_steps_equal_decode(captioner, features, mask, width=2, max_length=4, steps=steps)
    others, another_mask = regions(captioner, seed=1)
    another_mask = another_mask.flip(0)
    steps.load(others, None, another_mask)
    assert_steps_equal_decode(captioner, others, another_mask, width=2, max_length=4, steps=steps)
    steps.load(features, None, mask)  # loaded before `start` with another width
    assert_steps_equal_decode(captioner, features, mask, width=3, max_length=5, steps=steps)


def test_search_runs_again_after_loading_other_images():
    """It works outside inference mode too."""
    captioner = build()
    features, mask = regions(captioner)
    steps = CaptionerSteps(captioner, features, None, mask)
    search = Beam(steps, beam=2, max_length=5)
    first = search.run()
    steps.load(features.flip(0), None, mask.flip(0))
    second = search.run()
    assert torch.equal(second.words, first.words.flip(0))
    torch.testing.assert_close(second.log_probs, first.log_probs.flip(0))


@torch.inference_mode()
def test_changed_weights_take_effect_at_the_next_load():
    captioner = build()
    features, mask = regions(captioner)
    steps = CaptionerSteps(captioner, features, None, mask)
    assert_steps_equal_decode(captioner, features, mask, width=2, max_length=4, steps=steps)
    for parameter in captioner.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.3)
    steps.load(features, None, mask)
    assert_steps_equal_decode(captioner, features, mask, width=2, max_length=4, steps=steps)


@torch.inference_mode()
def test_load_does_not_write_to_the_callers_tensors():
    """`load` writes to copies."""
    captioner = build()
    features, mask = regions(captioner)
    mine = features.clone(), mask.clone()
    steps = CaptionerSteps(captioner, mine[0], None, mine[1])
    steps.start(1, 3)
    steps.load(features.flip(0), None, mask.flip(0))
    assert torch.equal(mine[0], features)
    assert torch.equal(mine[1], mask)


@torch.inference_mode()
def test_loading_another_shape_raises():
    captioner = build()
    features, mask = regions(captioner)
    steps = CaptionerSteps(captioner, features, None, mask)
    with pytest.raises(ValueError, match=r"features: .* \(3, 5, 7\), not for \(2, 5, 7\)"):
        steps.load(features[:2], None, mask[:2])
    with pytest.raises(ValueError, match=r"mask: .* \(3, 5\), not for None"):
        steps.load(features)
    with pytest.raises(ValueError, match=r"mask: .* None, not for \(3, 5\)"):
        CaptionerSteps(captioner, features).load(features, None, mask)


@torch.inference_mode()
def test_nothing_is_computed_twice():
    """Regions are encoded once, with their keys and values; a step sees one word per caption."""
    captioner = build()
    features, mask = regions(captioner)
    calls = []

    def note(name):
        return lambda module, given, result: calls.append((name, tuple(given[0].shape)))

    captioner.encoder.embed.register_forward_hook(note("encoder"))
    for layer in captioner.decoder.layers:
        layer.cross_attention.key.register_forward_hook(note("key"))
        layer.cross_attention.value.register_forward_hook(note("value"))
        layer.feedforward.register_forward_hook(note("step"))
    Beam(CaptionerSteps(captioner, features, None, mask), beam=4, max_length=7).run()
    steps = [call for call in calls if call[0] == "step"]
    assert set(steps) == {("step", (3, 4, 16))}
    assert 2 <= len(steps) <= 7 * 2
    rest = sorted(call for call in calls if call[0] != "step")
    expected = [("encoder", (3, 5, 7)), *[("key", (3, 5, 16))] * 2, *[("value", (3, 5, 16))] * 2]
    assert rest == expected


@pytest.mark.parametrize("images", [2, 40])
@torch.inference_mode()
def test_beam_log_probs_equal_teacher_forcing(images):
    captioner = build()
    features, mask = regions(captioner, images=images)
    steps = CaptionerSteps(captioner, features, None, mask)
    written = Beam(steps, beam=3, num_return=3, max_length=7).run()
    given = torch.cat((torch.zeros_like(written.words[..., :1]), written.words[..., :-1]), 2)
    memory = captioner.encode(features, None, mask)
    log_probs = captioner.decode(given, memory, mask).log_softmax(-1)
    chosen = log_probs.gather(3, written.words.unsqueeze(3)).squeeze(3)
    counted = torch.arange(7) <= written.lengths.unsqueeze(2)
    expected = chosen.masked_fill(~counted, 0.0).float()
    torch.testing.assert_close(written.word_log_probs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(written.log_probs, expected.sum(2), atol=1e-5, rtol=1e-5)
