"""Finds all words and phrases of a caption and a reference that match, in METEOR's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ngsan.metrics.meteor.alignment import Match

__all__ = ["CaptionMatcher", "PhraseUse", "Word", "java_hash"]


class Word(NamedTuple):
    """What the matchers need to know of a word."""

    key: int
    """Hash by which words are compared."""

    stem: int
    """Hash of the stem."""

    synsets: frozenset[int]
    """WordNet's synonym sets."""

    is_function: bool
    """Whether it is a function word."""


@dataclass(frozen=True)
class PhraseUse:
    """Phrases of one caption or reference that may have a part in a paraphrase."""

    sources: Sequence[tuple[int, int, int]]
    """(start, length, phrase) of those with paraphrases, in order of start and length."""

    places: Mapping[int, Sequence[tuple[int, int]]]
    """Where each phrase that is a paraphrase of another stands: (start, length)."""


def java_hash(text: str) -> int:
    """Java's hash of a string, by which METEOR compares words: two words may share one."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + low + 256 * high) & 0xFFFFFFFF
    return value


class CaptionMatcher:
    """Matches one caption with references; what they share is found once.

    Args:
        words: The caption.
        phrases: Its phrases.
        lookup: Gives what is known of a word.
        forward: Paraphrases, within any caption, of phrases of references.
        backward: Paraphrases, within any reference, of phrases of captions.
    """

    def __init__(
        self,
        words: Sequence[str],
        phrases: PhraseUse,
        *,
        lookup: Callable[[str], Word],
        forward: Mapping[int, Sequence[int]],
        backward: Mapping[int, Sequence[int]],
    ) -> None:
        """See the class."""
        self.words = [lookup(word) for word in words]
        self._phrases = phrases
        self._lookup = lookup
        self._forward = forward
        self._backward = backward
        self._synsets = frozenset[int]().union(*(word.synsets for word in self.words))
        self._single: dict[str, list[Match]] = {}
        self._of_phrase: dict[int, list[Match]] = {}

    @cached_property
    def _keys(self) -> list[int]:
        return [word.key for word in self.words]

    def matches(self, reference: Sequence[str], phrases: PhraseUse) -> list[list[Match]]:
        """For each place of the reference the matches that begin there.

        Exact matches come first, then stems, synonyms and paraphrases. Words that are equal
        throughout are matched with nothing but each other.
        """
        if [self._lookup(word).key for word in reference] == self._keys:
            return [[m for m in self._of_word(word) if m.stage == 0] for word in reference]
        found = [self._of_word(word).copy() for word in reference]
        for start, length, phrase in phrases.sources:
            if (matches := self._of_phrase.get(phrase)) is None:
                matches = self._of_phrase[phrase] = [
                    Match(3, place, other_length, length)
                    for other in self._forward[phrase]
                    for place, other_length in self._phrases.places.get(other, ())
                ]
            found[start] += matches
        places = phrases.places
        for start, length, phrase in self._phrases.sources:
            for other in self._backward[phrase]:
                if other in places:
                    for place, other_length in places[other]:
                        found[place].append(Match(3, start, length, other_length))
        return found

    def _of_word(self, word: str) -> list[Match]:
        """Matches of a single word of a reference by the first three stages."""
        if (matches := self._single.get(word)) is not None:
            return matches
        key, stem, synsets, _ = self._lookup(word)
        matches = [Match(0, i, 1, 1) for i, other in enumerate(self.words) if other.key == key]
        matches += [
            Match(1, i, 1, 1)
            for i, other in enumerate(self.words)
            if other.stem == stem and other.key != key
        ]
        if not synsets.isdisjoint(self._synsets):
            matches += [
                Match(2, i, 1, 1)
                for i, other in enumerate(self.words)
                if other.key != key and not synsets.isdisjoint(other.synsets)
            ]
        self._single[word] = matches
        return matches
