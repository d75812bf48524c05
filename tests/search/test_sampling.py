import itertools
import math

import numpy as np
import pytest
import torch

from ngsan.search import Constraints, Greedy, Sampling
from ngsan.search.sampling import draw, random_bits
from tests.search.models import PositionModel, TableModel
from tests.search.oracle import all_captions

LOGITS = np.array([0.3, 1.2, -0.5, 0.9, -1.4, 0.1, 2.0, -3.0])


def softmax(logits):
    exponents = np.exp(np.asarray(logits, dtype=float))
    return exponents / exponents.sum()


def first_words(images=4000, samples=8, **settings):
    """Counts how often each word was drawn at the first position."""
    model = PositionModel(LOGITS, images=images)
    written = Sampling(model, samples=samples, max_length=1, **settings).run()
    return np.bincount(np.asarray(written.words).ravel(), minlength=len(LOGITS))


def assert_drawn_from(counts, probabilities):
    """Pearson's chi-square test with a false alarm rate of about one in a million."""
    possible = probabilities > 0
    assert not counts[~possible].any()
    expected = probabilities[possible] * counts.sum()
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = possible.sum() - 1
    # Wilson and Hilferty's normal approximation of the chi-square distribution.
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 4.75


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_words_follow_the_model_distribution(temperature, seed):
    counts = first_words(temperature=temperature, seed=seed)
    assert_drawn_from(counts, softmax(LOGITS / temperature))


@pytest.mark.parametrize("top_k", [1, 2, 5, 8, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_top_k(top_k, temperature):
    shares = softmax(LOGITS / temperature)
    kept = np.isin(np.arange(8), np.argsort(-shares)[:top_k])
    expected = shares * kept
    if top_k == 1:
        assert first_words(top_k=1, temperature=temperature).argmax() == 6
        assert first_words(top_k=1, temperature=temperature)[:6].sum() == 0
    else:
        counts = first_words(top_k=top_k, temperature=temperature)
        assert_drawn_from(counts, expected / expected.sum())


@pytest.mark.parametrize("top_p", [0.3, 0.6, 0.75, 0.9, 0.999])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_top_p(top_p, temperature):
    """Keeps the smallest set of words with a share of top_p, after the temperature."""
    shares = softmax(LOGITS / temperature)
    order = np.argsort(-shares)
    count = next(n for n in range(1, 9) if shares[order[:n]].sum() >= top_p)
    expected = np.where(np.isin(np.arange(8), order[:count]), shares, 0.0)
    counts = first_words(top_p=top_p, temperature=temperature)
    if count == 1:
        assert counts[order[0]] == counts.sum()
    else:
        assert_drawn_from(counts, expected / expected.sum())


def test_top_p_applies_after_top_k():
    shares = softmax(LOGITS)
    order = np.argsort(-shares)[:3]  # 6, 1 and 3
    rest = shares[order] / shares[order].sum()
    # Two of the three hold 0.7 of the top-k mass, but not of the whole mass.
    assert rest[0] < 0.7 < rest[:2].sum()
    assert shares[order[:2]].sum() < 0.7
    expected = np.zeros(8)
    expected[order[:2]] = rest[:2] / rest[:2].sum()
    assert_drawn_from(first_words(top_k=3, top_p=0.7), expected)


def test_captions_follow_the_model_distribution():
    """All captions of at most three words; their probabilities sum to one."""
    model = TableModel(vocab_size=3, seed=8)
    captions = all_captions(model, 0, max_length=3)
    places = {caption.words: index for index, caption in enumerate(captions)}
    probabilities = np.exp([caption.log_prob for caption in captions])
    assert probabilities.sum() == pytest.approx(1)
    written = Sampling(model, samples=3000, max_length=3, seed=3).run()
    counts = np.zeros(len(captions), dtype=int)
    for words, length in zip(written.words[0].tolist(), written.lengths[0].tolist(), strict=True):
        counts[places[tuple(words[:length])]] += 1
    assert_drawn_from(counts, probabilities)


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.3}, {"top_k": 2}, {"top_p": 0.5}, {"temperature": 4.0}]
)
def test_reported_log_probs_are_the_models(settings):
    """Temperature, truncation and constraints do not change the reported probability."""
    model = TableModel(images=2, vocab_size=5, seed=1)
    rules = Constraints(forbidden=[4], min_length=1)
    written = Sampling(model, samples=6, max_length=5, constraints=rules, **settings).run()
    for image, sample in itertools.product(range(2), range(6)):
        words = written.words[image, sample].tolist()
        length = int(written.lengths[image, sample])
        expected = np.zeros(5)
        for place in range(min(length + 1, 5)):
            expected[place] = model.log_probs(image, tuple(words[:place]))[words[place]]
        np.testing.assert_allclose(written.word_log_probs[image, sample], expected, atol=1e-5)
        total = written.log_probs[image, sample].item()
        assert total == pytest.approx(expected.sum(), abs=1e-4)
        assert written.scores[image, sample] == total


def test_low_temperature_equals_greedy_search():
    model = TableModel(images=6, vocab_size=6, seed=2)
    greedy = Greedy(model, max_length=6).run()
    colder = ({"temperature": temperature} for temperature in (1e-4, 1e-12, 1e-31, 1e-40, 1e-300))
    for settings in (*colder, {"top_k": 1}, {"top_p": 1e-6}):
        written = Sampling(model, samples=2, max_length=6, **settings).run()
        assert (written.words == greedy.words).all()


def test_greedy_breaks_ties_by_the_lowest_id():
    assert Greedy(PositionModel([0.0, 1.0, 1.0]), max_length=3).run().words.tolist() == [
        [[1, 1, 1]]
    ]


def test_samples_depend_on_the_seed():
    model = PositionModel(np.zeros(50), images=3)

    def words(**settings):
        rules = Constraints(min_length=6)
        return Sampling(model, samples=40, max_length=6, constraints=rules, **settings).run().words

    np.testing.assert_array_equal(words(seed=5), words(seed=5))
    assert (words(seed=5) != words(seed=6)).any()
    drawn = words(seed=5)
    rows = {tuple(row) for row in drawn.reshape(120, 6).tolist()}
    assert len(rows) == 120  # samples and images differ, though the model is the same for all
    np.testing.assert_array_equal(words(seed=5, keys=[0, 1, 2]), drawn)
    swapped = words(seed=5, keys=np.array([2, 7, 0]))
    np.testing.assert_array_equal(swapped[0], drawn[2])
    np.testing.assert_array_equal(swapped[2], drawn[0])


@pytest.mark.parametrize("samples", [1, 31, 32, 33, 70])
def test_number_of_samples_does_not_change_the_first(samples):
    model = TableModel(images=2, vocab_size=6)
    written = Sampling(model, samples=samples, max_length=4, seed=9).run()
    assert written.words.shape == (2, samples, 4)
    many = Sampling(model, samples=80, max_length=4, seed=9).run()
    np.testing.assert_array_equal(written.words, many.words[:, :samples])
    np.testing.assert_array_equal(written.word_log_probs, many.word_log_probs[:, :samples])


def test_samples_do_not_depend_on_the_batch():
    shared = dict(samples=3, max_length=5, seed=4)
    together = Sampling(TableModel(images=500, vocab_size=5), **shared).run()
    for image in range(0, 500, 50):
        model = TableModel(images=1, vocab_size=5, first=image)
        alone = Sampling(model, keys=[image], **shared).run()
        np.testing.assert_array_equal(together.words[image], alone.words[0])
        np.testing.assert_array_equal(together.word_log_probs[image], alone.word_log_probs[0])


@pytest.mark.parametrize("drawn", [0, 2**24 - 1])
@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.9}, {"temperature": 0.2}])
def test_extreme_random_numbers_draw_possible_words(monkeypatch, drawn, settings):
    """The first and the last word have probability zero."""

    def constant(*numbers):
        return sum(numbers) * 0 + drawn

    monkeypatch.setattr("ngsan.search.sampling.random_bits", constant)
    model = PositionModel([0.0, 0.1, 0.3, 0.2, 0.0, 0.0], images=2)
    rules = Constraints(min_length=3, forbidden=[1, 5])
    written = Sampling(model, max_length=3, constraints=rules, **settings).run().check()
    assert set(written.words.reshape(-1).tolist()) <= {2, 3, 4}


def test_reseed():
    model = PositionModel(np.zeros(50), images=2)
    search = Sampling(model, samples=2, max_length=5, seed=1)
    first = search.run().words
    search.reseed(2, [5, 6])
    np.testing.assert_array_equal(
        search.run().words,
        Sampling(model, samples=2, max_length=5, seed=2, keys=[5, 6]).run().words,
    )
    search.reseed(1)
    np.testing.assert_array_equal(search.run().words, first)


def test_search_created_in_inference_mode_runs_outside():
    model = TableModel(images=2)
    with torch.inference_mode():
        search = Sampling(model, samples=40, max_length=3)
    np.testing.assert_array_equal(
        search.run().words, Sampling(model, samples=40, max_length=3).run().words
    )
    search.reseed(4)


def test_no_images():
    model = PositionModel(LOGITS, images=0)
    assert Sampling(model, samples=3, max_length=4).run().words.shape == (0, 3, 4)
    assert Greedy(model, max_length=4).run().check().words.shape == (0, 1, 4)


def test_draw_inverts_the_cumulative_sum(backend):
    """Over several blocks of words; a third of the masses are zero."""
    random = np.random.default_rng(0)
    masses = random.random((2, 50, 1000)).astype("f4") * (random.random(1000) > 1 / 3)
    drawn = random.random((2, 50)).astype("f4")
    given = (masses.astype("f4"), drawn)
    if backend == "torch":
        given = tuple(map(torch.from_numpy, given))
    words = np.asarray(draw(Greedy(TableModel()).ops, *given))
    ends = masses.cumsum(-1, dtype=float)
    number = drawn * ends[..., -1]
    last = np.take_along_axis(ends, words[..., None], -1)[..., 0]
    mass = np.take_along_axis(masses, words[..., None], -1)[..., 0]
    assert (mass > 0).all()
    assert (number < last + 1e-3).all()
    assert (number > last - mass - 1e-3).all()


def test_random_bits_are_uniform_and_uncorrelated(backend):
    grid = (
        np.array([0, 1, -3])[:, None, None, None],
        np.arange(40)[:, None, None],
        np.arange(40)[:, None],
        np.arange(20),
    )
    if backend == "torch":
        grid = map(torch.from_numpy, grid)
    values = np.asarray(random_bits(*grid)) / 2.0**24
    assert values.shape == (3, 40, 40, 20)
    assert values.min() >= 0
    assert values.max() < 1
    assert len(np.unique(values)) > 0.99 * values.size
    assert_drawn_from(np.histogram(values, 100, (0, 1))[0], np.full(100, 0.01))
    for axis in range(4):  # neighbours along each axis
        a, b = np.delete(values, -1, axis).ravel(), np.delete(values, 0, axis).ravel()
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(len(a))
    # The order of the keys matters: sample 3 of image 5 is not sample 5 of image 3.
    assert (values[0, :, :, 0] != values[0, :, :, 0].T).any()


def test_random_bits_equal_splitmix64_in_python_integers(backend):
    """The same arithmetic with Python's unbounded integers."""
    word = (1 << 64) - 1

    def mix(bits):
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & word
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & word
        return bits ^ bits >> 31

    make = torch.tensor if backend == "torch" else np.array
    for numbers in itertools.product((0, 1, -7, 2**40, -(2**63)), (0, 3), (5, 2**62, 2**63 - 1)):
        bits = 0
        for number in numbers:
            bits = mix(bits + (number + 1) * 0x9E3779B97F4A7C15 & word)
        assert random_bits(*(make([number]) for number in numbers)).tolist() == [bits >> 40]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples: 0"),
        ({"temperature": 0.0}, "temperature: 0.0"),
        ({"temperature": -1.0}, "temperature: -1.0"),
        ({"temperature": math.inf}, "temperature: inf"),
        ({"temperature": math.nan}, "temperature: nan"),
        ({"top_k": -1}, "top_k: -1"),
        ({"top_p": 0.0}, "top_p: 0.0"),
        ({"top_p": 1.5}, "top_p: 1.5"),
        ({"max_length": 0}, "max_length: 0"),
        ({"samples": 10**6, "max_length": 20}, "lower max_length"),
        ({"seed": 2**63}, "seed: 9223372036854775808"),
        ({"seed": 10**30}, "seed: 10"),
        ({"keys": [1, 2]}, "keys: .*2.* for 1 images"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(TableModel(), **settings)


@pytest.mark.parametrize("top_p", [1e-300, 1e-46, 1e-12])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_smallest_top_p_leaves_the_most_probable_word(top_p, kind):
    model = PositionModel(LOGITS.astype(kind), images=200)
    written = Sampling(model, samples=4, max_length=1, top_p=top_p).run()
    assert set(np.asarray(written.words).ravel().tolist()) == {6}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_highest_temperature_keeps_to_allowed_words(kind):
    model = PositionModel(LOGITS.astype(kind), images=200)
    rules = Constraints(forbidden=[6])
    sampling = Sampling(model, samples=4, max_length=1, temperature=1e308, constraints=rules)
    words = set(np.asarray(sampling.run().words).ravel().tolist())
    assert len(words) > 2
    assert 6 not in words
