"""Questions about scenes that only geometry answers, as a dataset folder.

Yes and no are equally frequent for each question, and appearance says nothing about either: a model
without geometry answers half of them right.
"""

import random
from collections.abc import Iterator, Mapping
from itertools import count, permutations
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
from ngsan.data.synthetic.relations import relation
from ngsan.data.synthetic.scene import Scene, sample_scene
from ngsan.data.synthetic.tensors import CANVAS, appearance

SOURCE = "scenes of ngsan, regions x 32"
"""What made the regions of scenes."""

QUESTIONS = ("are two things near each other?", "is one thing inside another?")
"""What is asked, in turn."""

_TRIES = 2000


def answer_of(scene: Scene, question: str) -> str | None:
    """The answer to one of `QUESTIONS`; None if it is not clear.

    Raises:
        ValueError: It is another question.
    """
    pairs = [(a.box, b.box) for a, b in permutations(scene.things, 2)]
    if question == QUESTIONS[0]:
        found = {relation(a, b, "distance") for a, b in pairs}
        return "yes" if "near" in found else "no" if found == {"far from"} else None
    if question == QUESTIONS[1]:
        return "yes" if any(relation(a, b, "arrangement") == "inside" for a, b in pairs) else "no"
    raise ValueError(f"unknown question {question!r}: one of {', '.join(QUESTIONS)}")


def sample_questions(
    splits: Mapping[str, int], *, fewest: int = 2, most: int = 2, seed: int = 0
) -> Iterator[tuple[Question, Scene]]:
    """Makes scenes and asks one question about each.

    Args:
        splits: How many scenes each split has.
        fewest: Fewest objects in a scene.
        most: Most objects in a scene.
        seed: Seed of the scenes.

    Raises:
        ValueError: Scenes of so many objects hardly ever have some answer.
    """
    numbers = count()
    for split, wanted in splits.items():
        for _ in range(wanted):
            number = next(numbers)
            question, answer = QUESTIONS[number // 2 % 2], ("no", "yes")[number % 2]
            scene = _scene(question, answer, random.Random(f"{seed}/{number}"), fewest, most)
            name = str(number)
            yield (
                Question(
                    name, name, split, question, (answer,) * 10, "yes/no", question.split()[0]
                ),
                scene,
            )


def _scene(question: str, answer: str, rng: random.Random, fewest: int, most: int) -> Scene:
    for _ in range(_TRIES):
        scene = sample_scene(rng, fewest=fewest, most=most)
        if answer_of(scene, question) == answer:
            return scene
    raise ValueError(
        f"most: among {fewest} to {most} objects {question!r} is hardly ever answered by "
        f"{answer!r}; take fewer"
    )


def write_question_scenes(
    folder: str | Path,
    splits: Mapping[str, int],
    *,
    fewest: int = 2,
    most: int = 2,
    seed: int = 0,
) -> None:
    """Writes a dataset folder of `sample_questions`.

    Args:
        folder: Where to; questions and features that are there are replaced.
        splits: How many scenes each split has.
        fewest: Fewest objects in a scene.
        most: Most objects in a scene.
        seed: Seed of scenes and noise.
    """
    folder = Path(folder)
    made = list(sample_questions(splits, fewest=fewest, most=most, seed=seed))
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
