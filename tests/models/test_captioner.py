import math

import numpy as np
import pytest
import torch

from ngsan.models import build_captioner
from tests import reference
from tests.nn.test_geometry import state_of

SMALL = dict(vocab_size=11, feature_dim=7, dim=16, heads=2, hidden_dim=24, layers=2, geometry_dim=6)

VARIANTS = {
    "san": {},
    "n-san": {},
    "g-san": {},
    "ng-san": {},
    "affine": {"norm": "instance-affine"},
    "layer": {"norm": "layer"},
    "batch": {"norm": "batch"},
    "key": {"norm_of": "key"},
    "both": {"norm_of": "both"},
    "signed": {"signed_geometry": True},
    "content-independent": {"geometry": "content-independent"},
    "key-dependent": {"geometry": "key"},
    "relation": {"geometry": "relation"},
    "absolute": {"geometry": "absolute"},
    "sum": {"geometry": "content-independent+query+key"},
    "absolute and query": {"geometry": "absolute+query"},
    "pre": {"norm_place": "pre"},
    "explicit": {"backend": "explicit"},
}


def build(variant, **overrides):
    """A small model in double precision; all its parameters are random."""
    name = variant if variant in ("san", "n-san", "g-san", "ng-san") else "ng-san"
    model = build_captioner(name, **{**SMALL, **VARIANTS[variant], **overrides}).double().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.2, 0.8)
    for buffer in model.buffers():
        torch.nn.init.uniform_(buffer, 0.5, 1.5)
    return model


def inputs(make_boxes, images=3, regions=5, words=4):
    features = torch.randn(images, regions, 7, dtype=torch.float64)
    mask = torch.arange(regions) < torch.tensor([[5], [3], [1]])[:images]
    return features, make_boxes(images, regions), mask, torch.randint(0, 11, (images, words))


def reference_norms(variant):
    """The query and key norms of attention in NumPy, as `reference.encode` expects them."""
    config = {"norm": "instance", "norm_of": "query", **VARIANTS[variant]}
    if variant in ("san", "g-san"):
        config["norm"] = "none"

    def norms(state, prefix):
        def of(part):
            weight, bias = (state.get(f"{prefix}{part}_norm.{x}") for x in ("weight", "bias"))
            match config["norm"]:
                case "instance":
                    return reference.instance_norm
                case "instance-affine":
                    return lambda x: reference.instance_norm(x) * weight + bias
                case "layer":
                    return lambda x: reference.layer_norm(x, weight, bias)
                case "batch":
                    mean = state[f"{prefix}{part}_norm.running_mean"]
                    variance = state[f"{prefix}{part}_norm.running_variance"]
                    return lambda x: (x - mean) / np.sqrt(variance + 1e-5) * weight + bias
            return None

        return (
            of("query") if config["norm_of"] != "key" else None,
            of("key") if config["norm_of"] != "query" else None,
        )

    return norms


def test_variants_match_numpy_and_are_invariant(make_boxes):
    """Equals NumPy, ignores padding, is equivariant, and does not depend on the boxes' unit."""
    for variant in VARIANTS:
        model = build(variant)
        features, boxes, mask, words = inputs(make_boxes)
        logits = model(features, boxes, mask, words)
        assert_equals_numpy(variant, model, features, boxes, words, logits)

        garbage, nowhere = features.clone(), boxes.clone()
        garbage[~mask], nowhere[~mask] = math.nan, math.nan
        torch.testing.assert_close(model(garbage, nowhere, mask, words), logits)

        order = torch.randperm(5)
        torch.testing.assert_close(
            model.encode(features[:, order], boxes[:, order], mask[:, order]),
            model.encode(features, boxes, mask)[:, order],
        )
        if "absolute" not in variant:
            moved = boxes * torch.tensor([640.0, 480.0, 640.0, 480.0])
            moved += torch.tensor([9.0, -5.0, 0, 0])
            torch.testing.assert_close(model(features, moved, mask, words), logits)


def assert_equals_numpy(variant, model, features, boxes, words, logits):
    assert logits.shape == (3, 4, 11)
    default = "none" if variant in ("san", "n-san") else "query"
    geometry = VARIANTS[variant].get("geometry", default)
    place = VARIANTS[variant].get("norm_place", "post")
    state = state_of(model)
    for image, count in enumerate((5, 3, 1)):
        memory = reference.encode(
            features[image, :count].numpy(),
            boxes[image, :count].numpy(),
            state,
            layers=2,
            heads=2,
            terms=[] if geometry == "none" else geometry.split("+"),
            signed=variant == "signed",
            norms=reference_norms(variant),
            place=place,
        )
        expected = reference.decode(
            words[image].numpy(), memory, state, layers=2, heads=2, place=place
        )
        np.testing.assert_allclose(logits[image].detach(), expected, atol=1e-9, err_msg=variant)


def test_models_without_geometry_ignore_boxes(make_boxes):
    for variant in ("san", "n-san"):
        model = build(variant)
        features, boxes, mask, words = inputs(make_boxes)
        expected = model(features, boxes, mask, words)
        assert torch.equal(model(features, make_boxes(3, 5), mask, words), expected)
        assert torch.equal(model(features, None, mask, words), expected)


def test_only_signed_geometry_sees_mirrored_boxes(make_boxes):
    features, boxes, mask, words = inputs(make_boxes)
    mirrored = boxes * torch.tensor([-1.0, 1, 1, 1]) + torch.tensor([1.0, 0, 0, 0])
    for variant, same in (("ng-san", True), ("signed", False)):
        model = build(variant)
        a, b = (model(features, x, mask, words) for x in (boxes, mirrored))
        assert torch.allclose(a, b, atol=1e-12) is same


def test_captions_of_one_image_share_the_encoding(make_boxes):
    model = build("ng-san")
    features, boxes, mask, _ = inputs(make_boxes)
    words = torch.randint(0, 11, (3, 5, 4))
    together = model(features, boxes, mask, words)
    assert together.shape == (3, 5, 4, 11)
    for caption in range(5):
        alone = model(features, boxes, mask, words[:, caption])
        torch.testing.assert_close(together[:, caption], alone)


def test_backends_agree(make_boxes):
    fused = build("ng-san")
    explicit = build("ng-san", backend="explicit")
    explicit.load_state_dict(fused.state_dict())
    arguments = inputs(make_boxes)
    torch.testing.assert_close(explicit(*arguments), fused(*arguments))


def test_later_words_do_not_change_earlier_logits(make_boxes):
    model = build("ng-san")
    features, boxes, mask, words = inputs(make_boxes)
    longer = torch.cat((words, torch.randint(0, 11, (3, 3))), dim=1)
    torch.testing.assert_close(
        model(features, boxes, mask, longer)[:, :4], model(features, boxes, mask, words)
    )


def test_image_without_regions_gives_finite_logits(make_boxes):
    model = build("ng-san")
    features, boxes, mask, words = inputs(make_boxes)
    mask[1] = False
    assert model(features, boxes, mask, words).isfinite().all()


def test_record_returns_attention_of_every_layer(make_boxes):
    model = build("ng-san")
    features, boxes, mask, words = inputs(make_boxes)
    regions, attended = [], []
    memory = model.encode(features, boxes, mask, record=regions)
    model.decode(words, memory, mask, record=attended)
    assert [m.weights.shape for m in regions] == [(3, 2, 5, 5)] * 2
    assert [m.bias.shape for m in regions] == [(3, 2, 5, 5)] * 2
    assert [m.weights.shape for m in attended] == [(3, 2, 4, 5)] * 2
    assert [m.bias for m in attended] == [None, None]
    assert regions[0].weights[1, :, :, 3:].eq(0).all()


def millions(name, **overrides):
    with torch.device("meta"):
        model = build_captioner(name, vocab_size=9488, feature_dim=2048, **overrides)
    return round(sum(p.numel() for p in model.parameters()) / 1e6, 1)


def test_parameter_counts_match_the_paper():
    for name in ("san", "n-san"):
        counts = [millions(name, layers=layers) for layers in (1, 2, 4, 6)]
        assert counts == [18.1, 25.5, 40.2, 54.9]
    # The paper has 41.5 for the last two, which does not follow from its text.
    wanted = {"content-independent": 40.2, "absolute": 40.2, "query": 41.3, "key": 41.3}
    assert {name: millions("g-san", geometry=name) for name in wanted} == wanted


def test_invalid_inputs_raise(make_boxes):
    model = build("ng-san")
    features, boxes, mask, words = inputs(make_boxes)
    with pytest.raises(ValueError, match=r"mask of shape \(3, 4\)"):
        model(features, boxes, mask[:, :4], words)
    with pytest.raises(ValueError, match="boolean"):
        model(features, boxes, mask.long(), words)
    with pytest.raises(ValueError, match=r"features must be \(images, regions, 7\)"):
        model(features[..., :6], boxes, mask, words)
    with pytest.raises(ValueError, match="boxes of shape"):
        model(features, boxes[:, :4], mask, words)
    with pytest.raises(ValueError, match="needs the regions' boxes"):
        model(features, None, mask, words)
    with pytest.raises(ValueError, match="words must be"):
        model(features, boxes, mask, words[:2])
    boxes[0, 0, 2] = 0
    with pytest.raises(ValueError, match="box 0 of image 0"):
        model.encode(features, boxes, mask)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "nsan"}, "model: 'nsan' is not one of .*did you mean 'n-san'"),
        ({"layer": 4}, "unknown key 'layer'; did you mean 'layers'"),
        ({"layers": 0}, "layers: 0"),
        ({"layers": 2.5}, "layers: 2.5"),
        ({"norm": "instanse"}, "norm: 'instanse'.*'instance'"),
        ({"geometry": "query+kye"}, "geometry: 'kye'.*'key'"),
        ({"heads": 7}, "heads: 7"),
        ({"dropout": 1.5}, "dropout: 1.5"),
        ({"decoder_norm": "instance"}, "decoder_norm.*autoregressive"),
    ],
)
def test_invalid_config_error_names_the_key(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_captioner(**{"model": "ng-san", **arguments})


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["ng-san", "absolute and query"])
def test_model_compiles_to_a_full_graph(make_boxes, variant):
    """No graph break means no host synchronisation in a training step."""
    model = build(variant)
    arguments = inputs(make_boxes)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), model(*arguments))
