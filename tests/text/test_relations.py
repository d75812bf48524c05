"""Sentences with the opposite relation."""

import pytest

from ngsan.text.relations import OPPOSITES, relation_words, with_opposite


@pytest.mark.parametrize(
    ("sentence", "relation", "expected"),
    [
        ("The cat is left of the dog.", "left of", "The cat is right of the dog."),
        ("The cat is at the left side of it.", "at the left side of",
         "The cat is at the right side of it."),
        ("The cat is facing the dog.", "facing", "The cat is facing away from the dog."),
        ("The cat is touching the dog.", "touching", None),
        ("The cat is under the over.", "over", None),
        ("A cat under a dog under a table.", "under", None),
    ],
)  # fmt: skip
def test_sentence_with_the_opposite(sentence, relation, expected):
    assert with_opposite(sentence, relation) == expected


def test_opposites_differ():
    for phrase, other in OPPOSITES.items():
        assert phrase != other
        assert other in OPPOSITES


def test_relation_words_are_a_set():
    assert relation_words(["a", "cat", "on", "top", "of", "a", "mat", "on", "it"]) == {"on", "top"}
