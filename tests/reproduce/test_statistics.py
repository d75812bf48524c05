"""Means, tests over seeds and images, and power, against closed forms and simulation."""

import itertools
import math
import statistics

import numpy as np
import pytest

from ngsan.metrics.translation import bleu_of_counts
from ngsan.reproduce.statistics import (
    MixedModel,
    critical_value,
    detectable,
    mean_and_deviation,
    paired_interval,
    paired_p,
    student_tail,
    unit_scores,
)


def test_mean_and_deviation_equal_the_library():
    values = [118.2, 117.9, 119.4, 118.8]
    mean, deviation = mean_and_deviation(values)
    assert (mean, deviation) == pytest.approx((statistics.mean(values), statistics.stdev(values)))
    assert mean_and_deviation([3.0]) == (3.0, None)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.5, 12.7, 200.0])
def test_student_tail_equals_closed_forms(t):
    assert student_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-6, abs=1e-12)
    assert student_tail(t, 2) == pytest.approx(
        0.5 - t / (2 * math.sqrt(2 + t * t)), rel=1e-6, abs=1e-9
    )
    four = 0.5 - 3 / 8 * (t / math.sqrt(1 + t * t / 4)) * (1 - t * t / (12 * (1 + t * t / 4)))
    assert student_tail(t, 4) == pytest.approx(four, rel=1e-6, abs=1e-9)


def test_student_tail_converges_to_normal():
    for t in (0.5, 1.96, 3.0):
        normal = 1 - statistics.NormalDist().cdf(t)
        assert student_tail(t, 2000) == pytest.approx(normal, abs=2e-4)


def test_critical_values_equal_printed_tables():
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 30: 2.042, 1000: 1.962}
    for freedom, value in printed.items():
        assert critical_value(freedom) == pytest.approx(value, abs=6e-4)


def test_paired_test_equals_the_closed_form_of_three_seeds():
    values = [1.0, 2.0, 6.0]
    t = 3 / (statistics.stdev(values) / math.sqrt(3))
    assert paired_p(values) == pytest.approx(1 - t / math.sqrt(2 + t * t))
    low, high = paired_interval(values)
    assert (low + high) / 2 == pytest.approx(3)
    assert high - 3 == pytest.approx(4.302653 * statistics.stdev(values) / math.sqrt(3), rel=1e-6)
    # An interval that ends at 0 has a p-value of 5 %.
    assert paired_p([value - low for value in values]) == pytest.approx(0.05)


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0], [1.0, 1.0, 1.0]])
def test_too_few_or_equal_seeds_have_no_test(values):
    assert paired_interval(values) is None
    assert paired_p(values) is None
    units = np.add.outer(values, np.arange(5.0))
    assert MixedModel.fit(units) is None


def mean_squares(differences):
    """The mean squares of seeds, units and the rest, by sums over single values."""
    seeds, units = differences.shape
    mean = sum(differences.ravel()) / seeds / units
    rows = [sum(differences[seed]) / units for seed in range(seeds)]
    columns = [sum(differences[:, unit]) / seeds for unit in range(units)]
    rest = sum(
        (differences[seed, unit] - rows[seed] - columns[unit] + mean) ** 2
        for seed, unit in itertools.product(range(seeds), range(units))
    )
    return (
        mean,
        units * sum((row - mean) ** 2 for row in rows) / (seeds - 1),
        seeds * sum((column - mean) ** 2 for column in columns) / (units - 1),
        rest / (seeds - 1) / (units - 1),
    )


@pytest.mark.parametrize("of_units", [0.0, 3.0])
def test_test_over_seeds_and_units_equals_the_analysis_of_variance(of_units):
    random = np.random.default_rng(5)
    differences = (
        0.8 + random.normal(0, 0.7, (3, 1)) + random.normal(0, of_units, 40)
    ) + random.normal(0, 2, (3, 40))
    mean, of_seeds, units, rest = mean_squares(differences)
    added = max(units - rest, 0)
    t = abs(mean) / math.sqrt((of_seeds + added) / 120)
    weights = of_seeds / (of_seeds + added), added / (of_seeds + added)
    tails = 1 - t / math.sqrt(2 + t * t), 2 * student_tail(t, 39)
    found = MixedModel.fit(differences)
    assert found.p == pytest.approx(weights[0] * tails[0] + weights[1] * tails[1])
    assert (weights[1] > 0.3) == (of_units > 0)
    # An interval that ends at 0 has a p-value of 5 %.
    moved = MixedModel.fit(differences - found.mean + found.half_width)
    assert moved.p == pytest.approx(0.05)


def test_units_without_effect_leave_the_test_over_seeds():
    random = np.random.default_rng(1)
    rest = random.normal(0, 1, (4, 200))
    rest -= rest.mean(axis=0)  # no unit differs from another
    differences = rest + np.array([[0.5], [1.0], [0.2], [0.9]])
    values = list(differences.mean(axis=1))
    found = MixedModel.fit(differences)
    assert found.p == pytest.approx(paired_p(values))
    low, high = paired_interval(values)
    assert 2 * found.half_width == pytest.approx(high - low)


@pytest.mark.parametrize("of_units", [0.0, 6.0, 30.0])
def test_equal_models_are_called_different_in_five_percent(of_units):
    random = np.random.default_rng(int(of_units))
    found = []
    for _ in range(1000):
        differences = (
            random.normal(0, 0.7, (3, 1))
            + random.normal(0, of_units, 300)
            + random.normal(0, 17, (3, 300))
        )
        found.append(MixedModel.fit(differences).p < 0.05)
    assert 0.03 <= np.mean(found) <= 0.07


def test_unit_scores_of_a_mean_are_the_units_values():
    values = np.arange(7.0)[:, None] ** 2
    assert unit_scores(values, lambda sums: sums[..., :1]) == pytest.approx(values[:, 0])


def test_unit_scores_of_bleu_have_its_mean_and_its_spread():
    random = np.random.default_rng(2)

    def sample():
        length = random.integers(8, 20, 400)
        totals = length[:, None] - np.arange(4)
        matches = random.binomial(totals, [0.7, 0.5, 0.35, 0.25])
        return np.column_stack([matches, totals, length, length + random.integers(-2, 3, 400)])

    def score(sums):
        return bleu_of_counts(sums)[..., None]

    counts = sample().astype(float)
    pseudo = unit_scores(counts, score)
    whole = bleu_of_counts(counts.sum(axis=0))
    assert pseudo.mean() == pytest.approx(whole, abs=0.05)
    spread = np.std([bleu_of_counts(sample().sum(axis=0)) for _ in range(600)])
    assert pseudo.std(ddof=1) / math.sqrt(400) == pytest.approx(spread, rel=0.12)


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_detectable_difference_is_found_with_that_power(seeds):
    random = np.random.default_rng(seeds)
    true = detectable(0.6, seeds)
    values = random.normal(true, 0.6, (40_000, seeds))
    t = values.mean(axis=1) / values.std(axis=1, ddof=1) * math.sqrt(seeds)
    assert np.mean(np.abs(t) > critical_value(seeds - 1)) == pytest.approx(0.8, abs=0.01)
