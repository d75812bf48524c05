"""AUC, shares and relation words against counts of all pairs."""

import itertools
import math

import numpy as np
import pytest

from ngsan.metrics.relations import (
    auc,
    estimate,
    estimate_auc,
    estimate_share,
    relation_words_in_captions,
)


def counted(scores, true):
    """The AUC by comparing each true sentence with each false one."""
    wins = [
        1.0 if scores[a] > scores[b] else 0.5 if scores[a] == scores[b] else 0.0
        for a, b in itertools.product(range(len(scores)), repeat=2)
        if true[a] and not true[b]
    ]
    return sum(wins) / len(wins)


@pytest.mark.parametrize("decimals", [0, 6])  # with and without ties
def test_auc_compares_all_pairs(decimals):
    random = np.random.default_rng(decimals)
    scores, true = random.normal(0, 2, 40).round(decimals), random.random(40) < 0.4
    assert auc(scores, true) == pytest.approx(counted(scores, true))
    weights = random.integers(0, 4, 40)
    again = np.repeat(np.arange(40), weights)
    assert auc(scores, true, weights.astype(float)) == pytest.approx(
        counted(scores[again], true[again])
    )


def test_auc_of_one_class_is_nan():
    assert math.isnan(auc(np.arange(3.0), np.ones(3, np.bool_)))
    assert math.isnan(auc(np.array([]), np.array([], np.bool_)))


def test_sentences_of_an_image_are_drawn_together():
    # Two images whose sentences are all right or all wrong: a set has 0, 1 or 2 of the first.
    images = ["a"] * 10 + ["b"] * 10
    right = np.array([1.0] * 10 + [0.0] * 10)
    drawn = estimate_share(right, images)
    assert drawn.value == 0.5
    assert drawn.interval == (0.0, 1.0)
    alone = estimate_share(right, [str(number) for number in range(20)])
    assert 0.2 < alone.interval[0] < 0.4 < 0.6 < alone.interval[1] < 0.8


def test_interval_of_a_mean_equals_the_standard_error():
    random = np.random.default_rng(0)
    values = random.normal(3, 2, 800)
    found = estimate_share(values, [str(number) for number in range(800)])
    half = 1.96 * values.std() / math.sqrt(800)
    assert found.interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)


def test_estimates_of_nothing_are_nan():
    assert math.isnan(estimate_share(np.array([]), []).value)
    assert math.isnan(estimate_auc(np.array([]), np.array([], np.bool_), []).value)
    assert estimate(lambda weights: 2.0, []).interval == (2.0, 2.0)
    # As of captions without any relation word, of some images.
    assert math.isnan(estimate_share(np.zeros(3), ["a", "b", "c"], np.zeros(3)).interval[0])


def words(text):
    return text.split()


def test_relation_words_of_captions():
    captions = {"1": words("a cat on a mat near a dog"), "2": words("a red ball")}
    references = {
        "1": [*map(words, ("a cat on a mat", "cat on and under things", "under a cat"))],
        "2": [words("a ball in a box"), words("ball in box")],
    }
    found = relation_words_in_captions(captions, references)
    assert found.precision.value == 1 / 2  # "on" is in a reference, "near" is not
    assert found.recall.value == 1 / 3  # of "on", "under" and "in"
