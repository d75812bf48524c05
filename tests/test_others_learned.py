"""Up-Down and AoA learn from the built-in scenes what they can: which things are there."""

import dataclasses

import pytest
import torch

from ngsan.config import scene_run
from ngsan.data.synthetic import read_claim, sample_scenes, scene_vocabulary, scenes_to_batch
from ngsan.models import build_captioner
from ngsan.predict import caption_regions
from ngsan.train.in_memory import train_in_memory

RUN = scene_run()
VOCABULARY = scene_vocabulary()
LEARNED = scenes_to_batch(list(sample_scenes(4000, fewest=2, most=2, seed=0)), VOCABULARY)
UNSEEN = list(sample_scenes(200, fewest=2, most=2, seed=101))


@pytest.mark.parametrize("decoder", ["up-down", "aoa"])
def test_the_things_of_a_scene_are_named(decoder):
    torch.manual_seed(1)
    model = dataclasses.replace(RUN.model, norm="none", geometry="none", decoder=decoder)
    captioner = build_captioner(model)
    train_in_memory(captioner, LEARNED, dataclasses.replace(RUN.cross_entropy, epochs=1))
    batch = scenes_to_batch(UNSEEN, VOCABULARY, seed=101)
    said = caption_regions(captioner, VOCABULARY, batch.features, batch.boxes, batch.mask)
    claims = [read_claim(caption) for caption in said]
    named = [c is not None and c.names_of(s) for c, s in zip(claims, UNSEEN, strict=True)]
    assert sum(named) > 150
