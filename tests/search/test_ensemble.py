import itertools
import math

import numpy as np
import pytest

from ngsan.search import Beam, Constraints, Ensemble, Greedy, Sampling
from tests.search.models import PositionModel, TableModel
from tests.search.oracle import all_captions, assert_same, beam_search


class MeanModel:
    """Averages the probabilities of table models, for the oracle."""

    def __init__(self, *models):
        self.models, self.vocab_size = models, models[0].vocab_size

    def log_probs(self, image, prefix):
        each = [np.exp(model.log_probs(image, prefix)) for model in self.models]
        return np.log(np.mean(each, axis=0))


def models(count):
    return [TableModel(images=2, seed=seed) for seed in range(count)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_beam_search_over_an_ensemble_uses_mean_probabilities(count):
    several = models(count)
    wide = Beam(Ensemble(several), beam=85, num_return=85, max_length=4).run()
    settings = dict(beam=3, num_return=3, max_length=5, length_penalty=1.0)
    rules = Constraints(required=[2])
    narrow = Beam(Ensemble(several), constraints=rules, **settings).run()
    for image in range(2):
        assert_same(wide, image, all_captions(MeanModel(*several), image, max_length=4)[:85])
        expected = beam_search(MeanModel(*several), image, rules=rules, **settings)
        assert_same(narrow, image, expected)


def test_greedy_and_sampled_log_probs_are_means():
    several = models(3)
    for search in (Greedy(Ensemble(several)), Sampling(Ensemble(several), samples=4)):
        written = search.run()
        for image, rank in itertools.product(range(2), range(written.words.shape[1])):
            words = written.words[image, rank].tolist()
            for place in range(int(written.lengths[image, rank])):
                expected = MeanModel(*several).log_probs(image, tuple(words[:place]))[words[place]]
                value = written.word_log_probs[image, rank, place].item()
                assert value == pytest.approx(expected, abs=1e-5)


def test_ensemble_of_equal_models_equals_one_model():
    alone = Beam(TableModel(images=2), beam=3, num_return=3, max_length=5).run()
    twice = Beam(
        Ensemble([TableModel(images=2), TableModel(images=2)]), beam=3, num_return=3, max_length=5
    )
    written = twice.run()
    np.testing.assert_array_equal(written.words, alone.words)
    np.testing.assert_allclose(written.scores, alone.scores, rtol=1e-5)


def test_word_excluded_by_one_model():
    sure, even = PositionModel([-math.inf, 0.0]), PositionModel([0.0, 0.0])
    ensemble = Ensemble([sure, even])
    ensemble.start(1, 4)
    log_probs = ensemble.step(sure.convert(np.zeros((1, 1), int)), None)
    np.testing.assert_allclose(log_probs, np.log([[[0.25, 0.75]]]), rtol=1e-6)


def test_mismatched_models_raise():
    with pytest.raises(ValueError, match="at least one"):
        Ensemble([])
    with pytest.raises(ValueError, match="4 and 5 words"):
        Ensemble([TableModel(vocab_size=4), TableModel(vocab_size=5)])
    with pytest.raises(ValueError, match="1 images .* 2"):
        Ensemble([TableModel(images=1), TableModel(images=2)])
