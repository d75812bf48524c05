"""A photo captioner equals a backbone followed by a region captioner."""

import pytest
import torch
from torch import nn

from ngsan.config import CaptionerConfig
from ngsan.models import CaptionerModel, build_captioner
from ngsan.models.captioner import PhotoEncoder
from ngsan.models.steps import CaptionerSteps
from ngsan.predict.captioner import Captioner
from ngsan.text.vocabulary import Vocabulary

CONFIG = CaptionerConfig(
    vocab_size=12, feature_dim=5, dim=16, heads=2, hidden_dim=16, layers=1, dropout=0.0
)
VOCABULARY = Vocabulary([f"w{number}" for number in range(11)])


class Cells(nn.Module):
    """Means of a 2 x 2 grid, projected."""

    size, channels = 8, 5

    def __init__(self):
        super().__init__()
        self.project = nn.Conv2d(3, 5, 1)

    def forward(self, images):
        pooled = nn.functional.avg_pool2d(images.to(self.project.weight.dtype) / 255, 4)
        return self.project(pooled).flatten(2).transpose(1, 2)

    def cell_boxes(self):
        rows = [[x, y, 0.5, 0.5] for y in (0.25, 0.75) for x in (0.25, 0.75)]
        return torch.tensor(rows)


@pytest.fixture
def photo():
    torch.manual_seed(0)
    regions = build_captioner(CONFIG).eval()
    return CaptionerModel(PhotoEncoder(Cells(), regions.encoder), regions.decoder).eval(), regions


def images(count):
    random = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, 8, 8), generator=random, dtype=torch.uint8)


def test_photo_captioner_equals_backbone_and_region_captioner(photo):
    captioner, regions = photo
    given = images(3)
    words = torch.randint(0, 12, (3, 2, 4))
    cells = captioner.encoder.backbone(given)
    boxes = captioner.encoder.backbone.cell_boxes().expand(3, -1, -1)
    wanted = regions(cells, boxes, None, words)
    torch.testing.assert_close(captioner(given, None, None, words), wanted)


def test_search_accepts_images(photo):
    captioner, regions = photo
    given = images(3)
    cells = captioner.encoder.backbone(given).detach()
    boxes = captioner.encoder.backbone.cell_boxes().expand(3, -1, -1)
    found = Captioner.from_model(captioner, VOCABULARY).caption_regions(given)
    wanted = Captioner.from_model(regions, VOCABULARY).caption_regions(cells, boxes)
    assert found == wanted
    steps = CaptionerSteps(captioner, given)
    steps.load(images(3))


def test_mismatched_sizes_raise(photo):
    captioner, _regions = photo
    with pytest.raises(ValueError, match=r"images must be \(images, 3, 8, 8\)"):
        captioner.encode(torch.zeros(2, 3, 9, 9))
    other = build_captioner(CONFIG, feature_dim=7)
    with pytest.raises(ValueError, match="set feature_dim to 5"):
        PhotoEncoder(Cells(), other.encoder)
    with pytest.raises(ValueError, match="multiple of 32"):
        CaptionerConfig(image_size=100)


def test_cell_boxes_are_not_saved_as_weights(photo):
    captioner, _ = photo
    assert not any("boxes" in name for name in captioner.state_dict())


def with_objects(count):
    torch.manual_seed(0)
    regions = build_captioner(CONFIG).eval()
    encoder = PhotoEncoder(Cells(), regions.encoder, objects=count)
    return CaptionerModel(encoder, regions.decoder).eval(), regions


def test_objects_are_regions_like_cells():
    """Boxes of one cell and of a row of cells, whose features are known without pooling."""
    captioner, regions = with_objects(2)
    given, words = images(3), torch.randint(0, 12, (3, 2, 4))
    # In a map of 2 x 2 cells, a box of no size at a cell's centre has the cell's feature.
    boxes = torch.tensor([[0.75, 0.25, 1e-6, 1e-6], [0.5, 0.75, 1e-6, 1e-6]]).expand(3, -1, -1)
    cells = captioner.encoder.backbone(given)
    more = torch.stack((cells[:, 1], cells[:, 2:].mean(1)), 1)
    places = captioner.encoder.backbone.cell_boxes().expand(3, -1, -1)
    wanted = regions(torch.cat((cells, more), 1), torch.cat((places, boxes), 1), None, words)
    torch.testing.assert_close(captioner(given, boxes, None, words), wanted)
    # Cells that were computed before give the same.
    torch.testing.assert_close(captioner(cells, boxes, None, words), wanted)
    assert captioner.encode(given, boxes).shape == (3, 6, 16)
    other = boxes.clone()
    other[0, 0, 0] = 0.25
    changed = captioner(given, other, None, words)
    assert not torch.allclose(changed[0], wanted[0])
    torch.testing.assert_close(changed[1:], wanted[1:])


def test_missing_boxes_raise():
    captioner, _ = with_objects(2)
    for boxes in (None, torch.ones(3, 3, 4)):
        with pytest.raises(ValueError, match=r"the model needs boxes of \(3, 2, 4\)"):
            captioner.encode(images(3), boxes)
    with pytest.raises(ValueError, match="objects: 4 regions cannot join the cells of backbone"):
        CaptionerConfig(objects=4)
    with pytest.raises(ValueError, match=r"an export does not support models with detected"):
        CaptionerConfig(backbone="efficientnet-lite0", objects=4).require_cells("an export")


def test_search_with_objects_equals_direct_encoding():
    captioner, regions = with_objects(1)
    given = images(3)
    boxes = torch.tensor([[0.25, 0.75, 1e-6, 1e-6]]).expand(3, -1, -1)
    cells = captioner.encoder.backbone(given).detach()
    places = captioner.encoder.backbone.cell_boxes().expand(3, -1, -1)
    found = Captioner.from_model(captioner, VOCABULARY).caption_regions(given, boxes)
    wanted = Captioner.from_model(regions, VOCABULARY).caption_regions(
        torch.cat((cells, cells[:, 2:3]), 1), torch.cat((places, boxes), 1)
    )
    assert found == wanted
