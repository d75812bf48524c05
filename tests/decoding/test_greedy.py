import pytest
import torch

from ngsan.decoding import greedy


def table_of(transitions, vocab=6):
    """A step function: the next word depends on the last, as the table says."""
    logits = torch.full((vocab, vocab), -1.0)
    for word, following in transitions.items():
        logits[word, following] = 1.0

    return lambda words: logits[words[:, -1]]


def test_greedy_follows_the_best_word_until_the_boundary():
    words = greedy(table_of({0: 3, 3: 1, 1: 5, 5: 0}), images=2)
    assert words.tolist() == [[3, 1, 5, 0]] * 2


def test_a_caption_that_has_ended_stays_ended():
    starts = torch.tensor([4, 2])

    def step(words):
        if words.shape[1] == 1:
            return torch.nn.functional.one_hot(starts, 6).float()
        return table_of({4: 0, 2: 3, 3: 5, 5: 0, 0: 1})(words)

    assert greedy(step, images=2).tolist() == [[4, 0, 0, 0], [2, 3, 5, 0]]


def test_longest_is_the_most_words():
    assert greedy(table_of({0: 1, 1: 1}), images=1, longest=4).tolist() == [[1, 1, 1, 1]]
    with pytest.raises(ValueError, match="at least one word"):
        greedy(table_of({}), images=1, longest=0)
