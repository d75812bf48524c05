"""Learns from which clues to tell that a caption is right.

Shapes: `M` captions, `D` clues.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ngsan.fit.logistic import fit_logistic, probabilities
from ngsan.metrics.calibration import auroc, calibration_error, reliability
from ngsan.metrics.captions import TokenizedCaptions
from ngsan.metrics.cider import Cider
from ngsan.metrics.hallucination import Hallucination
from ngsan.metrics.scores import score_captions
from ngsan.predict.confidence import MIN_CIDER, Formula, Report

FOLDS = 10
"""Parts of the photographs, each of which is predicted by a fit to the others."""

_RIDGE = 1.0


def right_captions(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    objects: Mapping[str, Sequence[str]],
) -> dict[str, bool]:
    """Which captions are right: no object that is not there, and a CIDEr of at least 60.

    Args:
        captions: The caption of each image.
        references: Of these images and of others, which only count for CIDEr's document
            frequencies.
        objects: COCO's classes of the boxes of each image.
    """
    others = {image: mine[0] for image, mine in references.items()}
    tokenized = TokenizedCaptions.tokenize({**others, **captions}, references)
    cider = score_captions(tokenized, [Cider()]).per_image["CIDEr"]
    found = Hallucination(objects).find(tokenized)
    return {
        image: bool(score >= MIN_CIDER) and not found[image].hallucinated
        for image, score in zip(tokenized.ids, cider, strict=True)
        if image in captions
    }


def fit_confidence(
    clues: Sequence[Mapping[str, float]], right: Sequence[bool], *, seed: int = 0
) -> Formula:
    """Learns a formula from all captions, and reports on fits to a part of them.

    Args:
        clues: Of each caption, all with the same names.
        right: Whether it is right.
        seed: Seed of the folds.

    Raises:
        ValueError: There are too few captions, or all are right or all wrong.
    """
    names, outcomes = list(clues[0]), np.array(right, np.bool_)
    if len(clues) < 2 * FOLDS:
        raise ValueError(f"{len(clues)} captions are too few: at least {2 * FOLDS} are needed")
    inputs = np.array([[one[name] for name in names] for one in clues], np.float64)
    mean, deviation = inputs.mean(0), inputs.std(0)
    deviation[deviation == 0] = 1
    scaled = np.concatenate(((inputs - mean) / deviation, np.ones((len(inputs), 1))), 1)
    predicted = cross_validate(scaled, outcomes, seed=seed)
    bins = reliability(predicted, outcomes)
    found = fit_logistic(scaled, outcomes, ridge=_RIDGE)
    weights = found[:-1] / deviation
    return Formula(
        dict(zip(names, weights.round(6).tolist(), strict=True)),
        round(float(found[-1] - weights @ mean), 6),
        Report(
            captions=len(outcomes),
            base_rate=round(float(outcomes.mean()), 4),
            auroc=round(auroc(predicted, outcomes), 4),
            calibration_error=round(calibration_error(bins), 4),
            bins=[(one.total, round(one.predicted, 4), round(one.observed, 4)) for one in bins],
        ),
    )


def cross_validate(
    inputs: NDArray[np.float64], outcomes: NDArray[np.bool_], *, seed: int = 0
) -> NDArray[np.float64]:
    """(M,) predictions, each by a fit to the other folds.

    Args:
        inputs: (M, D).
        outcomes: (M,).
        seed: Seed of the folds.
    """
    fold = np.random.default_rng(seed).permutation(len(outcomes)) % FOLDS
    predicted = np.empty(len(outcomes))
    for each in range(FOLDS):
        rest, mine = fold != each, fold == each
        found = fit_logistic(inputs[rest], outcomes[rest], ridge=_RIDGE)
        predicted[mine] = probabilities(inputs[mine] @ found)
    return predicted
