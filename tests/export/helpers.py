"""Small models of pixels and of regions, as model folders."""

import torch

from ngsan.config import CaptionerConfig
from ngsan.models import build_captioner
from ngsan.models.checkpoint import save_model
from ngsan.text.vocabulary import Vocabulary
from ngsan.vision.backbone import Stage

VOCABULARY = Vocabulary([f"word{index}" for index in range(40)])

STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 2, 24),
    Stage(1, 5, 2, 2, 24),
    Stage(1, 3, 2, 2, 32),
    Stage(1, 3, 2, 2, 40),
)
"""The same kinds of layers and stride as EfficientNet, but fewer: tracing is slow."""

CHANNELS = 40

SMALL = dict(vocab_size=len(VOCABULARY), dim=32, heads=2, hidden_dim=48, geometry_dim=8, layers=1)
PHOTO = dict(**SMALL, backbone="efficientnet-lite0", image_size=64, feature_dim=CHANNELS)
REGIONS = dict(**SMALL, feature_dim=36, norm="instance-affine", geometry="absolute+query")


def make_model(folder, seed=1, **keys):
    """Writes a model with random weights, so that no initial zero or one hides an error."""
    torch.manual_seed(seed)
    config = CaptionerConfig(**keys)
    captioner = build_captioner(config)
    for parameter in [*captioner.decoder.parameters(), *region_encoder(captioner).parameters()]:
        torch.nn.init.normal_(parameter, std=0.4 if parameter.ndim > 1 else 0.2)
    for module in captioner.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.3, 2)
            torch.nn.init.uniform_(module.weight, 0.5, 2)
            torch.nn.init.normal_(module.bias, std=0.3)
    save_model(
        folder, captioner, config, {"vocabulary": VOCABULARY}, metrics={"CIDEr": 1.5}, task="trying"
    )
    return folder


def region_encoder(captioner):
    return getattr(captioner.encoder, "regions", captioner.encoder)


def random_images(count, seed=0, size=64):
    """(count, 3, size, size) bytes."""
    generator = torch.Generator().manual_seed(seed)
    rough = torch.rand(count, 3, 8, 8, generator=generator)
    images = torch.nn.functional.interpolate(rough, (size, size), mode="bilinear")
    return (images * 255).to(torch.uint8)


def pixels(images):
    """The same as arrays (count, size, size, 3)."""
    return images.permute(0, 2, 3, 1).contiguous().numpy()
