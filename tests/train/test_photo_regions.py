"""A captioner learns on cells and detected regions together, end to end, on pictures of scenes."""

import dataclasses
import random
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from ngsan.config import DataConfig, VisionConfig
from ngsan.data.captions import ImageCaptions, write_captions
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.data.synthetic.folders import scene_vocabulary
from ngsan.data.synthetic.render import render
from ngsan.data.synthetic.scenes import sample_captions, sample_scenes
from ngsan.models.checkpoint import load_model
from ngsan.predict.captioner import load
from ngsan.train.run import train
from ngsan.vision.regions import WHOLE
from tests.train.helpers import same_tensors, tiny_model, tiny_run

SIZE, OBJECTS = 32, 3
MODEL = tiny_model(backbone="efficientnet-lite0", image_size=SIZE, feature_dim=320, objects=OBJECTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenes")
    (path / "pictures").mkdir()
    records = []
    with StoreWriter(path, source="boxes of scenes") as writer:
        for number, scene in enumerate(sample_scenes(26, min_objects=2, max_objects=4, seed=4)):
            render(scene, SIZE).save(path / "pictures" / f"{number}.png")
            captions = tuple(sample_captions(scene, random.Random(number)))
            records.append(ImageCaptions(str(number), "train" if number < 20 else "val", captions))
            boxes = np.array([thing.box for thing in scene.things], np.float32)
            writer.add(str(number), Regions(np.zeros((len(boxes), 1), np.float32), boxes))
    write_captions(path, records)
    scene_vocabulary().save(path / "vocabulary.json")
    return path


def run_of(folder, **changes):
    vision = VisionConfig(images=str(folder / "pictures"), pretrained=False)
    return tiny_run(model=MODEL, data=DataConfig(folder=str(folder)), vision=vision, **changes)


def test_damaged_boxes_raise(folder, tmp_path):
    data = shutil.copytree(folder, tmp_path / "data")
    shard = data / "features" / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[content.index(b"}}") + 100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=r"shard-00000.safetensors is damaged"):
        train(run_of(data), tmp_path / "run")


def test_batches_have_the_first_boxes_of_each_image(folder):
    from ngsan.data.pictures import PictureStore
    from ngsan.data.store import FeatureStore
    from ngsan.vision.backbone import build_backbone
    from ngsan.vision.photos import PhotoDataset, ResidentPhotos

    backbone = build_backbone("efficientnet-lite0", size=SIZE, pretrained=False)
    pictures = PictureStore(folder / "pictures")
    data = PhotoDataset(folder, "train", pictures, backbone, objects=OBJECTS)
    batch = data.batch(range(20))
    assert batch.features.shape == (20, 3, SIZE, SIZE)
    assert batch.boxes.shape == (20, OBJECTS, 4)
    assert batch.mask is None
    store, counts = FeatureStore(folder), set()
    for image, boxes in zip(batch.ids, batch.boxes.numpy(), strict=True):
        wanted = store[image].boxes
        counts.add(len(wanted))
        np.testing.assert_array_equal(boxes[: len(wanted)], wanted[:OBJECTS])
        for padding in boxes[len(wanted) :]:
            np.testing.assert_allclose(padding, WHOLE)
    assert counts == {2, 3, 4}
    held = ResidentPhotos(data, torch.device("cpu")).batch(range(20))
    assert torch.equal(held.boxes, batch.boxes)
    assert torch.equal(held.features, batch.features)
    without = PhotoDataset(folder, "train", pictures, backbone)
    assert without.batch([0]).boxes is None
    assert without.signature != data.signature


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "run"
    train(run_of(folder), output)
    return output


def test_trained_model_captions_photographs(folder, trained):
    captioner, config, _ = load_model(trained, "captioning")
    assert config.objects == captioner.encoder.objects == OBJECTS
    images = torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8)
    boxes = torch.full((2, OBJECTS, 4), 0.5)
    assert captioner.encode(images, boxes).shape == (2, 1 + OBJECTS, 16)
    # Of a photograph, the shipped detector finds the boxes.
    photo = Image.open(folder / "pictures" / "0.png")
    model = load(trained, device="cpu")
    one, two = model.caption([photo, photo])
    assert one == two == model.caption(photo)
    assert one.log_probability == pytest.approx(two.log_probability, abs=1e-4)


@pytest.mark.slow
def test_resumed_run_equals_an_uninterrupted_one(folder, trained, tmp_path):
    class Stop(BaseException):
        pass

    def listen(entry):
        if entry["event"] == "step" and entry["step"] == 2:
            raise Stop

    with pytest.raises(Stop):
        train(run_of(folder), tmp_path / "run", listen=listen)
    train(run_of(folder), tmp_path / "run", resume=True)
    first, second = (load_file(run / "model.safetensors") for run in (trained, tmp_path / "run"))
    assert same_tensors(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("lr_scale", [0.0, 0.4])
def test_reading_from_disk_gives_the_same_model(folder, tmp_path, lr_scale):
    """In memory, a frozen backbone runs once for each image; from disk, in every step."""
    vision = VisionConfig(
        images=str(folder / "pictures"),
        pretrained=False,
        lr_scale=lr_scale,
        min_crop=1.0,
        color_jitter=0.0,
    )
    runs = []
    for data in ("device", "host"):
        config = dataclasses.replace(run_of(folder), vision=vision)
        runtime = dataclasses.replace(config.runtime, data=data)
        train(dataclasses.replace(config, runtime=runtime), tmp_path / data)
        runs.append(load_file(tmp_path / data / "model.safetensors"))
    for name, tensor in runs[0].items():
        torch.testing.assert_close(tensor, runs[1][name], rtol=1e-4, atol=1e-5)


def test_dataset_without_boxes_raises(folder, tmp_path):
    for name in ("captions.jsonl", "vocabulary.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with StoreWriter(tmp_path, source="no boxes") as writer:
        writer.add("0", Regions(np.zeros((1, 1), np.float32)))
    with pytest.raises(ValueError, match="ngsan extract --source objects"):
        train(
            tiny_run(
                model=MODEL,
                data=DataConfig(folder=str(tmp_path)),
                vision=VisionConfig(images=str(folder / "pictures"), pretrained=False),
            ),
            tmp_path / "run",
        )
