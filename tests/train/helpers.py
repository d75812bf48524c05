"""Small datasets and runs for training tests."""

import dataclasses

import torch

from ngsan.config import (
    CaptionerConfig,
    CrossEntropyConfig,
    DataConfig,
    RuntimeConfig,
    SceneConfig,
    ScheduleConfig,
    SelfCriticalConfig,
    TrainConfig,
    read_recipe,
)
from ngsan.data.dataset import CaptionDataset
from ngsan.data.synthetic.folders import sample_splits, scene_vocabulary, write_scene_folder


def scene_folder(folder, train=40, val=10, max_objects=4):
    """A dataset folder of scenes with different numbers of objects."""
    batches = sample_splits(
        {"train": train, "val": val}, min_objects=2, max_objects=max_objects, seed=3
    )
    write_scene_folder(folder, batches, scene_vocabulary())
    return folder


def dataset(folder, split="train", **options):
    return CaptionDataset(folder, split, max_length=20, captions_per_image=5, **options)


def tiny_model(**changes):
    small = {"dim": 16, "heads": 2, "hidden_dim": 16, "layers": 1}
    return CaptionerConfig(
        **{**dataclasses.asdict(read_recipe("toy-scenes").model), **small, **changes}
    )


def tiny_run(**changes):
    """A run of both phases that takes about a second."""
    phase = {"epochs": 1, "batch_size": 16, "clip_grad_value": 0.0, "clip_grad_norm": 1.0}
    parts = {
        "model": tiny_model(),
        "data": DataConfig(scenes=SceneConfig(train=48, test=12)),
        "cross_entropy": CrossEntropyConfig(
            schedule=ScheduleConfig("constant", 3e-3, 0.0), **phase
        ),
        "self_critical": SelfCriticalConfig(
            schedule=ScheduleConfig("constant", 1e-4, 0.0), **phase
        ),
        "runtime": RuntimeConfig(device="cpu", threads=1, log_steps=1),
    }
    return TrainConfig(**{**parts, **changes})


def same_tensors(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )
