"""Up-Down and AoA learn from the built-in scenes what they can: which things are there.

The control weighs all regions alike, as a cell does whose attention is broken: from the mean of two
things it cannot tell well which colour belongs to which shape. Over the seeds 0 to 9 both things of
an unseen scene were named in, of 200,

| | with attention | with equal weights |
|---|---|---|
| Up-Down | 182 to 200 | 86 to 109 |
| AoA | 196 to 200 | 62 to 96 |

and by either in at most one if the regions were those of another scene. The thresholds lie in the
gap, a fair way from its ends: other machines round otherwise, which is as good as another seed.
"""

import dataclasses

import pytest
import torch

from ngsan.config import read_recipe
from ngsan.data.synthetic.folders import scene_vocabulary, scenes_to_batch
from ngsan.data.synthetic.scenes import read_claim, sample_scenes
from ngsan.models import build_captioner
from ngsan.predict.captioner import Captioner
from ngsan.train.in_memory import train_in_memory

RUN = read_recipe("toy-scenes")
VOCABULARY = scene_vocabulary()
LEARNED = scenes_to_batch(
    list(sample_scenes(4000, min_objects=2, max_objects=2, seed=0)), VOCABULARY
)
UNSEEN = list(sample_scenes(200, min_objects=2, max_objects=2, seed=101))


def weigh_alike(cell):
    """Puts the mean of an image's regions, here always real, in the place of each of them."""
    remember = cell.remember
    cell.remember = lambda memory, mask: remember(
        memory.mean(1, keepdim=True).expand_as(memory), mask
    )


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["up-down", "aoa"])
@pytest.mark.parametrize("attends", [True, False])
def test_attention_names_the_things_of_a_scene(decoder, attends):
    torch.manual_seed(1)
    model = dataclasses.replace(RUN.model, norm="none", geometry="none", decoder=decoder)
    captioner = build_captioner(model)
    if not attends:
        weigh_alike(captioner.decoder.cell)
    train_in_memory(captioner, LEARNED, dataclasses.replace(RUN.cross_entropy, epochs=1))
    batch = scenes_to_batch(UNSEEN, VOCABULARY, seed=101)
    assert batch.mask.all()
    said = Captioner.from_model(captioner, VOCABULARY).caption_regions(
        batch.features, batch.boxes, batch.mask
    )
    claims = [read_claim(caption) for caption in said]
    named = sum(c is not None and c.names_of(s) for c, s in zip(claims, UNSEEN, strict=True))
    assert named > 165 if attends else named < 135
