"""ROUGE-L against pycocoevalcap, and its common subsequences against the table of lengths."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ngsan.metrics.rouge import RougeL, common_subsequences
from tests.metrics import oracle


@given(oracle.word_sets())
def test_agrees_with_pycocoevalcap(captions):
    oracle.agrees(RougeL(), oracle.rouge, captions)


def test_agrees_on_long_captions():
    captions = oracle.long_set()
    rows = RougeL().statistics(captions)
    expected = [
        f_score(words or ("",), [each or ("",) for each in references])
        for words, references in zip(captions.hypotheses, captions.references, strict=True)
    ]
    np.testing.assert_allclose(RougeL().score(rows)[:, 0], expected, rtol=0, atol=1e-12)


def table_length(a, b):
    """Length of the longest common subsequence by the usual table, one row at a time."""
    row = np.zeros(len(b) + 1, int)
    for word in a:
        same = np.array([word == other for other in b], bool)
        grown = np.maximum(row[1:], row[:-1] + same)
        row[1:] = np.maximum.accumulate(grown) if len(grown) else grown
    return int(row[-1])


def f_score(words, references):
    lengths = [table_length(words, each) for each in references]
    precision = max(lengths) / len(words)
    recall = max(n / len(each) for n, each in zip(lengths, references, strict=True))
    return 2.44 * precision * recall / (recall + 1.44 * precision) if precision else 0.0


captions_of_few_words = st.lists(st.sampled_from("abcd"), max_size=40)


@given(captions_of_few_words, st.lists(captions_of_few_words, min_size=1, max_size=7))
def test_references_do_not_touch_each_other(words, references):
    expected = [table_length(words, each) for each in references]
    assert common_subsequences(words, references) == expected


def test_two_empty_captions_match():
    captions = oracle.make([((), ((),)), ((), (("a",),)), (("a",), ((),))])
    assert RougeL().score(RougeL().statistics(captions))[:, 0].tolist() == [1, 0, 0]
    oracle.agrees(RougeL(), oracle.rouge, captions)
