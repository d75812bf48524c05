"""Measures a captioner that learns without training, from the user's nearest pictures alone.

    python benchmarks/finetune.py make DATASET IMAGES FOLDER
    python benchmarks/nearest.py FOLDER IMAGES WORK

WORK is a folder for the encoded pictures; that of `ngsan finetune` of the same captions will do. It
compares, on the topic's held-out pictures in the other style (see benchmarks/finetune.py):

- the caption of the nearest pictures that agrees most with the others (no captioner at all);
- the captioner with rows for the new words, as fine-tuning adds them before it trains;
- the same, preferring the words of the nearest pictures while decoding.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import finetune
import numpy as np
import torch
from numpy.typing import NDArray

from ngsan.data.dataset import CaptionDataset
from ngsan.finetuning.data import write_data
from ngsan.finetuning.encoded import PhotoReader, Start, top_of
from ngsan.finetuning.job import open_job
from ngsan.finetuning.words import add_words
from ngsan.models.steps import CaptionerSteps
from ngsan.predict.captioner import PHOTO_DECODING
from ngsan.search import build_search

FLOOR = 0.002
"""Share of captions that counts as never."""


class Preferring:
    """The steps of a captioner, with a bonus for words."""

    def __init__(self, steps: CaptionerSteps, bonus: torch.Tensor) -> None:
        self._steps, self._bonus = steps, bonus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)

    def step(self, words: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
        """See `ngsan.search.StepModel.step`."""
        return self._steps.step(words, parents) + self._bonus[:, None]


def captions_of(data: CaptionDataset, places: NDArray[np.int64]) -> list[str]:
    """The captions of some pictures."""
    return [text for place in places for text in data.captions(int(place))]


def nearest(wanted: NDArray[np.float32], known: NDArray[np.float32]) -> NDArray[np.int64]:
    """(B, P) the known pictures by their similarity to each wanted one, the nearest first."""
    first, second = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (wanted, known))
    return np.argsort(-first @ second.T, axis=1)


def agreeing(captions: list[str]) -> str:
    """The caption that shares most words with the others."""
    words = [set(text.split()) for text in captions]
    shares = [np.mean([len(one & other) / len(one | other) for other in words]) for one in words]
    return captions[int(np.argmax(shares))]


def bonuses(data: CaptionDataset, near: NDArray[np.int64], weight: float) -> torch.Tensor:
    """(B, V) the bonus of each word, by the share of captions of nearest pictures with it."""
    vocabulary = data.vocabulary
    found = torch.zeros(len(near), len(vocabulary))
    for row, places in enumerate(near):
        captions = captions_of(data, places)
        counts = np.zeros(len(vocabulary))
        for text in captions:
            counts[list(set(vocabulary.encode(vocabulary.tokenize(text))))] += 1
        shares = counts / len(captions)
        scale = np.log((shares + FLOOR) / FLOOR) / np.log(1 / FLOOR + 1)
        found[row] = weight * torch.from_numpy(scale).float()
    found[:, 0] = weight * 0.8  # a caption may end
    return found


def main() -> None:
    """Prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("folder", "images", "work"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    job = open_job(options.images, options.folder / "train.jsonl", replay=False)
    start = Start.load(job.model)
    write_data(options.work, job, start, None, lambda entry: None)
    data = CaptionDataset(options.work, "train")
    top = top_of(start.model, 0).eval()
    add_words(start.model, top, data, len(start.vocabulary))
    topic = json.loads((options.folder / "heldout.json").read_text())["topic"]
    references = {
        image: [finetune.rewrite(text) for text in texts] for image, texts in topic.items()
    }
    files = {image: finetune.name(options.images, image) for image in topic}
    read = PhotoReader(Start.load(job.model), 0).read(files, lambda image, error: None)
    held = np.stack([regions.features for _, regions in read]).astype(np.float32)
    mine = np.stack([data.store[image].features.astype(np.float32).mean(0) for image in data.ids])
    middle = mine.mean(0)
    units = [
        part / np.linalg.norm(part, axis=1, keepdims=True)
        for part in (held.mean(1) - middle, mine - middle)
    ]
    order = np.argsort(-units[0] @ units[1].T, axis=1)

    def show(what: str, captions: list[str]) -> None:
        value = finetune.cider(dict(zip(topic, captions, strict=True)), references)
        print(f"{what}: CIDEr {value:.1f}, such as {captions[0]!r}", flush=True)

    for count in (1, 10, 40):
        texts = [
            [text for place in row[:count] for text in data.captions(int(place))] for row in order
        ]
        show(f"caption of the {count} nearest", [agreeing(captions) for captions in texts])
    for weight in (0.0, 6.0, 10.0):
        bonus = bonuses(data, order[:, :20], weight)
        with torch.inference_mode():
            steps = Preferring(CaptionerSteps(top, torch.from_numpy(held)), bonus)
            written = build_search(steps, PHOTO_DECODING, data.vocabulary).run()  # type: ignore[arg-type]
        words = [data.vocabulary.decode(row[0].tolist()) for row in written.words]
        show(f"preferring words with weight {weight:g}", [" ".join(one) for one in words])


if __name__ == "__main__":
    main()
