"""Backbones of transformers against the models themselves, and of timm with a stand-in."""

import copy
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from ngsan.vision.backbone import build_backbone
from ngsan.vision.sources import open_source
from tests.vision.tiny_models import DEVIATION, MEAN, MODELS, write_hub_model

GRIDS = {"dinov2": 5, "swin": 2, "convnext": 2, "dinov3_convnext": 2}
"""Cells of a side, where not 4."""

CHANNELS = {"swin": 64}
"""Where not 16."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Makes the models by kind, once: the folder and the model."""
    pytest.importorskip("transformers", reason="not installed")
    made, folder = {}, tmp_path_factory.mktemp("hub")

    def get(kind):
        if kind not in made:
            made[kind] = folder / kind, write_hub_model(folder / kind, kind)
        return made[kind]

    return get


def images(count, size):
    draw = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 3, size, size), generator=draw, dtype=torch.uint8)


def normalized(pixels):
    mean, deviation = (torch.tensor(part).view(3, 1, 1) for part in (MEAN, DEVIATION))
    return (pixels / 255 - mean) / deviation


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_cells_equal_the_model(hub, kind):
    folder, model = hub(kind)
    backbone = build_backbone(f"hf:{folder}").eval()
    side = GRIDS.get(kind, 4)
    channels = CHANNELS.get(kind, 16)
    assert (backbone.grid, backbone.cells, backbone.channels) == (side, side**2, channels)
    pixels = images(2, backbone.size)
    with torch.inference_mode():
        found = backbone(pixels)
        vision = getattr(model, "vision_model", model)
        wanted = vision(pixel_values=normalized(pixels)).last_hidden_state
        torch.testing.assert_close(backbone(pixels / 255), found, rtol=1e-4, atol=1e-5)
    # Maps are (B, C, G, G); tokens end in the cells, row by row.
    wanted = wanted.flatten(2).transpose(1, 2) if wanted.ndim == 4 else wanted[:, -(side**2) :]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clip", "swin", "convnext"])
def test_backbone_is_rebuilt_from_its_description_alone(hub, kind, monkeypatch):
    folder, _ = hub(kind)
    backbone = build_backbone(f"hf:{folder}").eval()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = build_backbone(
        "hf:nowhere/gone", size=64, pretrained=False, description=backbone.description
    )
    again.load_state_dict(backbone.state_dict())
    pixels = images(1, 64)
    with torch.inference_mode():
        assert torch.equal(again.eval()(pixels), backbone(pixels))
    assert str(folder) not in backbone.description


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_every_parameter_is_trained(hub, kind):
    folder, _ = hub(kind)
    backbone = build_backbone(f"hf:{folder}").train()
    backbone(images(2, backbone.size)).square().mean().backward()
    for name, part in backbone.named_parameters():
        assert part.grad is not None, name


@pytest.mark.slow
def test_other_sizes(hub):
    for kind, cells in {"clip": 36, "dinov3_vit": 36, "swin": 9}.items():
        backbone = build_backbone(f"hf:{hub(kind)[0]}", size=96)
        assert backbone(images(1, 96)).shape == (1, cells, CHANNELS.get(kind, 16))
    with pytest.raises(ValueError, match=r"image_size: hf:.* cannot divide 100 pixels.* for 64"):
        build_backbone(f"hf:{hub('clip')[0]}", size=100)


@pytest.mark.slow
def test_image_processor_decides(tmp_path):
    pytest.importorskip("transformers", reason="not installed")
    crop = dict(size={"shortest_edge": 96}, crop_size={"height": 64, "width": 64})
    for processor, size, mean in (
        (dict(crop, do_center_crop=True), 64, 255 * MEAN[0]),
        (dict(crop, do_normalize=False), 96, 0),
        (dict(size=64, rescale_factor=1 / 128), 64, 128 * MEAN[0]),
    ):
        write_hub_model(tmp_path / "model", "convnext", **processor)
        backbone = build_backbone(f"hf:{tmp_path / 'model'}", pretrained=False)
        assert backbone.size == size
        assert backbone.mean.flatten()[0].item() == pytest.approx(mean)
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match="cannot be opened by transformers"):
        build_backbone(f"hf:{tmp_path / 'model'}")


@pytest.mark.slow
def test_models_that_do_not_fit_raise(hub, tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import BertConfig

    folder, _ = hub("convnext")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.stages.1.layers.0.dwconv.weight"]
    (tmp_path / "cut").mkdir()
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / "cut" / name).write_bytes((folder / name).read_bytes())
    save_file(weights, tmp_path / "cut" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"no weights for encoder\.stages\.1\.layers\.0\.dwconv"):
        build_backbone(f"hf:{tmp_path / 'cut'}")
    BertConfig(hidden_size=16, num_attention_heads=2).save_pretrained(tmp_path / "words")
    (tmp_path / "words" / "preprocessor_config.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be used for images of 224 x 224"):
        build_backbone(f"hf:{tmp_path / 'words'}", pretrained=False)
    for text in ("[1", '{"size": 3}', '{"network": {}, "size": 9, "mean": [], "deviation": []}'):
        with pytest.raises(ValueError, match="cannot be built|cannot be used"):
            build_backbone("hf:x", size=64, pretrained=False, description=text)


@pytest.mark.slow
def test_source_of_regions(hub):
    folder, _ = hub("convnext")
    source = open_source(f"hf:{folder}")
    assert source.feature_dim == 16
    assert str(folder) in source.signature
    (found,) = source.regions([Image.fromarray(np.zeros((90, 70, 3), np.uint8))])
    assert found.features.shape == (4, 16)
    np.testing.assert_allclose(found.boxes[3], [0.75, 0.75, 0.5, 0.5])


class Tokens(nn.Module):
    """A class token and the mean colour of each cell of 16 pixels, as timm's vision transformers
    return them."""

    num_prefix_tokens = 1
    pretrained_cfg: dict = {"fixed_input_size": True}  # noqa: RUF012

    def __init__(self, size=32):
        super().__init__()
        self.size, self.scale = size, nn.Parameter(torch.ones(3))
        self.unused = nn.Linear(3, 3)

    def forward_features(self, images):
        assert images.shape[-1] == self.size
        means = nn.functional.avg_pool2d(images, 16).flatten(2).transpose(1, 2) * self.scale
        return torch.cat((means.mean(1, keepdim=True), means), 1)


class ChannelsLast(Tokens):
    """The same as a map with the channels last, for any size."""

    output_fmt = "NHWC"
    pretrained_cfg: dict = {"fixed_input_size": False}  # noqa: RUF012

    def forward_features(self, images):
        return nn.functional.avg_pool2d(images, 16).permute(0, 2, 3, 1) * self.scale


@pytest.fixture
def timm(monkeypatch):
    """A stand-in for timm with two models; the calls of `create_model`."""
    calls = []

    def create_model(name, pretrained=False, num_classes=1000, img_size=None):
        calls.append((name, pretrained, num_classes, img_size))
        made = {"tokens": Tokens, "map": ChannelsLast}[name](img_size or 32)
        if pretrained:
            nn.init.constant_(made.scale, 2.0)
        return made

    def resolve(model):
        return {"input_size": (3, 32, 32), "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}

    fake = SimpleNamespace(
        create_model=create_model, data=SimpleNamespace(resolve_model_data_config=resolve)
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    return calls


@pytest.mark.parametrize("name", ["tokens", "map"])
def test_timm_stand_in(timm, name):
    backbone = build_backbone(f"timm:{name}")
    assert (backbone.size, backbone.grid, backbone.channels) == (32, 2, 3)
    assert ("tokens", True, 0, 32) in timm or ("map", True, 0, None) in timm
    assert "network.model.unused.weight" not in backbone.state_dict()
    pixels = images(2, 32)
    cells = pixels.float().unfold(2, 16, 16).unfold(3, 16, 16).mean((4, 5)) / 255  # (B, 3, 2, 2)
    wanted = 2 * (cells - 0.5) / 0.25
    torch.testing.assert_close(backbone(pixels), wanted.flatten(2).transpose(1, 2))
    larger = build_backbone(
        f"timm:{name}", size=64, pretrained=False, description=backbone.description
    )
    assert larger.grid == 4
    assert json.loads(larger.description)["grid"] == 4
    assert copy.deepcopy(larger)(images(1, 64)).shape == (1, 16, 3)


def test_unknown_backbones_raise(monkeypatch):
    with pytest.raises(ValueError, match="'tf:resnet' is not hf:NAME or timm:NAME"):
        build_backbone("tf:resnet")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match="needs timm: pip install 'timm'"):
        build_backbone("timm:resnet50")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"needs transformers: pip install 'ngsan\[train\]'"):
        open_source("hf:some/model")
