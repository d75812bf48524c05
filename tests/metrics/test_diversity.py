"""Figures about captions, counted by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngsan.metrics.diversity import Diversity, measure_diversity
from ngsan.text.vocabulary import BAD_ENDINGS

CAPTIONS = [
    ["a", "dog", "on", "a"],
    ["a", "dog"],
    ["a", "dog"],
    [],
    ["the"],
]


def test_counted_by_hand():
    assert measure_diversity(CAPTIONS, [["a", "dog"], ["a", "cat"]]) == Diversity(
        captions=5,
        mean_length=9 / 5,
        min_length=0,
        max_length=4,
        vocabulary=4,
        distinct=4 / 5,
        novel=3 / 5,
        bad_endings=2 / 5,
        distinct_1=4 / 9,
        distinct_2=3 / 5,  # a dog, dog on, on a; of 3 + 1 + 1
    )


def test_empty_training_captions():
    assert measure_diversity(CAPTIONS).novel is None
    assert measure_diversity(CAPTIONS, []).novel == 1
    assert measure_diversity(CAPTIONS, iter(CAPTIONS)).novel == 0


def test_empty_captions():
    figures = measure_diversity([[], []])
    assert (figures.mean_length, figures.vocabulary, figures.distinct) == (0, 0, 0.5)
    assert (figures.distinct_1, figures.distinct_2, figures.bad_endings) == (0, 0, 0)
    with pytest.raises(ValueError, match="no captions to measure"):
        measure_diversity([])


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5), min_size=1))
def test_distinct_pairs_by_brute_force(captions):
    pairs = [tuple(words[i : i + 2]) for words in captions for i in range(len(words) - 1)]
    figures = measure_diversity(captions)
    assert figures.distinct_2 == (len(set(pairs)) / len(pairs) if pairs else 0)


def test_bad_endings_by_hand():
    assert len(BAD_ENDINGS) == 14
    assert {"a", "with", "that"} < BAD_ENDINGS
