"""The toy of clips: only a model that knows the order of frames learns what happens in them."""

import dataclasses
from pathlib import Path

import pytest
import torch

from ngsan.config import TrainConfig, moving_run, read_yaml, shipped_clip_run, to_yaml, video_run
from ngsan.data.synthetic import OPPOSITES, read_doing, true_doings
from ngsan.data.synthetic.moving_folder import (
    FRAME_DIM,
    frame_codes,
    moving_vocabulary,
    sample_moving_splits,
)
from ngsan.data.batch import CaptionBatch
from ngsan.data.synthetic.moving_wording import sample_moving_captions
from ngsan.data.synthetic.tensors import captions_to_tensors
from ngsan.models import build_captioner
from ngsan.predict.predictor import caption_regions
from ngsan.train.in_memory import train_in_memory
from ngsan.train.run import train

ROOT = Path(__file__).parents[1]


def to_batch(scenes, vocabulary):
    import random

    captions = [sample_moving_captions(scene, random.Random(i)) for i, scene in enumerate(scenes)]
    features = torch.stack([torch.from_numpy(frame_codes(scene)) for scene in scenes])
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    return CaptionBatch(
        features,
        None,
        mask,
        *captions_to_tensors(captions, vocabulary),
        ids=[str(number) for number in range(len(scenes))],
    )


def directed(scene):
    """Whether the scene differs from its reverse."""
    return any(OPPOSITES[doing.action] != doing.action for doing in true_doings(scene))


def test_only_positions_tell_what_happens():
    splits = sample_moving_splits({"train": 1600, "test": 200}, frames=6)
    vocabulary, run = moving_vocabulary(), moving_run()
    batch = to_batch(splits["train"], vocabulary)
    unseen = [scene for scene in splits["test"] if directed(scene)]
    features = torch.stack([torch.from_numpy(frame_codes(scene)) for scene in unseen])
    how = dataclasses.replace(run.cross_entropy, epochs=5)
    true = {}
    for positions in ("sinusoidal", "none"):
        torch.manual_seed(0)
        captioner = build_captioner(run.model, positions=positions, dim=48, hidden_dim=96)
        train_in_memory(captioner, batch, how)
        for order in ("as it is", "in reverse"):
            shown = features if order == "as it is" else features.flip(1)
            claims = map(read_doing, caption_regions(captioner, vocabulary, shown))
            rights = [c is not None and c.holds_in(s) for c, s in zip(claims, unseen, strict=True)]
            true[positions, order] = sum(rights) / len(rights)
    print(true)
    assert true["sinusoidal", "as it is"] > 0.6
    assert true["sinusoidal", "in reverse"] < 0.2
    # Of a scene and its reverse, whose frames are the same, it can be right about one at most.
    assert true["none", "as it is"] <= 0.5
