import io

import numpy as np
import pytest
import torch
from PIL import Image

from ngsan.data.captions import ImageCaptions, write_captions
from ngsan.data.pictures import PictureStore
from ngsan.data.synthetic.folders import scene_vocabulary
from ngsan.vision.backbone import build_backbone
from ngsan.vision.images import open_image, to_square
from ngsan.vision.photos import PhotoDataset, ResidentPhotos, decode

CPU = torch.device("cpu")
SIZE = 64


def png(number, size=SIZE):
    random = np.random.default_rng(number)
    image = Image.fromarray(random.integers(0, 256, (size, size, 3), dtype=np.uint8))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos")
    (path / "pictures").mkdir()
    records = []
    for number in range(7):
        size = SIZE if number < 5 else 90
        (path / "pictures" / f"{number}.png").write_bytes(png(number, size))
        split = "train" if number < 6 else "val"
        records.append(ImageCaptions(str(number), split, ("red ball", "blue box is near")))
    write_captions(path, records)
    scene_vocabulary().save(path / "vocabulary.json")
    return path


@pytest.fixture(scope="module")
def photos(folder):
    backbone = build_backbone("efficientnet-lite0", size=SIZE, pretrained=False)
    return PhotoDataset(folder, "train", PictureStore(folder / "pictures"), backbone)


def test_batches_have_images_instead_of_features(photos, folder):
    batch = photos.batch([5, 0])
    assert batch.features.shape == (2, 3, SIZE, SIZE)
    assert batch.features.dtype == torch.uint8
    assert batch.boxes is None
    assert batch.mask is None
    exact = np.asarray(Image.open(folder / "pictures" / "0.png"))
    assert np.array_equal(batch.features[1].permute(1, 2, 0).numpy(), exact)
    squashed = to_square(open_image(folder / "pictures" / "5.png"), SIZE)
    assert np.array_equal(batch.features[0].permute(1, 2, 0).numpy(), squashed)
    assert batch.words.shape[:2] == (2, 2)


def test_resident_photos_equal_the_dataset(photos):
    resident = ResidentPhotos(photos, CPU)
    for places in ([0, 1, 5], [3]):
        held, read = resident.batch(places), photos.batch(places)
        assert torch.equal(held.features, read.features)
        assert torch.equal(held.targets, read.targets)
        assert held.mask is None
    assert photos.held_bytes == 6 * 3 * SIZE * SIZE


def test_cells_equal_the_backbone(photos):
    assert photos.region_counts.tolist() == [4] * 6
    assert photos.store.feature_dim == 320
    with pytest.raises(ValueError, match="extract them first"):
        photos.store["0"]


def test_damaged_image_is_named():
    with pytest.raises(ValueError, match="image 'b'"):
        decode([png(1), b"nonsense"], ["a", "b"], SIZE, CPU)


def test_signature_depends_on_the_images(photos, folder, tmp_path):
    backbone = build_backbone("efficientnet-lite0", size=96, pretrained=False)
    other = PhotoDataset(folder, "train", PictureStore(folder / "pictures"), backbone)
    assert other.signature != photos.signature
