"""The runs of clips."""

from ngsan.config.data import DataConfig, MovingConfig
from ngsan.config.decoding import DecodingConfig
from ngsan.config.model import CaptionerConfig
from ngsan.config.training import (
    CrossEntropyConfig,
    MachineConfig,
    RateConfig,
    SelfCriticalConfig,
    TrainConfig,
    ValidationConfig,
)


def video_run(norm: str = "instance") -> TrainConfig:
    """The paper's captioner of clips on VATEX: one layer, frames of I3D in their order.

    Args:
        norm: "none" for the Transformer, "instance" for the Transformer with NSA.
    """
    return TrainConfig(
        model=CaptionerConfig(
            feature_dim=1024,
            positions="sinusoidal",
            layers=1,
            norm=norm,  # type: ignore[arg-type]
            geometry="none",
        ),
        data=DataConfig(longest=30, captions_per_image=10),
    )


def moving_run() -> TrainConfig:
    """A run on the built-in moving scenes; it learns to tell time in a minute on one core."""
    return TrainConfig(
        model=CaptionerConfig(
            vocab_size=47,
            feature_dim=32,
            positions="sinusoidal",
            dim=64,
            hidden_dim=128,
            layers=1,
            dropout=0.0,
            geometry="none",
            norm_place="pre",
        ),
        data=DataConfig(moving=MovingConfig()),
        cross_entropy=CrossEntropyConfig(
            epochs=6,
            batch_size=32,
            rate=RateConfig(shape="cosine", highest=3e-3, rise=0.2),
            clip_value=0.0,
            clip_norm=1.0,
        ),
        self_critical=SelfCriticalConfig(epochs=0),
        machine=MachineConfig(threads=1, save_seconds=10.0),
    )


def shipped_clip_run(norm: str = "instance") -> TrainConfig:
    """The run of the clip model that ships: rendered moving scenes, ten minutes on one core.

    Args:
        norm: "none" for the Transformer, "instance" for the Transformer with NSA.
    """
    return TrainConfig(
        model=CaptionerConfig(
            vocab_size=47,
            feature_dim=704,
            positions="sinusoidal",
            frame_grid=4,
            dim=96,
            heads=4,
            hidden_dim=192,
            layers=2,
            norm=norm,  # type: ignore[arg-type]
            geometry="absolute",
            norm_place="pre",
        ),
        data=DataConfig(captions_per_image=1),
        cross_entropy=CrossEntropyConfig(
            epochs=6,
            batch_size=64,
            rate=RateConfig(shape="cosine", highest=2e-3, rise=0.5),
            clip_value=0.0,
            clip_norm=1.0,
            weight_decay=0.01,
        ),
        self_critical=SelfCriticalConfig(epochs=0),
        validation=ValidationConfig(decoding=DecodingConfig(method="greedy")),
        machine=MachineConfig(threads=1, save_seconds=60.0),
    )
