"""Chooses, of all words and phrases of a caption and a reference that match, those that count.

Every word may be used once. METEOR searches from left to right through the reference for the choice
with the most matched words, then the fewest chunks (runs that are contiguous and in the same order
on both sides), then the shortest distances between matched places. It keeps the best 40 choices at
each word, and a tie goes to the choice that came first. All of that shows in the scores of real
captions, so it is done here in the same order, down to three peculiarities:

- Where the number of matched words is compared, a match that is not exact counts half its words,
  rounded down on each side: a single stem or synonym counts nothing.
- A choice is charged not with the distance of its own match, but with those of the matches that
  were tried before at the same word; only a match without alternatives is charged with its own.
- Equal matches found in two ways are two choices, and take two of the 40 places.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

__all__ = ["Match", "align", "count_chunks"]

_BEAM = 40

_COST = itemgetter(0)

_Chosen: TypeAlias = "tuple[tuple[int, Match], _Chosen] | None"

# A partial choice: cost, mask of the caption's words in use, end of the last match in the caption
# (-1 after an unmatched word), its end in the reference, and the chosen matches, last one first.
_Path: TypeAlias = "tuple[int, int, int, int, _Chosen]"


class Match(NamedTuple):
    """Words of the caption that match words of the reference, wherever those stand."""

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
        """What the match adds to the number of matched words of both sides."""
        if self.stage == 0:
            return self.length + self.reference_length
        return self.length // 2 + self.reference_length // 2


def align(candidates: Sequence[Sequence[Match]], caption_length: int) -> list[tuple[int, Match]]:
    """Chooses matches.

    Args:
        candidates: For each place of the reference the matches that begin there, in METEOR's order.
        caption_length: Number of words of the caption.

    Returns:
        The chosen matches with their places in the reference, in the order of the reference.
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
    """The matches that share no word, of either side, with another match."""
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

    The cost of a path is one number that orders as (-matched words, chunks, distance) do: `chunk`
    is more than all distances together, `word` more than all chunks.
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
    """Adds a match that is without alternative to every path."""
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
    """Adds to every path each match that it can take, and last of all no match."""
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
        if reached > place:  # the word is part of the last match
            grown.append(path)
            continue
        for start, stop, mask, gain, distance, end, option in options:
            if not used & mask:
                new = cost - gain if last in (-1, start) else cost - gain + chunk
                grown.append((new, used | mask, stop, end, (option, chosen)))
                cost += distance
        grown.append((cost if last == -1 else cost + chunk, used, -1, reached, chosen))
    return grown
