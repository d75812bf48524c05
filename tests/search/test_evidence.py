"""Evidence: what else expects each word of an image, added where continuations are ranked."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ngsan.config import DecodingConfig
from ngsan.search import Beam, Constraints, Ensemble, Greedy, Sampling, build_search
from tests.search.models import PositionModel, TableModel
from tests.search.oracle import all_captions, assert_same, beam_search
from tests.search.test_backends import BOTH_BACKENDS, VOCABULARY, table
from tests.search.test_backends import assert_same as assert_equal
from tests.search.test_beam import PENALTIES, constraints


def evidence_of(images, words, seed, scale=2.0):
    """Random evidence, some of it zero; that of the boundary is to be ignored."""
    random = np.random.default_rng(seed)
    drawn = scale * random.standard_normal((images, words))
    drawn = np.where(random.random(drawn.shape) < 0.3, 0.0, drawn).astype("f4")
    drawn[:, 0] = 50.0
    return drawn


def without_boundary(evidence):
    return np.concatenate((np.zeros_like(evidence[:, :1]), evidence[:, 1:]), 1)


@settings(max_examples=40)
@given(rules=constraints(), length_penalty=st.sampled_from(PENALTIES), seed=st.integers(0, 10**6))
def test_wide_beam_equals_exhaustive_search(rules, length_penalty, seed):
    model, evidence = TableModel(images=2, seed=seed), evidence_of(2, 4, seed)
    options = dict(max_length=4, length_penalty=length_penalty)
    search = Beam(model, beam=130, num_return=130, constraints=rules, evidence=evidence, **options)
    written = search.run()
    for image in range(2):
        expected = all_captions(
            model, image, rules=rules, evidence=without_boundary(evidence), **options
        )
        assert_same(written, image, expected)


@settings(max_examples=40)
@given(
    rules=constraints(5),
    early_stopping=st.booleans(),
    groups=st.sampled_from((1, 2, 4)),
    seed=st.integers(0, 10**6),
)
def test_narrow_beam_equals_plain_python(rules, early_stopping, groups, seed):
    model, evidence = TableModel(images=2, seed=seed), evidence_of(2, 4, seed, 1.0)
    options = dict(beam=4, num_return=4, max_length=5, early_stopping=early_stopping, groups=groups)
    written = Beam(model, constraints=rules, evidence=evidence, **options).run()
    for image in range(2):
        expected = beam_search(
            model, image, rules=rules, evidence=without_boundary(evidence), **options
        )
        assert_same(written, image, expected)


SEARCHES = {
    "beam": lambda model, **rest: Beam(model, beam=3, num_return=3, **rest),
    "groups": lambda model, **rest: Beam(model, beam=4, num_return=4, groups=2, **rest),
    "greedy": Greedy,
    "sample": lambda model, **rest: Sampling(model, samples=5, **rest),
}


@pytest.fixture(params=SEARCHES)
def search(request):
    return SEARCHES[request.param]


def test_no_evidence_changes_nothing(search):
    model = TableModel(images=3, vocab_size=9)
    plain = search(model, max_length=6).run()
    written = search(model, max_length=6, evidence=np.zeros((3, 9))).run()
    for name in ("words", "word_log_probs"):
        np.testing.assert_array_equal(getattr(written, name), getattr(plain, name))
    np.testing.assert_allclose(written.scores, plain.scores, rtol=1e-5)


def test_probabilities_stay_those_of_the_model(search):
    evidence = evidence_of(3, 9, 1)
    model = TableModel(images=3, vocab_size=9)
    written = search(model, max_length=6, evidence=evidence).run().check()
    plain = search(model, max_length=6).run()
    assert (np.asarray(written.words) != np.asarray(plain.words)).any()
    for image, rank in itertools.product(range(3), range(written.words.shape[1])):
        if written.scores[image, rank] == -math.inf:
            continue  # two groups found the same caption
        words = tuple(written.words[image, rank, : int(written.lengths[image, rank])].tolist())
        ends = [0] if len(words) < 6 else []
        expected = [
            model.log_probs(image, words[:place])[word]
            for place, word in enumerate([*words, *ends])
        ]
        value = written.word_log_probs[image, rank].tolist()
        assert value[: len(expected)] == pytest.approx(expected, abs=1e-4)
        assert written.log_probs[image, rank].item() == pytest.approx(sum(expected), abs=1e-4)
        gained = sum(evidence[image, word] for word in set(words))
        score = sum(expected) + gained
        assert written.scores[image, rank].item() == pytest.approx(score, abs=1e-4)


def test_a_word_counts_once():
    """Evidence for word 2 makes it come first, and not again: then word 1 is more probable."""
    model = PositionModel(np.log([0.01, 0.6, 0.39]))
    evidence = np.array([[0.0, 0.0, 1.0]])
    written = Greedy(model, max_length=3, evidence=evidence).run()
    assert written.words.tolist() == [[[2, 1, 1]]]
    assert written.scores.item() == pytest.approx(math.log(0.39) + 2 * math.log(0.6) + 1, abs=1e-4)


def test_each_image_has_its_own():
    model = PositionModel(np.log([0.1, 0.5, 0.4]), images=2)
    written = Greedy(model, max_length=1, evidence=np.array([[0, 0, 1.0], [0, 1.0, 0]])).run()
    assert written.words.flatten().tolist() == [2, 1]


def test_forbidden_words_stay_forbidden(search):
    rules = Constraints(forbidden=[2])
    evidence = np.full((2, 5), 0.0)
    evidence[:, 2] = 100.0
    written = search(
        TableModel(images=2, vocab_size=5), max_length=4, constraints=rules, evidence=evidence
    )
    assert 2 not in np.asarray(written.run().words)


def test_sampling_prefers_what_evidence_expects():
    model = PositionModel(np.zeros(3))
    evidence = np.array([[0.0, math.log(3.0), 0.0]])
    written = Sampling(model, samples=4000, max_length=1, evidence=evidence).run()
    share = np.asarray(written.words == 1).mean()
    assert abs(share - 0.6) < 0.03


def test_ensembles_add_it_once():
    several = [TableModel(images=2, seed=seed) for seed in range(2)]
    evidence = evidence_of(2, 4, 5)
    one = Greedy(several[0], max_length=4, evidence=evidence).run()
    same = Ensemble([several[0], TableModel(images=2, seed=0)])
    two = Greedy(same, max_length=4, evidence=evidence).run()
    np.testing.assert_allclose(one.scores, two.scores, atol=1e-5)


def test_evidence_of_a_search_can_be_replaced(search):
    model = TableModel(images=2, vocab_size=6)
    first, second = evidence_of(2, 6, 1), evidence_of(2, 6, 2)
    kept = search(model, max_length=5, evidence=first)
    kept.run()
    kept.see(second)
    fresh = search(model, max_length=5, evidence=second).run()
    again = kept.run()
    np.testing.assert_array_equal(again.words, fresh.words)
    np.testing.assert_array_equal(again.scores, fresh.scores)


@pytest.mark.parametrize("wrong", [np.zeros((1, 4)), np.zeros(4), np.full((2, 4), np.nan)])
def test_wrong_evidence_raises(wrong):
    with pytest.raises(ValueError, match="evidence"):
        Greedy(TableModel(images=2), evidence=wrong)


@BOTH_BACKENDS
@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_backends_agree(method):
    for seed in range(12):
        decoding = DecodingConfig(
            method=method,
            num_return=1 if method == "greedy" else 3,
            length_penalty=0.7 if seed % 2 else 0.0,
            max_length=6,
            no_repeat_ngram=2,
            no_bad_ending=True,
            require="dog" if seed % 3 else "",
        )
        evidence = evidence_of(3, len(VOCABULARY), seed)
        found = [
            build_search(
                table(3, seed, backend=backend), decoding, VOCABULARY, evidence=evidence
            ).run()
            for backend in ("numpy", "torch")
        ]
        assert isinstance(found[1].words, torch.Tensor)
        assert_equal(*found)
