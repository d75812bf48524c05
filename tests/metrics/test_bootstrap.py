"""Intervals and tests, against naive loops, enumeration and known distributions."""

import itertools

import numpy as np
import pytest

from ngsan.metrics import bootstrap
from ngsan.metrics.bleu import Bleu
from ngsan.metrics.captions import MeanMetric, rows_of_values


def bleu_rows(images, seed, quality=0.6):
    """Statistics as BLEU makes them, (images, 10)."""
    random = np.random.default_rng(seed)
    length = random.integers(5, 15, images)
    ngrams = np.maximum(0, length[:, None] - np.arange(4))
    matches = random.binomial(ngrams, quality ** np.arange(1, 5))
    reference = length + random.integers(-2, 3, images)
    return np.column_stack((length, reference, matches, ngrams)).astype(float)


def test_intervals_equal_a_naive_loop(monkeypatch):
    rows = [bleu_rows(40, 1), rows_of_values(np.random.default_rng(2).normal(size=40))]
    scores = [Bleu().score, MeanMetric().score]
    found = bootstrap.intervals(rows, scores, resamples=300, level=0.9, seed=7)
    random = np.random.default_rng([7, 0])
    draws = [random.integers(40, size=40) for _ in range(300)]
    for ends, row, score in zip(found, rows, scores, strict=True):
        samples = np.array([score(row[drawn].sum(axis=0)) for drawn in draws])
        expected = np.quantile(samples, [0.05, 0.95], axis=0).T
        np.testing.assert_allclose(ends, expected, rtol=1e-12)
    # Also with small chunks.
    monkeypatch.setattr(bootstrap, "_CHUNK", 300)
    again = bootstrap.intervals(rows, scores, resamples=300, level=0.9, seed=7)
    for ends, expected in zip(again, found, strict=True):
        np.testing.assert_allclose(ends, expected, rtol=1e-12)


def test_comparison_equals_a_naive_loop():
    a, b = bleu_rows(30, 1, 0.63), bleu_rows(30, 2, 0.6)
    score = Bleu().score
    (found,) = bootstrap.compare([a], [b], [score], resamples=200, seed=3)
    true = score(a.sum(axis=0)) - score(b.sum(axis=0))
    np.testing.assert_allclose(found.differences, true, rtol=1e-12)

    random = np.random.default_rng([3, 1])
    swaps = random.integers(2, size=(200, 30)).astype(bool)
    count = 0
    for swap in swaps:
        one, other = np.where(swap[:, None], b, a), np.where(swap[:, None], a, b)
        difference = score(one.sum(axis=0)) - score(other.sum(axis=0))
        count += np.abs(difference) >= np.abs(true) - 1e-12
    np.testing.assert_allclose(found.p, (count + 1) / 201)

    random = np.random.default_rng([3, 0])
    draws = [random.integers(30, size=30) for _ in range(200)]
    samples = [score(a[drawn].sum(axis=0)) - score(b[drawn].sum(axis=0)) for drawn in draws]
    expected = np.quantile(samples, [0.025, 0.975], axis=0).T
    np.testing.assert_allclose(found.intervals, expected, rtol=1e-10)


def test_p_equals_enumeration_for_few_images():
    random = np.random.default_rng(4)
    a, b = random.normal(0.7, 1, 8), random.normal(0, 1, 8)
    means = [np.mean(sign * (a - b)) for sign in itertools.product((1, -1), repeat=8)]
    exact = np.mean(np.abs(means) >= abs(np.mean(a - b)) - 1e-12)
    (found,) = bootstrap.compare(
        [rows_of_values(a)], [rows_of_values(b)], [MeanMetric().score], resamples=20_000
    )
    assert found.p[0] == pytest.approx(exact, abs=4 * np.sqrt(exact / 20_000))


def test_intervals_have_their_nominal_coverage():
    random = np.random.default_rng(5)
    covered = 0
    for seed in range(400):
        rows = rows_of_values(random.gamma(4.0, size=100))
        ((ends,),) = bootstrap.intervals([rows], [MeanMetric().score], resamples=200, seed=seed)
        covered += ends[0] <= 4.0 <= ends[1]
    assert 0.90 <= covered / 400 <= 0.98


def test_p_is_uniform_when_systems_are_alike():
    random = np.random.default_rng(6)
    p = []
    for seed in range(400):
        common = random.normal(size=60)
        a, b = (rows_of_values(common + random.gamma(2.0, size=60)) for _ in range(2))
        (found,) = bootstrap.compare([a], [b], [MeanMetric().score], resamples=99, seed=seed)
        p.append(found.p[0])
    for level in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9):
        assert np.mean(np.array(p) <= level) == pytest.approx(level, abs=0.08)
    assert np.mean(np.array(p) <= 0.05) < 0.09


def test_comparison_with_itself_has_no_difference():
    rows = bleu_rows(20, 1)
    (found,) = bootstrap.compare([rows], [rows], [Bleu().score], resamples=50)
    assert (found.p == 1).all()
    assert (found.differences == 0).all()
    assert (found.intervals == 0).all()


def test_clear_difference_has_the_minimum_p():
    values = np.random.default_rng(0).normal(size=200)
    a, b = rows_of_values(values + 1), rows_of_values(values)
    (found,) = bootstrap.compare([a], [b], [MeanMetric().score], resamples=99)
    assert found.p.tolist() == [0.01]
    np.testing.assert_allclose(found.differences, [1])
    np.testing.assert_allclose(found.intervals, [[1, 1]])
    (back,) = bootstrap.compare([b], [a], [MeanMetric().score], resamples=99)
    np.testing.assert_allclose(back.differences, [-1])


def test_seed_determines_the_result():
    rows = [bleu_rows(30, 1)]
    one, same, other = (
        bootstrap.intervals(rows, [Bleu().score], resamples=50, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resamples": 0}, "resamples is 0"),
        ({"level": 95}, "level is 95, but must be between"),
    ],
)
def test_invalid_settings_are_rejected(options, message):
    rows = [bleu_rows(3, 1)]
    with pytest.raises(ValueError, match=message):
        bootstrap.intervals(rows, [Bleu().score], **options)
    with pytest.raises(ValueError, match=message):
        bootstrap.compare(rows, rows, [Bleu().score], **options)


def test_other_images_are_rejected():
    with pytest.raises(ValueError, match="shapes .3, 10. and .4, 10."):
        bootstrap.compare([bleu_rows(3, 1)], [bleu_rows(4, 1)], [Bleu().score])
