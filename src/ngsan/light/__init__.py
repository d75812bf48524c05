"""Captions from an export with numpy and ONNX Runtime alone: `import torch` takes seconds."""

from ngsan.light.caption import Caption
from ngsan.light.captioner import LightCaptioner
from ngsan.light.model import LightModel

__all__ = ["Caption", "LightCaptioner", "LightModel"]
