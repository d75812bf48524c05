"""BLEU against pycocoevalcap and against numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given

from ngsan.metrics.bleu import Bleu
from tests.metrics import oracle


@given(oracle.word_sets())
def test_agrees_with_pycocoevalcap(captions):
    oracle.agrees(Bleu(), oracle.bleu, captions)


def test_agrees_on_long_captions():
    oracle.agrees(Bleu(), oracle.bleu, oracle.long_set())


def test_worked_example():
    # "a a a b": 'a' is twice in a reference, so 2 + 1 of 4 words match, and of the pairs aa, ab
    # of the 3. References of 3 and 5 words are as close: the shorter counts, so no penalty.
    captions = oracle.make([(("a", "a", "a", "b"), (("a", "a", "c"), ("a", "b", "c", "d", "e")))])
    rows = Bleu().statistics(captions)
    assert rows.tolist() == [[4, 3, 3, 2, 0, 0, 4, 3, 2, 1]]
    assert Bleu().score(rows)[0, :2] == pytest.approx([3 / 4, math.sqrt(3 / 4 * 2 / 3)], abs=1e-8)


def test_brevity_penalty():
    captions = oracle.make([(("a", "b"), (("a", "b", "c", "d"),))])
    scores = Bleu().score(Bleu().statistics(captions))[0]
    assert scores[:2] == pytest.approx([math.exp(-1)] * 2, abs=1e-8)


def test_nothing_to_match_is_zero_and_finite():
    captions = oracle.make([((), ((), ())), ((), (("a",),))])
    rows = Bleu().statistics(captions)
    assert (Bleu().score(rows) == 0).all()
    assert np.isfinite(Bleu().score(np.zeros(10))).all()


def test_no_break_space_cuts_a_word_in_two():
    captions = oracle.make([(("1\xa01/2", "dogs"), (("1", "1/2", "dogs"),))])
    assert Bleu().statistics(captions)[0, 0] == 3
    assert Bleu().score(Bleu().statistics(captions))[0, 2] == pytest.approx(1)
