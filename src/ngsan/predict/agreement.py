"""Captions that agree with the second eye: evidence that the search adds to log-probabilities.

Keywords speak for or against words. Detections only count where they contradict a captioner that
would name an object that is not there, or leave out one that fills a part of the photograph: words
for a kind of object that the detector sees nowhere cost something, and those for one that it sees
clearly gain something.

Shapes: `B` photographs, `V` words of the captioner, `W` words of the keywords, `C` classes of the
detector, `K` detections.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.atomic_io import write_text
from ngsan.predict.second_eye import SecondEye, Sight
from ngsan.text.objects import words_for_objects
from ngsan.text.vocabulary import Vocabulary

AGREEMENT = "agreement.json"
"""The file in a model's folder. Without it, captions ignore the second eye."""

FORMAT = 1
"""Version of the file."""


@dataclass(frozen=True)
class Agreement:
    """How much each kind of evidence counts, in nats."""

    keyword_weight: float
    """Of how far a word's log-odds are from what they are without any photograph."""
    keyword_limit: float
    """That distance is at most this, either way."""
    absent_below: float
    """A class whose highest score anywhere is less is not there."""
    absent_cost: float
    """Of a word for a class that is not there."""
    present_above: float
    """An object with at least this score is there."""
    present_area: float
    """Share of the photograph that it must cover to be missed in a caption."""
    present_gain: float
    """Of a word for such an object."""

    def save(self, path: Path) -> None:
        """Writes the file."""
        write_text(path, json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Agreement | None":
        """Reads the file; None if there is none.

        Raises:
            ValueError: It is damaged or of another format.
        """
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            found = cls(**{name: float(value) for name, value in content.items()})
            if not np.isfinite([*asdict(found).values()]).all():
                raise ValueError("a value is not finite")
            return found
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: damaged: {error}; fit it again") from error


class Evidence:
    """What the second eye says about the words of a captioner."""

    def __init__(self, eye: SecondEye, vocabulary: Vocabulary) -> None:
        """Finds out which of its words the keywords and the detector know."""
        known = [word for word in eye.keywords.words if word in vocabulary]
        self._words = np.array(vocabulary.encode(known), np.int64)
        self._places = np.array([eye.keywords.places[word] for word in known], np.int64)
        self._prior = eye.keywords.prior[self._places]
        number = {name: place for place, name in enumerate(eye.detector.names)}
        named = {
            word: [number[name] for name in names if name in number]
            for word, names in words_for_objects().items()
            if word in vocabulary
        }
        named = {word: classes for word, classes in named.items() if classes}
        self._named = np.array(vocabulary.encode([*named]), np.int64)
        # (named words, C)
        self._names = np.zeros((len(named), len(number)), np.bool_)
        for row, classes in zip(self._names, named.values(), strict=True):
            row[classes] = True
        self._size = len(vocabulary)

    def __call__(self, agreement: Agreement, sights: Sequence[Sight]) -> NDArray[np.float32]:
        """(B, V) the evidence of photographs."""
        found = np.zeros((len(sights), self._size), np.float32)
        limit = agreement.keyword_limit
        for row, sight in zip(found, sights, strict=True):
            raised = (sight.logits[self._places] - self._prior).clip(-limit, limit)
            row[self._words] = agreement.keyword_weight * raised
            absent = sight.found.class_scores < agreement.absent_below
            row[self._named] -= agreement.absent_cost * (~self._names | absent).all(1)
            missed = np.zeros(len(absent), np.bool_)
            missed[_large(sight, agreement)] = True
            row[self._named] += agreement.present_gain * (self._names & missed).any(1)
        return found


def _large(sight: Sight, agreement: Agreement) -> NDArray[np.int64]:
    """The classes of the objects that a caption should not leave out."""
    boxes, scores, classes = sight.found.boxes, sight.found.scores, sight.found.classes
    areas = boxes[:, 2] * boxes[:, 3]
    return classes[(scores >= agreement.present_above) & (areas >= agreement.present_area)]
