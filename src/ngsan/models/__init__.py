"""Models: compositions of `ngsan.nn`, built from a configuration, saved and loaded."""

from ngsan.models.answerer import AnswererModel
from ngsan.models.build import (
    build_answerer,
    build_captioner,
    build_model,
    build_translator,
    resolve_backbone,
)
from ngsan.models.captioner import CaptionerModel
from ngsan.models.checkpoint import load_model, save_model
from ngsan.models.translator import TranslatorModel

__all__ = [
    "AnswererModel",
    "CaptionerModel",
    "TranslatorModel",
    "build_answerer",
    "build_captioner",
    "build_model",
    "build_translator",
    "load_model",
    "resolve_backbone",
    "save_model",
]
