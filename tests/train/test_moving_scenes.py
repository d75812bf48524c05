"""Toy clips: only a model with frame positions learns what happens in them."""

import random
from dataclasses import replace

import pytest
import torch

from ngsan.config import (
    CrossEntropyConfig,
    ScheduleConfig,
    read_recipe,
)
from ngsan.config.recipes import RECIPES
from ngsan.data.batch import CaptionBatch
from ngsan.data.synthetic.folders import (
    FRAME_DIM,
    captions_to_tensors,
    frame_codes,
    moving_vocabulary,
    sample_moving_splits,
)
from ngsan.data.synthetic.moving import OPPOSITES, read_doing, sample_moving_captions, true_doings
from ngsan.models import build_captioner
from ngsan.predict.captioner import Captioner
from ngsan.train.in_memory import train_in_memory


def with_fixed_looks(scene):
    """The scene with a red ball as actor and a blue box, so that only actions differ."""
    names = {scene.things[0].name, scene.things[1].name}
    acts = true_doings(scene)[0].a
    looks = {acts: ("red", "ball"), (names - {acts}).pop(): ("blue", "box")}
    things = [replace(t, colour=looks[t.name][0], shape=looks[t.name][1]) for t in scene.things]
    return replace(scene, things=tuple(sorted(things, key=lambda thing: thing.colour)))


def is_directed(scene):
    """Whether the action differs from that of the reversed scene."""
    return all(OPPOSITES[doing.action] != doing.action for doing in true_doings(scene))


def clips_of(scenes):
    return torch.stack([torch.from_numpy(frame_codes(scene)) for scene in scenes])


def to_batch(scenes, vocabulary):
    captions = [
        sample_moving_captions(scene, random.Random(number), count=1)
        for number, scene in enumerate(scenes)
    ]
    features = clips_of(scenes)
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    ids = [str(number) for number in range(len(scenes))]
    return CaptionBatch(features, None, mask, *captions_to_tensors(captions, vocabulary), ids=ids)


@pytest.mark.slow
def test_learning_actions_needs_frame_positions():
    splits = sample_moving_splits({"train": 1200, "test": 160}, frames=5)
    seen, unseen = (
        [with_fixed_looks(one) for one in some if is_directed(one)] for some in splits.values()
    )
    vocabulary = moving_vocabulary()
    batch, features = to_batch(seen, vocabulary), clips_of(unseen)
    phase = CrossEntropyConfig(
        epochs=14,
        batch_size=32,
        schedule=ScheduleConfig(shape="cosine", peak_lr=4e-3, warmup_epochs=0.2),
        clip_grad_norm=1.0,
    )
    true = {}
    for positions in ("sinusoidal", "none"):
        torch.manual_seed(0)
        shape = dict(positions=positions, dim=32, hidden_dim=64, heads=4)
        captioner = build_captioner(read_recipe("toy-clips").model, **shape)
        train_in_memory(captioner, batch, phase)
        for order, shown in {"forward": features, "reversed": features.flip(1)}.items():
            claims = map(
                read_doing, Captioner.from_model(captioner, vocabulary).caption_regions(shown)
            )
            right = [c is not None and c.holds_in(s) for c, s in zip(claims, unseen, strict=True)]
            true[positions, order] = sum(right) / len(right)
    assert true["sinusoidal", "forward"] > 0.8, true
    assert true["sinusoidal", "reversed"] < 0.1, true
    # Without positions, a scene and its reverse look the same, so at most one caption is correct.
    assert true["none", "forward"] <= 0.5, true


def test_toy_recipe_sizes_match_its_data():
    model = read_recipe("toy-clips").model
    assert (model.vocab_size, model.feature_dim) == (len(moving_vocabulary()), FRAME_DIM)
    assert read_recipe("moving-clips").model.vocab_size == len(moving_vocabulary())


def test_train_command_on_moving_scenes(tmp_path, capsys):
    """`ngsan train` with few scenes; conflicting data options raise."""
    from ngsan.__main__ import main

    words = ["train", str(RECIPES / "toy-clips.yaml"), "--output"]
    small = "--data.moving.train 40 --data.moving.test 10 --data.moving.frames 4"
    small += " --cross_entropy.epochs 1 --runtime.device cpu"
    assert main([*words, str(tmp_path / "run"), *small.split()]) == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert main([*words, str(tmp_path / "b"), *small.split(), "--data.folder", "x"]) == 2
    assert "moving cannot both be the training data" in capsys.readouterr().err
