"""Models: compositions of `ngsan.nn`, built from a configuration."""

from ngsan.models.build import build_captioner
from ngsan.models.captioner import Captioner

__all__ = ["Captioner", "build_captioner"]
