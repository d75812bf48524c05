"""From regions to captions: the whole face of a trained model."""

from ngsan.light.caption import Caption
from ngsan.predict.models import RegionModel, TorchModel, best_device
from ngsan.predict.predictor import Predictor, caption_regions
from ngsan.predict.searches import build_search, constraints_of

__all__ = [
    "Caption",
    "Predictor",
    "RegionModel",
    "TorchModel",
    "best_device",
    "build_search",
    "caption_regions",
    "constraints_of",
]
