"""Finds all matches between a caption and a reference, and chooses those that count.

Every word may be used once. METEOR searches from left to right through the reference for the choice
with the most matched words, then the fewest chunks (runs that are contiguous and in the same order
on both sides), then the shortest distances between matched places. It keeps the best 40 choices at
each word, and the earlier choice wins a tie. All of that affects the scores of real captions, so
this module keeps the same order and three peculiarities:

- Where the number of matched words is compared, a match that is not exact counts half its words,
  rounded down on each side: a single stem or synonym counts 0.
- The distance added to a choice is not that of its own match, but of the matches tried before it at
  the same word; only a match without alternatives adds its own distance.
- Equal matches found in two ways are two choices, and take two of the 40 places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

_BEAM = 40

_COST = itemgetter(0)

_Chosen: TypeAlias = "tuple[tuple[int, Match], _Chosen] | None"

# A partial choice: cost, bit mask of the caption's used words, end of the last match in the caption
# (-1 after an unmatched word) and in the reference, and a linked list of the chosen matches.
_Path: TypeAlias = "tuple[int, int, int, int, _Chosen]"


class Match(NamedTuple):
    """Words of the caption that match words of the reference, at any place there."""

    stage: int
    """0 for equal words, 1 for equal stems, 2 for synonyms, 3 for paraphrases."""
    start: int
    """Place of the first word in the caption."""
    length: int
    """Number of words in the caption."""
    reference_length: int
    """Number of words in the reference."""

    @property
    def gain(self) -> int:
        """What the match adds to the number of matched words."""
        if self.stage == 0:
            return self.length + self.reference_length
        return self.length // 2 + self.reference_length // 2


class Word(NamedTuple):
    """Properties of a word that the matchers use."""

    key: int
    """Hash of the word, for comparisons."""
    stem: int
    """Hash of the stem."""
    synsets: frozenset[int]
    """WordNet's synonym sets."""
    is_function: bool
    """Whether it is a function word."""


@dataclass(frozen=True)
class PhraseUse:
    """Phrases of one caption or reference that occur in paraphrases."""

    sources: Sequence[tuple[int, int, int]]
    """(start, length, phrase) of phrases with paraphrases, sorted by start and length."""
    places: Mapping[int, Sequence[tuple[int, int]]]
    """(start, length) of each occurrence of phrases that paraphrase another."""


def java_hash(text: str) -> int:
    """Java's string hash, by which METEOR compares words; two words may share a hash."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + low + 256 * high) & 0xFFFFFFFF
    return value


class CaptionMatcher:
    """Matches one caption with several references.

    Args:
        words: The caption.
        phrases: Its phrases.
        lookup: Maps a word to its properties.
        forward: Paraphrases in captions, by phrase in references.
        backward: Paraphrases in references, by phrase in captions.
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
        """The matches that start at each place of the reference.

        Exact matches come first, then stems, synonyms and paraphrases. If all words are equal, only
        exact matches count.
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
        """Matches of a single reference word in the first three stages."""
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


def align(candidates: Sequence[Sequence[Match]], caption_length: int) -> list[tuple[int, Match]]:
    """Chooses matches.

    Args:
        candidates: The matches that start at each place of the reference, in METEOR's order.
        caption_length: Number of words of the caption.

    Returns:
        The chosen matches with their places in the reference, in order.
    """
    fixed = _without_alternative(candidates, caption_length)
    if all(
        match is not None or not matches for match, matches in zip(fixed, candidates, strict=True)
    ):
        return [(place, match) for place, match in enumerate(fixed) if match is not None]
    return _search(candidates, fixed)


def count_chunks(chosen: Sequence[tuple[int, Match]]) -> int:
    """Number of runs of matches that are contiguous and in the same order on both sides."""
    breaks = sum(
        place + match.reference_length != next_place
        or match.start + match.length != following.start
        for (place, match), (next_place, following) in pairwise(chosen)
    )
    return breaks + 1 if chosen else 0


def _without_alternative(
    candidates: Sequence[Sequence[Match]], caption_length: int
) -> list[Match | None]:
    """The matches that share no word, on either side, with another match."""
    in_caption = [0] * caption_length
    in_reference = [0] * len(candidates)
    for place, matches in enumerate(candidates):
        for _, start, length, reference_length in matches:
            for i in range(start, start + length):
                in_caption[i] += 1
            for i in range(place, place + reference_length):
                in_reference[i] += 1
    fixed: list[Match | None] = []
    for place, matches in enumerate(candidates):
        fixed.append(None)
        if len(matches) == 1:
            _, start, length, reference_length = match = matches[0]
            if (
                max(in_reference[place : place + reference_length]) == 1
                and max(in_caption[start : start + length]) == 1
            ):
                fixed[-1] = match
    return fixed


def _search(
    candidates: Sequence[Sequence[Match]], fixed: Sequence[Match | None]
) -> list[tuple[int, Match]]:
    """Beam search through the reference.

    The cost of a path is one number that sorts like (-matched words, chunks, distance): `chunk` is
    more than the sum of all distances, `word` more than all chunks.
    """
    chunk = 1 + sum(
        abs(place - match.start) for place, matches in enumerate(candidates) for match in matches
    )
    word = chunk * (len(candidates) + 2)
    paths: list[_Path] = [(0, 0, -1, 0, None)]
    for place, matches in enumerate(candidates):
        paths.sort(key=_COST)  # a stable sort keeps the order of paths of equal cost
        only = fixed[place]
        if only is None:
            paths = _branch(paths[:_BEAM], place, matches, chunk, word)
        else:
            paths = _continue(paths[:_BEAM], place, only, chunk, word)
    paths.sort(key=_COST)
    best = min(paths[:_BEAM], key=lambda path: path[0] if path[2] == -1 else path[0] + chunk)
    result = []
    link = best[4]
    while link is not None:
        result.append(link[0])
        link = link[1]
    return result[::-1]


def _continue(
    paths: Sequence[_Path], place: int, match: Match, chunk: int, word: int
) -> list[_Path]:
    """Adds a match without alternatives to every path."""
    start, stop, end = match.start, match.start + match.length, place + match.reference_length
    step = abs(place - start) - match.gain * word
    grown: list[_Path] = []
    for cost, used, last, _, chosen in paths:
        cost += step if last in (-1, start) else step + chunk
        grown.append((cost, used, stop, end, ((place, match), chosen)))
    return grown


def _branch(
    paths: Sequence[_Path], place: int, matches: Sequence[Match], chunk: int, word: int
) -> list[_Path]:
    """Extends every path by each possible match, and last by no match."""
    options = [
        (
            match.start,
            match.start + match.length,
            (1 << match.length) - 1 << match.start,
            match.gain * word,
            abs(place - match.start),
            place + match.reference_length,
            (place, match),
        )
        for match in matches
    ]
    grown: list[_Path] = []
    for path in paths:
        cost, used, last, reached, chosen = path
        if reached > place:  # this word is inside the last match
            grown.append(path)
            continue
        for start, stop, mask, gain, distance, end, option in options:
            if not used & mask:
                new = cost - gain if last in (-1, start) else cost - gain + chunk
                grown.append((new, used | mask, stop, end, (option, chosen)))
                cost += distance
        grown.append((cost if last == -1 else cost + chunk, used, -1, reached, chosen))
    return grown
