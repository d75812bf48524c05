"""Means, t-tests and the paired test, against closed forms and brute force."""

import itertools
import math
import statistics

import numpy as np
import pytest

from ngsan.reproduce.report import mean_and_deviation, paired, student_tail, welch


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


def test_welch_equals_the_pooled_test_for_equal_variances():
    # Equal sizes and deviations: the pooled t-test with 2n - 2 degrees of freedom.
    first, second = [1.0, 2.0, 3.0], [3.0, 4.0, 5.0]
    t = 2.0 / math.sqrt(1 / 3 + 1 / 3)
    assert welch(first, second) == pytest.approx(2 * student_tail(t, 4))
    assert welch(second, first) == pytest.approx(2 * student_tail(t, 4))


def test_welch_without_variance_is_none():
    assert welch([1.0], [2.0, 3.0]) is None
    assert welch([1.0, 1.0], [2.0, 2.0]) is None


def test_paired_test_equals_the_exact_test():
    random = np.random.default_rng(0)
    first, second = random.normal(0.5, 1, 12), random.normal(0, 1, 12)
    difference = first - second
    signs = np.array(list(itertools.product((-1, 1), repeat=12)))
    means = np.abs(signs @ difference) / 12
    exact = (means >= abs(difference.mean()) - 1e-12).mean()
    assert paired(first[:, None], second[:, None]) == pytest.approx(exact, abs=0.012)


def test_equal_models_have_a_p_value_of_one():
    same = np.arange(50.0)[:, None]
    assert paired(same, same) == 1.0
