"""Configurations: frozen dataclasses, read from and written to YAML with every key explained.

The text under a field is its explanation everywhere: in the YAML that `to_yaml` writes and in the
command line's help. This package imports no torch.
"""

from ngsan.config.checks import check_choice, check_range, check_types
from ngsan.config.data import DataConfig, MovingConfig, SceneConfig
from ngsan.config.decoding import DecodingConfig
from ngsan.config.files import explain, from_dict, read_yaml, to_yaml
from ngsan.config.model import GEOMETRY_TERMS, MODELS, PLUS_ONE, CaptionerConfig, ModelConfig
from ngsan.config.runs import RUNS, run_class
from ngsan.config.training import (
    CrossEntropyConfig,
    MachineConfig,
    PhaseConfig,
    RateConfig,
    SelfCriticalConfig,
    TrainConfig,
    ValidationConfig,
    VisionConfig,
    photo_run,
    reproduction_run,
    scene_run,
)
from ngsan.config.translation import TranslatingConfig, TranslationRun, TranslatorConfig
from ngsan.config.video import moving_run, shipped_clip_run, video_run

__all__ = [
    "GEOMETRY_TERMS",
    "MODELS",
    "PLUS_ONE",
    "RUNS",
    "CaptionerConfig",
    "CrossEntropyConfig",
    "DataConfig",
    "DecodingConfig",
    "MachineConfig",
    "ModelConfig",
    "MovingConfig",
    "PhaseConfig",
    "RateConfig",
    "SceneConfig",
    "SelfCriticalConfig",
    "TrainConfig",
    "TranslatingConfig",
    "TranslationRun",
    "TranslatorConfig",
    "ValidationConfig",
    "VisionConfig",
    "check_choice",
    "check_range",
    "check_types",
    "explain",
    "from_dict",
    "moving_run",
    "photo_run",
    "read_yaml",
    "reproduction_run",
    "run_class",
    "scene_run",
    "shipped_clip_run",
    "to_yaml",
    "video_run",
]
