"""The backbone of a captioner of photographs as a source of regions for other models."""

from pathlib import Path

import torch

from ngsan.models.photo import PhotoEncoder
from ngsan.models.saved_captioner import load_captioner
from ngsan.vision.backbone import GridBackbone
from ngsan.vision.sources import GridSource


def photo_source(folder: str | Path, device: str | torch.device = "cpu") -> GridSource:
    """Opens a captioner's backbone, which has learned from captions what matters in a picture.

    Args:
        folder: The captioner, such as the one that ships.
        device: Where it runs.

    Raises:
        ValueError: The folder is no model, or a model of regions.
    """
    captioner, _, _ = load_captioner(folder)
    encoder = captioner.encoder
    if not isinstance(encoder, PhotoEncoder):
        raise ValueError(f"{folder} is a model of regions: it has no backbone to describe pictures")
    assert isinstance(encoder.backbone, GridBackbone)
    return GridSource(encoder.backbone, device)
