"""Scenes as tensors: what a captioner reads and writes.

Shapes: `S` scenes, `N` regions, `C` captions a scene, `T` words.
"""

import random
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from ngsan.data.batch import CaptionBatch
from ngsan.data.collate import TokenTable, pad_regions
from ngsan.data.store import Regions
from ngsan.data.synthetic.scene import COLOURS, SHAPES, Scene
from ngsan.data.synthetic.wording import all_words, sample_captions
from ngsan.text.vocabulary import TOKENIZERS, Origin, Vocabulary

FEATURE_DIM = 32
"""Width of a scene object's feature vector."""

CANVAS = (0.5, 0.5, 1.0, 1.0)
"""The box of the region that is the whole canvas."""

_NOISE = 0.1


def scene_vocabulary() -> Vocabulary:
    """The vocabulary of scene captions."""
    return Vocabulary(all_words(), origin=Origin(TOKENIZERS["plain"].version, 0, 0))


def look_codes() -> Tensor:
    """(looks, FEATURE_DIM) the codes of all colours, of all shapes, and last of the canvas."""
    looks = len(COLOURS) + len(SHAPES)
    return torch.randn(looks + 1, FEATURE_DIM, generator=torch.Generator().manual_seed(0))


def appearance(scene: Scene, generator: torch.Generator) -> Tensor:
    """Feature vectors of a scene's regions: a code of colour and shape, and a little noise.

    The code is the same for all scenes. Nothing of position or size is in it. The last region is
    the canvas, with a code of its own: as the region that is the whole image does in a
    detector's output, it gives attention something to rest on.

    Args:
        scene: The scene.
        generator: Where the noise comes from.

    Returns:
        (objects + 1, FEATURE_DIM)
    """
    code = look_codes()
    colours = torch.tensor([COLOURS.index(thing.colour) for thing in scene.things])
    shapes = torch.tensor([SHAPES.index(thing.shape) for thing in scene.things])
    regions = torch.cat((code[colours] + code[len(COLOURS) + shapes], code[-1:]))
    return regions + _NOISE * torch.randn(regions.shape, generator=generator)


def captions_to_tensors(
    captions: Sequence[Sequence[str]], vocabulary: Vocabulary
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Captions as decoder input and targets, padded to the longest.

    Args:
        captions: Equally many captions for each scene.
        vocabulary: Holds all their words.

    Returns:
        words, targets and target_mask, each (S, C, T), and caption_mask (S, C).
    """
    rows = [vocabulary.encode(caption.split()) for group in captions for caption in group]
    table = TokenTable.of_lengths(list(chain.from_iterable(rows)), [len(row) for row in rows])
    numbers = np.arange(len(rows)).reshape(len(captions), -1)
    return table.gather(torch.from_numpy(numbers), table.width(numbers))


def scenes_to_batch(
    scenes: Sequence[Scene], vocabulary: Vocabulary, *, seed: int = 0
) -> CaptionBatch:
    """Scenes as tensors, padded to the most objects, with five captions each.

    Args:
        scenes: The scenes.
        vocabulary: Of `scene_vocabulary`.
        seed: Seed of the captions' choice and of the features' noise.
    """
    generator = torch.Generator().manual_seed(seed)
    regions = [
        Regions(
            features=appearance(scene, generator).numpy(),
            boxes=np.array([*(thing.box for thing in scene.things), CANVAS], np.float32),
            size=None,
        )
        for scene in scenes
    ]
    captions = [
        sample_captions(scene, random.Random(f"{seed}/{i}")) for i, scene in enumerate(scenes)
    ]
    return CaptionBatch(
        *pad_regions(regions),
        *captions_to_tensors(captions, vocabulary),
        ids=[str(i) for i in range(len(scenes))],
    )
