"""Scenes as tensors: what a captioner reads and writes.

Shapes: `S` scenes, `N` regions, `C` captions a scene, `T` words.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ngsan.data.synthetic.scene import COLOURS, SHAPES, Scene
from ngsan.data.synthetic.wording import all_words, sample_captions
from ngsan.text.vocabulary import BOUNDARY, Vocabulary

FEATURE_DIM = 32
"""Width of a scene object's feature vector."""

CANVAS = (0.5, 0.5, 1.0, 1.0)
"""The box of the region that is the whole canvas."""

_NOISE = 0.1


@dataclass(frozen=True)
class SceneBatch:
    """Scenes and their captions.

    Attributes:
        features: (S, N, FEATURE_DIM) appearance.
        boxes: (S, N, 4) `cxcywh` relative to the canvas.
        mask: (S, N) boolean, True = a real region: an object or the canvas.
        words: (S, C, T) what the decoder is given, the boundary first.
        targets: (S, C, T) what it shall answer, the boundary last.
        target_mask: (S, C, T) boolean, True = a real target.
    """

    features: Tensor
    boxes: Tensor
    mask: Tensor
    words: Tensor
    targets: Tensor
    target_mask: Tensor

    def __len__(self) -> int:
        """The number of scenes, S."""
        return len(self.features)

    def __getitem__(self, index: Tensor | slice) -> "SceneBatch":
        """Some of the scenes."""
        return SceneBatch(*(getattr(self, item.name)[index] for item in fields(self)))


def scene_vocabulary() -> Vocabulary:
    """The vocabulary of scene captions."""
    return Vocabulary(all_words())


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
    looks = len(COLOURS) + len(SHAPES)
    code = torch.randn(looks + 1, FEATURE_DIM, generator=torch.Generator().manual_seed(0))
    colours = torch.tensor([COLOURS.index(thing.colour) for thing in scene.things])
    shapes = torch.tensor([SHAPES.index(thing.shape) for thing in scene.things])
    regions = torch.cat((code[colours] + code[len(COLOURS) + shapes], code[-1:]))
    return regions + _NOISE * torch.randn(regions.shape, generator=generator)


def captions_to_tensors(
    captions: Sequence[Sequence[str]], vocabulary: Vocabulary
) -> tuple[Tensor, Tensor, Tensor]:
    """Captions as decoder input and targets, padded to the longest.

    Args:
        captions: Equally many captions for each scene.
        vocabulary: Holds all their words.

    Returns:
        words, targets and target_mask, each (S, C, T).
    """
    rows = [[vocabulary.encode(caption.split()) for caption in group] for group in captions]
    length = max(len(row) for group in rows for row in group) + 1
    padded = torch.full((len(rows), len(rows[0]), length + 1), BOUNDARY)
    mask = torch.zeros(len(rows), len(rows[0]), length, dtype=torch.bool)
    for i, group in enumerate(rows):
        for j, row in enumerate(group):
            padded[i, j, 1 : len(row) + 1] = torch.tensor(row)
            mask[i, j, : len(row) + 1] = True
    return padded[..., :-1], padded[..., 1:], mask


def scenes_to_batch(
    scenes: Sequence[Scene], vocabulary: Vocabulary, *, seed: int = 0
) -> SceneBatch:
    """Scenes as tensors, padded to the most objects, with five captions each.

    Args:
        scenes: The scenes.
        vocabulary: Of `scene_vocabulary`.
        seed: Seed of the captions' choice and of the features' noise.
    """
    most = max(len(scene.things) for scene in scenes) + 1
    features = torch.zeros(len(scenes), most, FEATURE_DIM)
    boxes = torch.zeros(len(scenes), most, 4)
    mask = torch.zeros(len(scenes), most, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    for i, scene in enumerate(scenes):
        count = len(scene.things) + 1
        features[i, :count] = appearance(scene, generator)
        boxes[i, :count] = torch.tensor([*(thing.box for thing in scene.things), CANVAS])
        mask[i, :count] = True
    captions = [
        sample_captions(scene, random.Random(f"{seed}/{i}")) for i, scene in enumerate(scenes)
    ]
    return SceneBatch(features, boxes, mask, *captions_to_tensors(captions, vocabulary))
