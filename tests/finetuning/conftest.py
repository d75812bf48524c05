"""A small packed model of photographs, and some photographs."""

import random

import pytest

from ngsan.config import CaptionerConfig
from ngsan.data.synthetic.folders import scene_vocabulary
from ngsan.data.synthetic.render import render
from ngsan.data.synthetic.scenes import sample_captions, sample_scenes
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.models.quantize import absorb_norms
from tests.export.helpers import CHANNELS, STAGES

SIZE = 64


@pytest.fixture(scope="module")
def small_network():
    """Uses fewer layers than any EfficientNet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ngsan.vision.backbone.STAGES", STAGES)
        yield


@pytest.fixture(scope="module")
def rounded(small_network, tmp_path_factory):
    """The folder of a model with random weights, in 8 bits and with folded norms, as if packed."""
    import torch

    torch.manual_seed(2)
    folder = tmp_path_factory.mktemp("model")
    words = scene_vocabulary()
    config = CaptionerConfig(
        vocab_size=len(words),
        dim=32,
        heads=2,
        hidden_dim=48,
        geometry_dim=8,
        layers=2,
        backbone="efficientnet-lite0",
        image_size=SIZE,
        feature_dim=CHANNELS,
        norm_place="pre",
    )
    captioner = build_captioner(config)
    for module in captioner.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.3, 2)
    absorb_norms(captioner)
    save_model(folder, captioner, config, {"vocabulary": words}, quantize=True)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 40 pictures, with captions in which a word is not known."""
    folder = tmp_path_factory.mktemp("photos")
    rows = ["image,caption"]
    for number, scene in enumerate(sample_scenes(40, min_objects=2, max_objects=2, seed=4)):
        render(scene, SIZE).save(folder / f"{number}.png")
        for caption in sample_captions(scene, random.Random(number))[:2]:
            rows.append(f"{number}.png,{caption.replace('star', 'wug')}")
    (folder / "captions.csv").write_text("\n".join(rows))
    return folder
