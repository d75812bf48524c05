"""WordNet's synonym sets of a word in any of its forms."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Synonyms"]

# Ends of inflected words and what a base form may have in their place, in the order of trial:
# nouns, verbs, adjectives.
_ENDINGS = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
    ("men", "man"), ("ies", "y"),
    ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""),
    ("er", ""), ("est", ""), ("er", "e"), ("est", "e"),
)  # fmt: skip


class Synonyms:
    """Looks words up in WordNet.

    Args:
        synsets: Synonym sets of each base form.
        irregular: Base forms of irregular words.
    """

    def __init__(
        self,
        synsets: Mapping[str, frozenset[int]],
        irregular: Mapping[str, tuple[str, ...]],
    ) -> None:
        """See the class."""
        self._synsets = synsets
        self._irregular = irregular

    def of(self, word: str) -> frozenset[int]:
        """Synonym sets of the word as it stands, and of its base form or forms."""
        found = self._synsets.get(word, frozenset())
        for base in self._bases(word):
            found |= self._synsets.get(base, frozenset())
        return found

    def _bases(self, word: str) -> tuple[str, ...]:
        """The irregular word's bases, else the first base form that WordNet knows."""
        if word in self._irregular:
            return self._irregular[word]
        if len(word) < 3 or word.endswith("ss"):
            return ()
        for ending, replacement in _ENDINGS:
            if word.endswith(ending):
                base = word[: len(word) - len(ending)] + replacement
                if base in self._synsets:
                    return (base,)
        return ()
