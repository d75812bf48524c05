"""Scenes as tensors and as dataset folders: captions, questions and moving scenes.

Shapes: `S` scenes, `N` regions, `C` captions per scene, `T` words.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count, permutations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.data.batch import CaptionBatch, TokenTable, pad_regions
from ngsan.data.captions import VOCABULARY, ImageCaptions, write_captions
from ngsan.data.questions import (
    ANSWERS,
    WORDS,
    Question,
    count_answers,
    count_words,
    write_questions,
)
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.data.synthetic.moving import (
    FRAMES,
    MovingScene,
    all_moving_words,
    sample_moving_captions,
    sample_moving_scenes,
)
from ngsan.data.synthetic.scenes import (
    COLOURS,
    SHAPES,
    Scene,
    all_words,
    relation,
    sample_captions,
    sample_scene,
    sample_scenes,
)
from ngsan.text.tokenizers import TOKENIZERS
from ngsan.text.vocabulary import Origin, Vocabulary

FEATURE_DIM = 32
"""Width of a scene object's feature vector."""

FRAME_DIM = 2 * (len(COLOURS) + len(SHAPES) + 4)
"""Width of the features of `frame_codes`."""

CANVAS = (0.5, 0.5, 1.0, 1.0)
"""The box of the region that is the whole canvas."""

UNSEEN_SEEDS = 1_000_003
"""Added to the seed of the training scenes for each further split."""

QUESTION_SOURCE = "scenes of ngsan, regions x 32"
"""Source of the features of question scenes."""

QUESTIONS = ("are two things near each other?", "is one thing inside another?")
"""The questions about scenes, which alternate."""

_NOISE, _FRAME_NOISE = 0.1, 0.02
_SPREAD = 4.0
_TRIES = 2000


def scene_vocabulary() -> Vocabulary:
    """The vocabulary of scene captions."""
    return Vocabulary(all_words(), origin=Origin(TOKENIZERS["plain"].version, 0, 0))


def moving_vocabulary() -> Vocabulary:
    """The vocabulary of captions of moving scenes."""
    return Vocabulary(all_moving_words(), origin=Origin(TOKENIZERS["plain"].version, 0, 0))


def look_codes() -> Tensor:
    """(looks, FEATURE_DIM) the codes of all colours, of all shapes, and last of the canvas."""
    looks = len(COLOURS) + len(SHAPES)
    return torch.randn(looks + 1, FEATURE_DIM, generator=torch.Generator().manual_seed(0))


def appearance(scene: Scene, generator: torch.Generator) -> Tensor:
    """Feature vectors of a scene's regions: a code of colour and shape, and a little noise.

    They hold nothing of position or size. The last region is the canvas, with a code of its own:
    like the whole-image region of a detector, it gives attention a neutral target.

    Returns:
        (objects + 1, FEATURE_DIM)
    """
    code = look_codes()
    colours = torch.tensor([COLOURS.index(thing.colour) for thing in scene.things])
    shapes = torch.tensor([SHAPES.index(thing.shape) for thing in scene.things])
    regions = torch.cat((code[colours] + code[len(COLOURS) + shapes], code[-1:]))
    return regions + _NOISE * torch.randn(regions.shape, generator=generator)


def _scene_regions(scene: Scene, generator: torch.Generator) -> Regions:
    boxes = np.array([*(thing.box for thing in scene.things), CANVAS], np.float32)
    return Regions(appearance(scene, generator).numpy(), boxes)


def captions_to_tensors(
    captions: Sequence[Sequence[str]], vocabulary: Vocabulary
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Captions, equally many per scene, as decoder input and targets, padded to the longest.

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
    regions = [_scene_regions(scene, generator) for scene in scenes]
    captions = [
        sample_captions(scene, random.Random(f"{seed}/{i}")) for i, scene in enumerate(scenes)
    ]
    return CaptionBatch(
        *pad_regions(regions),
        *captions_to_tensors(captions, vocabulary),
        ids=[str(i) for i in range(len(scenes))],
    )


def sample_splits(
    sizes: Mapping[str, int], *, min_objects: int, max_objects: int, seed: int
) -> dict[str, CaptionBatch]:
    """Scenes for the splits of a dataset, by their sizes; the first is the training split."""
    vocabulary = scene_vocabulary()
    batches = {}
    for number, (split, size) in enumerate(sizes.items()):
        # Series with different seeds share no scene.
        own = seed + number * UNSEEN_SEEDS
        scenes = list(
            sample_scenes(size, min_objects=min_objects, max_objects=max_objects, seed=own)
        )
        batches[split] = scenes_to_batch(scenes, vocabulary, seed=seed + number)
    return batches


def write_scene_folder(
    folder: str | Path, batches: Mapping[str, CaptionBatch], vocabulary: Vocabulary
) -> None:
    """Writes scenes with captions, features and, last of all, the vocabulary.

    Args:
        folder: The dataset folder; captions and features in it are replaced.
        batches: The scenes by split; if there are several, a scene's id begins with the split.
        vocabulary: Their words.
    """
    records = []
    with StoreWriter(folder, source="built-in scenes", overwrite=True) as writer:
        for split, batch in batches.items():
            if batch.boxes is None or batch.mask is None:
                raise ValueError("scenes have boxes and a mask, and this batch lacks one")
            for index, name in enumerate(batch.ids):
                identity = f"{split}-{name}" if len(batches) > 1 else name
                real = batch.mask[index]
                features, boxes = batch.features[index][real], batch.boxes[index][real]
                writer.add(identity, Regions(features.numpy(), boxes.numpy()))
                written = batch.targets[index][batch.caption_mask[index]].tolist()
                captions = tuple(" ".join(vocabulary.decode(words)) for words in written)
                records.append(ImageCaptions(identity, split, captions))
    write_captions(folder, records, overwrite=True)
    vocabulary.save(Path(folder) / VOCABULARY)


# Questions. Yes and no are equally frequent, and appearance does not tell them apart.


def answer_of(scene: Scene, question: str) -> str | None:
    """The answer to one of `QUESTIONS`; None for borderline cases."""
    pairs = [(a.box, b.box) for a, b in permutations(scene.things, 2)]
    if question == QUESTIONS[0]:
        found = {relation(a, b, "distance") for a, b in pairs}
        return "yes" if "near" in found else "no" if found == {"far from"} else None
    if question == QUESTIONS[1]:
        return "yes" if any(relation(a, b, "arrangement") == "inside" for a, b in pairs) else "no"
    raise ValueError(f"unknown question {question!r}: one of {', '.join(QUESTIONS)}")


def sample_questions(
    splits: Mapping[str, int], *, min_objects: int = 2, max_objects: int = 2, seed: int = 0
) -> Iterator[tuple[Question, Scene]]:
    """Makes scenes, by the size of each split, with one question each."""
    numbers = count()
    for split, wanted in splits.items():
        for _ in range(wanted):
            number = next(numbers)
            text, answer = QUESTIONS[number // 2 % 2], ("no", "yes")[number % 2]
            rng = random.Random(f"{seed}/{number}")
            scene = _answered_scene(text, answer, rng, min_objects, max_objects)
            name, kind = str(number), text.split()[0]
            yield Question(name, name, split, text, (answer,) * 10, "yes/no", kind), scene


def _answered_scene(
    question: str, answer: str, rng: random.Random, min_objects: int, max_objects: int
) -> Scene:
    for _ in range(_TRIES):
        scene = sample_scene(rng, min_objects=min_objects, max_objects=max_objects)
        if answer_of(scene, question) == answer:
            return scene
    raise ValueError(
        f"max_objects: among {min_objects} to {max_objects} objects, the answer to {question!r} is "
        f"hardly ever {answer!r}; use fewer"
    )


def write_question_scenes(
    folder: str | Path,
    splits: Mapping[str, int],
    *,
    min_objects: int = 2,
    max_objects: int = 2,
    seed: int = 0,
) -> None:
    """Writes a dataset folder of `sample_questions`; questions and features in it are replaced."""
    folder = Path(folder)
    made = list(
        sample_questions(splits, min_objects=min_objects, max_objects=max_objects, seed=seed)
    )
    write_questions(folder, (question for question, _ in made), overwrite=True)
    generator = torch.Generator().manual_seed(seed)
    with StoreWriter(folder, source=QUESTION_SOURCE, overwrite=True) as writer:
        for question, scene in made:
            writer.add(question.image, _scene_regions(scene, generator))
    # The answers come last and show that the folder is complete.
    count_words(question for question, _ in made).save(folder / WORDS)
    count_answers((question for question, _ in made), more_than=0).save(folder / ANSWERS)


# Moving scenes: a clip is an image whose regions are its frames.


def sample_moving_splits(
    sizes: Mapping[str, int], *, frames: int = FRAMES, seed: int = 0
) -> dict[str, list[MovingScene]]:
    """Moving scenes for the splits of a dataset; each is followed by its reverse.

    The set of frames without their order therefore cannot tell opposite actions apart.

    Args:
        sizes: Scenes of each split; the first is the training split.
        frames: Frames of a scene.
        seed: Seed of the scenes.
    """
    found = {}
    for number, (split, size) in enumerate(sizes.items()):
        own = seed + number * UNSEEN_SEEDS
        made = sample_moving_scenes(-(-size // 2), frames=frames, seed=own)
        found[split] = [scene for one in made for scene in (one, one.reversed())][:size]
    return found


def frame_codes(scene: MovingScene) -> NDArray[np.float32]:
    """Features of frames without pixels: each of two things' colour, shape and box, and noise.

    Returns:
        (frames, FRAME_DIM), the same for the same scene.
    """
    looks = np.zeros((scene.frames, len(scene.things), len(COLOURS) + len(SHAPES)), np.float32)
    for place, thing in enumerate(scene.things):
        looks[:, place, COLOURS.index(thing.colour)] = 1
        looks[:, place, len(COLOURS) + SHAPES.index(thing.shape)] = 1
    boxes = np.array([thing.boxes for thing in scene.things], np.float32).swapaxes(0, 1)
    # As far from zero as the looks, so that a small model soon sees what moves.
    codes = np.concatenate((looks, _SPREAD * (boxes - 0.5)), 2).reshape(scene.frames, -1)
    noise = np.random.default_rng(scene.look).normal(0, _FRAME_NOISE, codes.shape)
    return (codes + noise).astype(np.float32)


def write_moving_folder(
    folder: str | Path,
    scenes: Mapping[str, Sequence[MovingScene]],
    *,
    seed: int = 0,
    describe: Callable[[MovingScene], Regions] | None = None,
    source: str = "built-in moving scenes",
) -> None:
    """Writes moving scenes with five captions each, features and, last of all, the vocabulary.

    Args:
        folder: The dataset folder; captions and features in it are replaced.
        scenes: The scenes by split; a scene's id begins with the split.
        seed: Seed of the captions' choice.
        describe: Makes the regions of a scene; None for a row of `frame_codes` per frame.
        source: What makes the features.
    """
    records = []
    with StoreWriter(folder, source=source, overwrite=True) as writer:
        for split, some in scenes.items():
            for number, scene in enumerate(some):
                identity = f"{split}-{number}"
                writer.add(identity, describe(scene) if describe else Regions(frame_codes(scene)))
                rng = random.Random(f"captions {seed}/{identity}")
                captions = tuple(sample_moving_captions(scene, rng))
                records.append(ImageCaptions(identity, split, captions))
    write_captions(folder, records, overwrite=True)
    moving_vocabulary().save(Path(folder) / VOCABULARY)
