"""The second eye: a detector and keywords that no caption has trained, looking at photographs.

Shapes: `S` side of a square, `W` words of the keywords.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngsan.vision.detector import (
    MIN_CONFIDENCE,
    Detections,
    Detector,
    Object,
    load_detector,
    objects_of,
)
from ngsan.vision.keywords import LIMIT, Keyword, KeywordModel, load_keywords


class Sight(NamedTuple):
    """What the second eye sees in a photograph."""

    found: Detections
    logits: NDArray[np.float32]
    """(W,) log-odds of words."""


class SecondEye:
    """Opens its parts when they are first needed. Several threads may use it."""

    def __init__(
        self,
        open_detector: Callable[[], Detector] = load_detector,
        open_keywords: Callable[[], KeywordModel] = load_keywords,
    ) -> None:
        """Remembers how to open the parts."""
        self._open_detector, self._open_keywords = open_detector, open_keywords
        self._detector: Detector | None = None
        self._keywords: KeywordModel | None = None
        self._opening = Lock()

    @property
    def detector(self) -> Detector:
        """The detector of objects."""
        with self._opening:
            if self._detector is None:
                self._detector = self._open_detector()
        return self._detector

    @property
    def keywords(self) -> KeywordModel:
        """The model of keywords."""
        with self._opening:
            if self._keywords is None:
                self._keywords = self._open_keywords()
        return self._keywords

    @property
    def sides(self) -> tuple[int, int]:
        """S of the squares that it looks at."""
        return self.detector.size, self.keywords.size

    def look(self, squares: Mapping[int, NDArray[np.uint8]]) -> Sight:
        """Looks at a photograph.

        Args:
            squares: (S, S, 3) by S, for at least its own sides.
        """
        found = self.detector.detect(squares[self.detector.size])
        return Sight(found, self.keywords.logits(squares[self.keywords.size][None])[0])

    def objects(self, sight: Sight) -> list[Object]:
        """The objects of a photograph that people may read, the most certain first."""
        found = objects_of(sight.found, self.detector.names)
        return [one for one in found if one.confidence >= MIN_CONFIDENCE]

    def ranked_keywords(self, sight: Sight) -> list[Keyword]:
        """The keywords of a photograph, the most probable first."""
        model = self.keywords
        return model.rank(model.confidences(sight.logits[None])[0], LIMIT)
