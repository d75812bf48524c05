"""Pictures that are encoded once."""

import numpy as np
import pytest
import torch

from ngsan.finetuning.encoded import PhotoReader, Start, top_of, whole_name
from ngsan.models.checkpoint import load_model
from tests.finetuning.conftest import SIZE


@pytest.fixture(scope="module")
def start(rounded):
    return Start.load(rounded)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 255, (3, SIZE, SIZE, 3), dtype=np.uint8)


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_the_parts_compute_what_the_whole_computes(start, images, layers):
    reader = PhotoReader(start, layers, threads=1)
    top = top_of(start.model, layers).eval()
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.inference_mode():
        wanted = start.model.encode(pixels)
        entries = reader.regions(reader.cells(images))
        found = top.encode(torch.stack([torch.from_numpy(one.features) for one in entries]))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_weights_keep_their_names(start, layers):
    whole = start.model.state_dict()
    for name, tensor in top_of(start.model, layers).state_dict().items():
        assert whole[whole_name(name, start.layers, layers)] is not None
        assert torch.equal(whole[whole_name(name, start.layers, layers)], tensor)


def test_mirrored_pictures_are_encoded_mirrored(start, images, tmp_path):
    from PIL import Image

    reader = PhotoReader(start, 0, threads=1)
    Image.fromarray(images[0]).save(tmp_path / "a.png")
    Image.fromarray(images[0][:, ::-1]).save(tmp_path / "b.png")
    (mirrored,) = reader.read({"a": tmp_path / "a.png"}, pytest.fail, flip=True)
    (plain,) = reader.read({"b": tmp_path / "b.png"}, pytest.fail)
    np.testing.assert_array_equal(mirrored[1].features, plain[1].features)


def test_models_of_regions_are_refused(tmp_path):
    from ngsan.config import CaptionerConfig
    from ngsan.models import build_captioner
    from ngsan.models.checkpoint import save_model
    from tests.export.helpers import REGIONS, VOCABULARY

    config = CaptionerConfig(**REGIONS)
    save_model(tmp_path / "regions", build_captioner(config), config, {"vocabulary": VOCABULARY})
    with pytest.raises(ValueError, match="is a model of regions"):
        Start.load(tmp_path / "regions")


def test_norms_of_a_packed_model_stay_in_inference_mode(rounded, images):
    model = load_model(rounded, "captioning")[0]
    backbone = model.encoder.backbone
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.no_grad():
        wanted = backbone(pixels)
        model.train()
        found = backbone(pixels)
    torch.testing.assert_close(found, wanted)
    norms = [part for part in backbone.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    assert norms
    assert not any(norm.training for norm in norms)


def test_norms_that_were_not_folded_are_trained(small_network):
    from ngsan.vision.backbone import build_backbone, is_folded

    fresh = build_backbone("efficientnet-lite0", size=SIZE, pretrained=False)
    assert not any(map(is_folded, fresh.modules()))
