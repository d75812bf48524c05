"""Small photo captioners for tests of explanations."""

import torch
from torch import nn

from ngsan.app.attention import from_torch
from ngsan.app.maps import Explainer
from ngsan.config import CaptionerConfig
from ngsan.models import CaptionerModel, build_captioner
from ngsan.models.captioner import PhotoEncoder
from ngsan.text.vocabulary import Vocabulary

ROWS, COLUMNS = 2, 3
VOCABULARY = Vocabulary([*(f"word{number}" for number in range(10)), "<script>", "a&b"])


class Cells(nn.Module):
    """Means of 2 rows of 3 cells, projected."""

    size, channels = 12, 5

    def __init__(self):
        super().__init__()
        self.project = nn.Conv2d(3, self.channels, 1)

    def forward(self, images):
        pixels = images.to(self.project.weight.dtype) / 64
        return self.project(nn.functional.avg_pool2d(pixels, (6, 4))).flatten(2).transpose(1, 2)

    def cell_boxes(self):
        rows = [
            [(x + 0.5) / COLUMNS, (y + 0.5) / ROWS, 1 / COLUMNS, 1 / ROWS]
            for y in range(ROWS)
            for x in range(COLUMNS)
        ]
        return torch.tensor(rows)


def small(model="ng-san", **overrides):
    """An explainer with random weights, scaled so that its attention is not flat."""
    shape = dict(vocab_size=13, feature_dim=5, dim=16, heads=2, hidden_dim=16, layers=2)
    config = CaptionerConfig.for_model(model, **{**shape, "geometry_dim": 8, **overrides})
    regions = build_captioner(config)
    captioner = CaptionerModel(PhotoEncoder(Cells(), regions.encoder), regions.decoder)
    with torch.no_grad():
        for name, weight in captioner.named_parameters():
            if ".key.weight" in name or ".score_bias." in name:
                weight.normal_(std=0.5)
    explainer = Explainer(from_torch(captioner, config, VOCABULARY), image_size=Cells.size)
    explainer.captioner = captioner
    return explainer
