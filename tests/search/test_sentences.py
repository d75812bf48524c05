"""Log-probabilities of given sentences, against sums over a table of logits."""

import numpy as np
import pytest

from ngsan.search.sentences import pad_sentences, score_sentences
from tests.search.models import TableModel


def test_score_is_the_sum_over_words_and_the_end():
    model = TableModel(images=2, vocab_size=5, seed=3)
    sentences = [[[1, 2, 1], [4], []], [[2, 2], [3, 1, 4, 1]]]
    found = score_sentences(model, pad_sentences(sentences))
    assert found.shape == (2, 3)
    for image, mine in enumerate(sentences):
        for row, words in enumerate(mine):
            expected = sum(
                model.log_probs(image, tuple(words[:place]))[word]
                for place, word in enumerate([*words, 0])
            )
            assert found[image, row] == pytest.approx(expected, abs=1e-5)
    # The place of an image with fewer sentences holds the empty one.
    assert found[1, 2] == pytest.approx(model.log_probs(1, ())[0], abs=1e-5)


def test_padding_ends_with_the_boundary():
    padded = pad_sentences([[[1, 2]], [[3], [4]]])
    np.testing.assert_array_equal(padded, [[[1, 2, 0], [0, 0, 0]], [[3, 0, 0], [4, 0, 0]]])
