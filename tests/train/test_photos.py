"""A captioner is trained end to end on pictures of scenes."""

import json

import pytest
import torch
from safetensors.torch import load_file

from ngsan.config import DataConfig, VisionConfig
from ngsan.data.captions import ImageCaptions, write_captions
from ngsan.data.pictures import PictureStore
from ngsan.data.synthetic.folders import scene_vocabulary
from ngsan.data.synthetic.render import render
from ngsan.data.synthetic.scenes import sample_captions, sample_scenes
from ngsan.models.captioner import PhotoEncoder
from ngsan.models.checkpoint import load_model, save_model
from ngsan.models.quantize import absorb_norms
from ngsan.nn.losses import word_cross_entropy
from ngsan.train.run import train
from ngsan.vision.photos import PhotoDataset
from tests.train.helpers import same_tensors, tiny_model, tiny_run

SIZE = 32
MODEL = tiny_model(backbone="efficientnet-lite0", image_size=SIZE, feature_dim=320)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import random

    path = tmp_path_factory.mktemp("scenes")
    (path / "pictures").mkdir()
    records = []
    for number, scene in enumerate(sample_scenes(26, min_objects=2, max_objects=2, seed=4)):
        render(scene, SIZE).save(path / "pictures" / f"{number}.png")
        captions = tuple(sample_captions(scene, random.Random(number)))
        records.append(ImageCaptions(str(number), "train" if number < 20 else "val", captions))
    write_captions(path, records)
    scene_vocabulary().save(path / "vocabulary.json")
    return path


def run_of(folder, **vision):
    return tiny_run(
        model=MODEL,
        data=DataConfig(folder=str(folder)),
        vision=VisionConfig(images=str(folder / "pictures"), pretrained=False, **vision),
    )


def backbone(folder):
    weights = load_file(folder / "model.safetensors")
    return {name: tensor for name, tensor in weights.items() if "backbone" in name}


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "run"
    train(run_of(folder), output)
    return output


def test_backbone_is_trained_in_cross_entropy_only(trained):
    cross, critical = backbone(trained / "cross-entropy"), backbone(trained / "self-critical")
    assert len(cross) > 100
    assert same_tensors(cross, critical)
    captioner, _, _ = load_model(trained, "captioning")
    assert isinstance(captioner.encoder, PhotoEncoder)
    images = torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8)
    assert captioner.encode(images).shape == (2, 1, 16)


def test_lr_scale_of_zero_freezes_the_backbone(folder, tmp_path):
    train(run_of(folder, lr_scale=0.0), tmp_path / "run")
    torch.manual_seed(0)
    from ngsan.models import build_captioner

    initial = build_captioner(MODEL).state_dict()
    for name, tensor in backbone(tmp_path / "run" / "cross-entropy").items():
        assert torch.equal(tensor, initial[name]), name


def test_resumed_run_equals_an_uninterrupted_one(folder, trained, tmp_path):
    class Stop(BaseException):
        pass

    def listen(entry):
        if entry["event"] == "step" and entry["step"] == 2:
            raise Stop

    with pytest.raises(Stop):
        train(run_of(folder), tmp_path / "run", listen=listen)
    train(run_of(folder), tmp_path / "run", resume=True)
    for part in (".", "cross-entropy", "self-critical"):
        first, second = (
            load_file(run / part / "model.safetensors") for run in (trained, tmp_path / "run")
        )
        assert same_tensors(first, second)


def test_cached_features_give_the_same_model_as_pixels(folder, trained, tmp_path):
    """In memory, the second phase uses cached features; from disk, it reads the pixels."""
    from dataclasses import replace

    config = run_of(folder)
    train(replace(config, runtime=replace(config.runtime, data="host")), tmp_path / "run")
    for part in ("cross-entropy", "self-critical"):
        first, second = (
            load_file(run / part / "model.safetensors") for run in (trained, tmp_path / "run")
        )
        for name, tensor in first.items():
            torch.testing.assert_close(tensor, second[name], rtol=1e-4, atol=1e-5)


def test_frozen_backbone_without_augmentation_runs_once_per_image(folder, tmp_path, monkeypatch):
    from ngsan.vision.grid import GridBackbone

    batch_sizes = []
    forward = GridBackbone.forward
    monkeypatch.setattr(
        GridBackbone, "forward", lambda self, x: batch_sizes.append(len(x)) or forward(self, x)
    )
    train(run_of(folder, lr_scale=0.0, min_crop=1.0, color_jitter=0.0), tmp_path / "run")
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    validations = sum(line["event"] == "epoch" for line in log)
    phases, train_images, val_images = 2, 20, 6
    assert sum(batch_sizes) == phases * train_images + validations * val_images


def test_missing_images_raise(folder, tmp_path):
    config = tiny_run(model=MODEL, data=DataConfig(folder=str(folder)))
    with pytest.raises(ValueError, match=r"--vision\.images DIR"):
        train(config, tmp_path / "run")
    (tmp_path / "empty").mkdir()
    lost = tiny_run(
        model=MODEL,
        data=DataConfig(folder=str(folder)),
        vision=VisionConfig(images=str(tmp_path / "empty"), pretrained=False),
    )
    with pytest.raises(ValueError, match="no pictures"):
        train(lost, tmp_path / "run2")


def test_log_has_the_number_of_parameters(trained):
    start = json.loads((trained / "log.jsonl").read_text().splitlines()[0])
    assert start["parameters"] > 2_500_000


def test_an_epoch_on_its_own_data_does_not_hurt_a_packed_model(folder, trained, tmp_path):
    """Its norms were folded into the convolutions: in training mode they would destroy it."""
    from dataclasses import replace

    captioner, config, companions = load_model(trained, "captioning")
    data = PhotoDataset(
        folder, "train", PictureStore(folder / "pictures"), captioner.encoder.backbone
    )
    batch = data.batch(range(len(data)))

    def loss(model):
        model.eval()
        with torch.inference_mode():
            logits = model(batch.features, None, None, batch.words)
        return float(word_cross_entropy(logits, batch.targets, batch.target_mask))

    absorb_norms(captioner)
    save_model(tmp_path / "packed", captioner, config, companions, quantize=True)
    before = loss(load_model(tmp_path / "packed", "captioning")[0].float())
    run = run_of(folder, min_crop=1.0, color_jitter=0.0)
    schedule = replace(run.cross_entropy.schedule, peak_lr=1e-4)
    run = replace(
        run,
        init_from=str(tmp_path / "packed"),
        cross_entropy=replace(run.cross_entropy, epochs=1, schedule=schedule),
        self_critical=replace(run.self_critical, epochs=0),
    )
    train(run, tmp_path / "run")
    assert loss(load_model(tmp_path / "run", "captioning")[0]) < before
