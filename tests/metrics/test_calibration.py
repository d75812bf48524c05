"""Calibration error and AUROC against their definitions, term by term."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngsan.metrics.calibration import auroc, calibration_error, reliability

PREDICTIONS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.31, 0.5, 0.99, 1.0]), st.booleans()),
    min_size=1,
    max_size=40,
)


def by_definition(predictions, bins):
    total = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        mine = [
            (chance, true)
            for chance, true in predictions
            if low <= chance < high or (chance == 1 and number == bins - 1)
        ]
        if mine:
            chance = sum(one for one, _ in mine) / len(mine)
            share = sum(true for _, true in mine) / len(mine)
            total += len(mine) / len(predictions) * abs(chance - share)
    return total


@given(PREDICTIONS, st.sampled_from([1, 2, 4, 10]))
def test_calibration_error_is_the_sum_over_bins(predictions, bins):
    chances, outcomes = map(np.array, zip(*predictions, strict=True))
    found = reliability(chances, outcomes, bins=bins)
    assert calibration_error(found) == pytest.approx(by_definition(predictions, bins))
    assert sum(one.total for one in found) == len(predictions)


@given(PREDICTIONS)
def test_auroc_is_the_share_of_pairs_in_order(predictions):
    true = [score for score, right in predictions if right]
    false = [score for score, right in predictions if not right]
    scores, outcomes = map(np.array, zip(*predictions, strict=True))
    if not true or not false:
        with pytest.raises(ValueError, match="same"):
            auroc(scores, outcomes)
        return
    pairs = [(a > b) + (a == b) / 2 for a in true for b in false]
    assert auroc(scores, outcomes) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("bad", [[], [1.1], [-0.1], [np.nan]])
def test_numbers_that_are_no_probabilities_are_rejected(bad):
    with pytest.raises(ValueError, match="from 0 to 1"):
        reliability(np.array(bad), np.ones(len(bad), bool))
