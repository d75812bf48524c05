"""A captioner with a backbone of transformers: trained, resumed, loaded without it, exported."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ngsan
from ngsan.config import DataConfig, VisionConfig
from ngsan.export.write import export_model
from ngsan.models import build_captioner, load_model, resolve_backbone, save_model
from ngsan.text.vocabulary import Vocabulary
from ngsan.train.run import train
from tests.train.helpers import same_tensors, tiny_model, tiny_run
from tests.train.test_photos import folder  # noqa: F401
from tests.vision.tiny_models import write_hub_model

pytestmark = pytest.mark.slow


class Stop(BaseException):
    pass


def stop(entry):
    if entry["event"] == "step" and entry["step"] == 2:
        raise Stop


@pytest.mark.parametrize(("kind", "grid"), [("clip", 4), ("convnext", 2)])
def test_one_word_changes_the_backbone(kind, grid, folder, tmp_path, monkeypatch):  # noqa: F811
    pytest.importorskip("transformers", reason="not installed")
    hub = tmp_path / "hub"
    write_hub_model(hub, kind)
    run = tiny_run(
        model=tiny_model(backbone=f"hf:{hub}"),
        data=DataConfig(folder=str(folder)),
        vision=VisionConfig(images=str(folder / "pictures")),
    )
    train(run, tmp_path / "run")
    with pytest.raises(Stop):
        train(run, tmp_path / "resumed", listen=stop)
    train(run, tmp_path / "resumed", resume=True)
    first, second = (load_file(tmp_path / at / "model.safetensors") for at in ("run", "resumed"))
    assert same_tensors(first, second)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.rmtree(hub)
    captioner, config, _ = load_model(tmp_path / "run")
    assert (config.image_size, config.feature_dim, config.grid) == (64, 16, grid)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    report = export_model(tmp_path / "run", tmp_path / "export")
    assert report.difference < 1e-4
    assert report.same == report.captions
    by_torch, by_onnx = (ngsan.load(tmp_path / at) for at in ("run", "export"))
    cells, boxes = by_onnx.backend.describe(pixels)
    with torch.inference_mode():
        wanted = captioner.encoder.backbone(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    np.testing.assert_allclose(cells, wanted.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(boxes[0], captioner.encoder.boxes.numpy())
    found = by_onnx.caption_pixels(pixels)
    assert [one.text for one in by_torch.caption_pixels(pixels)] == [one.text for one in found]


def test_configuration_that_does_not_fit_raises(tmp_path):
    pytest.importorskip("transformers", reason="not installed")
    write_hub_model(tmp_path / "hub", "convnext")
    words = Vocabulary([f"w{number}" for number in range(11)])
    unresolved = tiny_model(backbone=f"hf:{tmp_path / 'hub'}", vocab_size=12)
    config = resolve_backbone(unresolved)
    model = build_captioner(config)
    with pytest.raises(ValueError, match="resolve_backbone"):
        save_model(tmp_path / "model", model, unresolved, {"vocabulary": words})
    save_model(tmp_path / "model", model, config, {"vocabulary": words})
    # A model that claims to be enormous is rejected before memory is taken for it.
    about = json.loads(config.backbone_config)
    about["network"]["hidden_sizes"] = [8, 1 << 20, 8, 16]
    changed = dataclasses.replace(config, backbone_config=json.dumps(about))
    save_model(tmp_path / "other", model, changed, {"vocabulary": words})
    with pytest.raises(ValueError, match="does not fit config.yaml: encoder.backbone"):
        load_model(tmp_path / "other")
