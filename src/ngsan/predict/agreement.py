"""Captions that agree with the second eye: evidence that the search adds to log-probabilities.

Keywords speak for or against words. Detections only count where they contradict a captioner that
would name an object that is not there, or leave out one that fills a part of the photograph: words
for a kind of object that the detector sees nowhere cost something, and those for one that it sees
clearly gain something. No keyword speaks for an object that the detector sees nowhere.

Shapes: `B` photographs, `V` words of the captioner, `W` words of the keywords, `C` classes of the
detector, `K` detections.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.atomic_io import read_small, write_text
from ngsan.predict.confidence import SCORE_RANGE
from ngsan.predict.second_eye import SecondEye, Sight
from ngsan.text.objects import plural_forms, words_for_objects
from ngsan.text.vocabulary import Vocabulary
from ngsan.vision.detector import Detections

AGREEMENT = "agreement.json"
"""The file in a model's folder. Without it, captions ignore the second eye."""

FORMAT = 1
"""Version of the file."""

_NUMBERS = {2: "two", 3: "three"}
_SURE, _UNSURE = 0.5, 0.15
"""Objects are counted if all that could be one are sure."""
_COUNTED_AREA = 0.02


@dataclass(frozen=True)
class Agreement:
    """How much each kind of evidence counts, in nats."""

    keyword_weight: float
    """Of how far a word's log-odds are from what they are without any photograph."""
    keyword_limit: float
    """That distance is at most this, either way."""
    absent_below: float
    """A class whose highest score anywhere is less is hardly there."""
    absent_weight: float
    """Of how far its log-odds are below that, against every word for it."""
    present_above: float
    """An object with a higher score is there."""
    present_area: float
    """Share of the photograph that it, with others of its class, must cover to be missed in a
    caption."""
    present_weight: float
    """Of how far its log-odds are above that, for every word for it."""
    count_weight: float
    """For the number of objects of a class that are two or three, and for its plurals."""
    limit: float
    """Detections change a word by at most this, either way."""

    def scaled(self, share: float) -> "Agreement":
        """The same with a share of every weight."""
        weights = {name: value for name, value in asdict(self).items() if "weight" in name}
        return replace(self, **{name: share * value for name, value in weights.items()})

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
            content = json.loads(read_small(path))
            if content.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            found = cls(**{name: float(value) for name, value in content.items()})
            if not np.isfinite([*asdict(found).values()]).all():
                raise ValueError("a value is not finite")
            return found
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path}: damaged: {error}; fit it again") from error


class Evidence:
    """What the second eye says about the words of a captioner."""

    def __init__(self, eye: SecondEye, vocabulary: Vocabulary) -> None:
        """Finds out which of its words the keywords and the detector know."""
        known = [word for word in eye.keywords.words if word in vocabulary]
        self._words = np.array(vocabulary.encode(known), np.int64)
        self._places = np.array([eye.keywords.places[word] for word in known], np.int64)
        self._prior = eye.keywords.prior[self._places]
        self._size, classes = len(vocabulary), eye.detector.names
        number = {name: place for place, name in enumerate(classes)}
        named = {
            word: [number[name] for name in names if name in number]
            for word, names in words_for_objects().items()
            if word in vocabulary
        }
        named = {word: numbers for word, numbers in named.items() if numbers}
        self._named = np.array(vocabulary.encode([*named]), np.int64)
        self._names = np.zeros((len(named), len(number)), np.bool_)  # (named words, C)
        for row, numbers in zip(self._names, named.values(), strict=True):
            row[numbers] = True
        forms = [plural_forms(name) for name in classes]
        self._forms = [
            tuple(np.array(vocabulary.encode([w for w in of if w in vocabulary])) for of in pair)
            for pair in forms
        ]
        self._numbers = {
            count: vocabulary.encode([word])[0]
            for count, word in _NUMBERS.items()
            if word in vocabulary
        }

    def __call__(self, agreement: Agreement, sights: Sequence[Sight]) -> NDArray[np.float32]:
        """(B, V) the evidence of photographs."""
        found = np.zeros((len(sights), self._size), np.float32)
        for row, sight in zip(found, sights, strict=True):
            limit = agreement.keyword_limit
            raised = (sight.logits[self._places] - self._prior).clip(-limit, limit)
            row[self._words] = agreement.keyword_weight * raised
            absent, missed = _contradictions(agreement, sight.found)
            cost = np.where(self._names, absent, np.inf).min(1, initial=np.inf)
            gain = np.where(self._names, missed, 0).max(1, initial=0)
            heard = row[self._named]  # no keyword speaks for what the detector does not see
            row[self._named] = np.where(cost > 0, np.minimum(heard, 0), heard) - cost + gain
            if agreement.count_weight:
                self._count(row, agreement, sight.found)
        return found

    def _count(self, row: NDArray[np.float32], agreement: Agreement, found: Detections) -> None:
        """Speaks for "two" and the plural where there are clearly two of a class."""
        large = found.boxes[:, 2] * found.boxes[:, 3] >= _COUNTED_AREA
        sure = large & (found.scores >= _SURE)
        for each in np.unique(found.classes[sure]).tolist():
            mine = found.classes == each
            count = int((mine & sure).sum())
            if count in self._numbers and count == int((mine & (found.scores >= _UNSURE)).sum()):
                singular, plural = self._forms[each]
                row[self._numbers[count]] += agreement.count_weight
                row[plural] += agreement.count_weight
                row[singular] -= agreement.count_weight


def _contradictions(
    agreement: Agreement, found: Detections
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(C,) what each class costs that is not there, and gains that must not be left out."""
    absent = _log_odds(agreement.absent_below) - _log_odds(found.class_scores)
    absent = (agreement.absent_weight * absent).clip(0, agreement.limit)
    there = found.scores >= agreement.present_above
    areas, best = np.zeros((2, len(absent)))
    np.add.at(areas, found.classes[there], found.boxes[there, 2] * found.boxes[there, 3])
    np.maximum.at(best, found.classes[there], found.scores[there])
    gain = _log_odds(best) - _log_odds(agreement.present_above)
    gain = (agreement.present_weight * gain).clip(0, agreement.limit)
    return absent, np.where(areas >= agreement.present_area, gain, 0)


def _log_odds(scores: NDArray[np.floating[Any]] | float) -> NDArray[np.float64]:
    kept = np.clip(np.asarray(scores, np.float64), *SCORE_RANGE)
    return np.log(kept / (1 - kept))
