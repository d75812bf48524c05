"""The probability that a caption is right, from what the captioner and the other eyes saw.

A caption is right if it names no object that is not there (CHAIR-s is 0) and its CIDEr against
reference captions is at least 60. A captioner's own probability says little about that: it is high
for common captions. Keywords and detections come from eyes that no caption has trained, and tell
more.

The file, `confidence.json` in a model's folder, has a formula for each quality of captions: the
weights of a logistic regression on the clues below, and how well it did on photographs that it was
not fitted to.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.atomic_io import read_small, write_text
from ngsan.text.objects import find_objects
from ngsan.vision.keywords import KeywordModel

CONFIDENCE = "confidence.json"
"""The file in a model's folder."""

FORMAT = 1
"""Version of the file."""

MIN_CIDER = 60.0
"""CIDEr of a caption that is right, at least; from 0 to about 300 for one caption."""

SCORE_RANGE = 0.005, 0.98
"""Scores of detections are clipped to these."""


@dataclass(frozen=True)
class Report:
    """How predictions came true, each by a formula that was not fitted to its photograph."""

    captions: int
    base_rate: float
    """Share of the captions that are right."""
    auroc: float
    """How often a right caption has the higher confidence than a wrong one."""
    calibration_error: float
    """Expected calibration error, with ten bins."""
    bins: Sequence[Sequence[float]]
    """Captions, mean confidence and share that is right of each bin."""

    def __str__(self) -> str:
        """In one line."""
        return (
            f"{100 * self.base_rate:.1f} % of {self.captions:,} captions are right; AUROC "
            f"{self.auroc:.3f}, calibration error {100 * self.calibration_error:.1f} %"
        )


@dataclass(frozen=True)
class Formula:
    """How confidence follows from clues."""

    weights: Mapping[str, float]
    """By clue."""

    intercept: float

    report: "Report"
    """How it did on photographs that it was not fitted to."""

    def __call__(self, clues: Mapping[str, float]) -> float:
        """The probability that a caption is right.

        Raises:
            ValueError: A clue is missing.
        """
        missing = [name for name in self.weights if name not in clues]
        if missing:
            raise ValueError(f"confidence needs the clue {missing[0]!r}, which the caption lacks")
        log_odds = self.intercept + sum(
            weight * clues[name] for name, weight in self.weights.items()
        )
        return 1 / (1 + math.exp(-max(-500.0, log_odds)))


def word_clues(log_probs: Sequence[float]) -> dict[str, float]:
    """Clues of the captioner itself.

    Args:
        log_probs: Log-probability of each word and of the end.

    Returns:
        "doubt" and "most_doubt", of all words and of the least probable one: 0 for certainty, on a
        logarithmic scale; and "length".
    """
    losses = [max(0.0, -one) for one in log_probs] or [0.0]
    return {
        "doubt": math.log1p(10 * sum(losses) / len(losses)),
        "most_doubt": math.log1p(max(losses)),
        "length": float(len(log_probs)),
    }


def keyword_clues(
    words: Sequence[str], model: KeywordModel, logits: NDArray[np.float32]
) -> dict[str, float]:
    """Clues of the second eye.

    Args:
        words: Of the caption.
        model: Of keywords.
        logits: (W,) of the photograph.

    Returns:
        "keywords", the mean log-odds of the caption's words that the eye knows; and
        "worst_keyword", the least of what the photograph adds to a word's log-odds.
    """
    places = [model.places[word] for word in words if word in model.places]
    if not places:
        return {"keywords": 0.0, "worst_keyword": 0.0}
    raised = logits[places] - model.prior[places]
    return {
        "keywords": float(logits[places].mean()),
        "worst_keyword": float(np.clip(raised, -4, 4).min()),
    }


def object_clues(words: Sequence[str], scores: Mapping[str, float]) -> dict[str, float]:
    """Clues of the detector.

    Args:
        words: Of the caption.
        scores: The highest score of each class anywhere in the photograph.

    Returns:
        "worst_object", the lowest log-odds of an object that the caption names, 0 without any; and
        "missed_object", the highest of one that it does not name.
    """
    log_odds = {name: _log_odds(score) for name, score in scores.items()}
    named = {mention.name for mention in find_objects(words)} & log_odds.keys()
    return {
        "worst_object": min((log_odds[name] for name in named), default=0.0),
        "missed_object": max((log_odds[name] for name in log_odds.keys() - named), default=0.0),
    }


def _log_odds(score: float) -> float:
    kept = min(max(score, SCORE_RANGE[0]), SCORE_RANGE[1])
    return math.log(kept / (1 - kept))


def save_formulas(path: Path, formulas: Mapping[str, Formula]) -> None:
    """Writes the formulas of qualities."""
    content = {"format": FORMAT, **{name: asdict(one) for name, one in formulas.items()}}
    write_text(path, json.dumps(content, indent=1) + "\n")


def load_formulas(path: Path) -> dict[str, Formula]:
    """Reads the formula of each quality; none if there is no file.

    Raises:
        ValueError: The file is damaged or of another format.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_small(path))
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        return {
            name: Formula(**{**one, "report": Report(**one["report"])})
            for name, one in content.items()
        }
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged: {error}; fit it again") from error
