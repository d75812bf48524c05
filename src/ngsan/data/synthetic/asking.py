"""Questions about scenes that only geometry answers, as a dataset folder."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

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
from ngsan.data.synthetic.relations import family_of, relation
from ngsan.data.synthetic.scene import Scene, sample_scene
from ngsan.data.synthetic.tensors import CANVAS, appearance

ASKED = {
    "bigger": "bigger than",
    "smaller": "smaller than",
    "left": "left of",
    "right": "right of",
    "upper": "above",
    "lower": "below",
}
"""What a thing is called in a question, and what is true of it with regard to all others."""

SIZES = ("bigger", "smaller")
"""Words whose answers Eq. 8 tells; the others need signed geometry, and more scenes to learn."""

SOURCE = "scenes of ngsan, regions x 32"
"""What made the regions of scenes."""


def ask(scene: Scene, rng: random.Random, asked: Sequence[str] = SIZES) -> Question | None:
    """A question such as "what colour is the bigger thing?".

    Appearance tells which colours and shapes there are. Which of them is the answer, boxes alone
    tell.

    Args:
        scene: The scene.
        rng: Where chance comes from.
        asked: Words of `ASKED`.

    Returns:
        The question, of image "0" in the training split; None if nothing clear can be asked.
    """
    found = [
        (word, thing)
        for word in asked
        for thing in scene.things
        if all(
            relation(thing.box, other.box, family_of(ASKED[word])) == ASKED[word]
            for other in scene.things
            if other is not thing
        )
    ]
    if not found:
        return None
    word, thing = rng.choice(found)
    look = rng.choice(("colour", "shape"))
    answer = thing.colour if look == "colour" else thing.shape
    question = f"what {look} is the {word} thing?"
    return Question("0", "0", "train", question, (answer,) * 10, "other", f"what {look}")


def write_question_scenes(
    folder: str | Path,
    splits: Mapping[str, int],
    *,
    fewest: int = 2,
    most: int = 2,
    seed: int = 0,
    asked: Sequence[str] = SIZES,
) -> None:
    """Writes a dataset folder of scenes, one question each.

    Args:
        folder: Where to; questions and features that are there are replaced.
        splits: How many scenes each split has.
        fewest: Fewest objects in a scene.
        most: Most objects in a scene.
        seed: Seed of scenes, questions and noise.
        asked: Words to ask with, of `ASKED`.
    """
    folder = Path(folder)
    made = list(_sample(splits, fewest=fewest, most=most, seed=seed, asked=asked))
    write_questions(folder, (question for question, _ in made), overwrite=True)
    generator = torch.Generator().manual_seed(seed)
    with StoreWriter(folder, source=SOURCE, overwrite=True) as writer:
        for question, scene in made:
            boxes = np.array([*(thing.box for thing in scene.things), CANVAS], np.float32)
            features = appearance(scene, generator).numpy()
            writer.add(question.image, Regions(features, boxes))
    # The answers come last and show that the folder is complete.
    count_words(question for question, _ in made).save(folder / WORDS)
    count_answers((question for question, _ in made), more_than=0).save(folder / ANSWERS)


def _sample(
    splits: Mapping[str, int], *, fewest: int, most: int, seed: int, asked: Sequence[str]
) -> Iterator[tuple[Question, Scene]]:
    number = 0
    for split, count in splits.items():
        left = count
        while left:
            number += 1
            rng = random.Random(f"{seed}/question/{number}")
            scene = sample_scene(rng, fewest=fewest, most=most)
            question = ask(scene, rng, asked)
            if question is None:
                continue
            left -= 1
            yield replace(question, id=str(number), image=str(number), split=split), scene
