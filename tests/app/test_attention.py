"""The graphs of attention and geometric bias equal the torch model."""

from pathlib import Path

import numpy as np
import pytest
import torch

import ngsan
from ngsan.config import CaptionerConfig
from ngsan.export.attention import region_encoder
from ngsan.export.write import pack_model
from ngsan.models.build import build_captioner
from ngsan.models.checkpoint import load_model, save_model
from ngsan.predict.manifest import ATTENTION, BIAS, Manifest, open_graphs
from ngsan.text.vocabulary import Vocabulary

SHIPPED = Path(ngsan.__file__).parent / "shipped"
MODELS = ("scenes/n-san", "scenes/ng-san-signed", "scenes/g-san-ci", "coco")


def check(folder):
    manifest = Manifest.load(folder)
    names = [name for name in (ATTENTION, BIAS) if name in manifest.sha256]
    graphs = open_graphs(folder, manifest, threads=1, names=names)
    captioner, config, _ = load_model(folder, "captioning")
    captioner.float().eval()
    encoder = region_encoder(captioner)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 5, config.feature_dim, generator=generator).relu()
    boxes = 0.1 + 0.8 * torch.rand(2, 5, 4, generator=generator) if encoder.needs_boxes else None
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    words = torch.randint(1, config.vocab_size, (2, 4), generator=generator)
    words[:, 0] = 0
    given = {"features": features, "mask": mask, "boxes": boxes, "words": words}
    fed = {name: given[name].numpy() for name in manifest.inputs[ATTENTION]}
    outputs = manifest.outputs[ATTENTION]
    found = dict(zip(outputs, graphs[ATTENTION].run(outputs, fed), strict=True))

    encoded, read, inputs = [], [], []
    biases = [layer.attention.score_bias for layer in encoder.layers]
    for bias in filter(None, biases):
        bias.register_forward_pre_hook(lambda _, args: inputs.append(args[1]))
    with torch.inference_mode():
        memory = encoder(features, boxes, mask, record=encoded)
        logits = captioner.decode(words, memory, mask, record=read)
    following = torch.cat((words[:, 1:], torch.zeros(2, 1, dtype=torch.long)), 1)
    wanted = {
        "content": [maps.content for maps in encoded],
        "weights": [maps.weights for maps in encoded],
        "word_attention": [maps.weights for maps in read],
        "probabilities": logits.softmax(-1).gather(-1, following[..., None])[..., 0],
    }
    if biases[0] is not None:
        wanted |= {"bias": [maps.bias for maps in encoded], "inputs": inputs}
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        value = torch.stack(value, 1) if isinstance(value, list) else value
        np.testing.assert_allclose(found[name][0], value[0].numpy(), atol=2e-4, err_msg=name)
        real = value[1, ..., :3] if name in ("content", "weights", "bias") else None
        if real is not None:  # rows and columns of real regions
            got, real = found[name][1, ..., :3, :3], real[..., :3, :].numpy()
            np.testing.assert_allclose(got, real, atol=2e-4, err_msg=name)
    if biases[0] is None:
        assert BIAS not in manifest.sha256
        return
    for row in range(5):  # every pair of the first image, with the bias graph
        for column in range(5):
            pair = boxes[0, [row, column]].expand(3, 2, 4).numpy()
            both = found["inputs"][0][:, [row, column]]
            (bias,) = graphs[BIAS].run(None, {"boxes": pair, "inputs": both})
            wanted_pair = found["bias"][0][:, :, row, column, None].repeat(3, -1)
            np.testing.assert_allclose(bias, wanted_pair, atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_shipped_graphs_agree_with_torch(name):
    check(SHIPPED / name)


@pytest.mark.slow
def test_packing_writes_graphs_that_agree_with_torch(tmp_path):
    vocabulary = Vocabulary([f"w{number}" for number in range(20)])
    for place, (geometry, signed) in enumerate(
        [("absolute+query+key", True), ("content-independent+relation", False)]
    ):
        config = CaptionerConfig(
            vocab_size=len(vocabulary),
            feature_dim=24,
            dim=16,
            heads=2,
            hidden_dim=32,
            layers=2,
            norm="instance",
            geometry=geometry,
            geometry_dim=8,
            signed_geometry=signed,
        )
        torch.manual_seed(place)
        model, packed = tmp_path / f"model{place}", tmp_path / f"packed{place}"
        save_model(model, build_captioner(config), config, {"vocabulary": vocabulary})
        pack_model(model, packed)
        check(packed)
