"""N-grams of a whole set of captions, as arrays: counted once, read by BLEU and CIDEr.

Words become ids, and an n-gram becomes the rank of the pair (its first n - 1 words, its last word)
among all such pairs. So every n-gram has a small code of its own, whatever the size of the
vocabulary, and nothing depends on a hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

__all__ = ["END", "ORDERS", "Entries", "NgramTable", "Order", "WordStream", "distinct"]

ORDERS = 4
"""The longest n-grams that are counted: 4 words."""

END = ""
"""Stands for the end of the sentence where that counts as a word; no true word is empty."""

Ints = NDArray[np.int64]


class _Ids(dict[str, int]):
    """Word -> id; a new word gets the next one."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


@dataclass(frozen=True)
class WordStream:
    """The words of many captions in a row."""

    words: tuple[str, ...]
    """The different words by id; the first is `END`, whether it is used or not."""

    ids: Ints
    """(words of all captions,) The id at each position."""

    lengths: Ints
    """(captions,) Number of words, with the end of the sentence if that is counted."""

    @classmethod
    def read(cls, captions: Iterable[Sequence[str]], *, end: bool) -> WordStream:
        """Numbers the words, and cuts those with a white space inside as the COCO tools do."""
        numbers = _Ids({END: 0})
        ids: list[int] = []
        lengths: list[int] = []
        for caption in captions:
            words = " ".join(caption).split()
            ids.extend(map(numbers.__getitem__, words))
            if end:
                ids.append(0)
            lengths.append(len(words) + end)
        return cls(tuple(numbers), np.array(ids, np.int64), np.array(lengths, np.int64))

    def captions(self) -> Ints:
        """Number of the caption at each position."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def room(self) -> Ints:
        """Number of words from each position to the end of its caption, itself included."""
        return np.repeat(np.cumsum(self.lengths), self.lengths) - np.arange(len(self.ids))


@dataclass(frozen=True)
class Entries:
    """Which n-grams a list of captions has: a sparse matrix, sorted by caption, then by code."""

    caption: Ints
    """Number of the caption."""

    code: Ints
    """Code of the n-gram."""

    count: Ints
    """How often it occurs there."""

    def __getitem__(self, part: slice) -> Entries:
        """A part of the entries."""
        return Entries(self.caption[part], self.code[part], self.count[part])


@dataclass(frozen=True)
class Order:
    """The n-grams of one length n."""

    first: Ints
    """(codes,) Code of the first n - 1 words among the n-grams of that length; 0 when n = 1."""

    last: Ints
    """(codes,) Id of the last word."""

    hypotheses: Entries
    """Of the captions, numbered by image."""

    references: Entries
    """Of all references, numbered in a row."""

    in_hypothesis: Ints
    """(matches,) Place in `hypotheses` of an n-gram that a caption shares with a reference."""

    in_reference: Ints
    """(matches,) The place in `references` of the same n-gram."""


@dataclass(frozen=True)
class NgramTable:
    """All n-grams of captions and references."""

    words: tuple[str, ...]
    """The different words by id."""

    lengths: Ints
    """(images,) Number of words of each caption."""

    reference_lengths: Ints
    """(references,) Number of words of each reference."""

    reference_image: Ints
    """(references,) Number of the image that a reference belongs to."""

    orders: tuple[Order, ...]
    """The n-grams of 1 to 4 words."""

    @property
    def images(self) -> int:
        """Number of images."""
        return len(self.lengths)

    @classmethod
    def count(
        cls,
        hypotheses: Sequence[Sequence[str]],
        references: Sequence[Sequence[Sequence[str]]],
        *,
        end: bool = False,
    ) -> NgramTable:
        """Counts the n-grams.

        Args:
            hypotheses: Words of each image's caption.
            references: Words of each image's references.
            end: Whether the end of the sentence counts as a last word of every caption.
        """
        images = len(hypotheses)
        stream = WordStream.read(
            chain(hypotheses, chain.from_iterable(references)),
            end=end,
        )
        owners = np.repeat(np.arange(images), [len(captions) for captions in references])
        return cls(
            words=stream.words,
            lengths=stream.lengths[:images],
            reference_lengths=stream.lengths[images:],
            reference_image=owners,
            orders=tuple(_orders(stream, owners, images)),
        )


def distinct(keys: Ints) -> tuple[Ints, Ints]:
    """The different keys in order, and how often each is there.

    As `np.unique`, and several times faster for what is nearly sorted: keys that begin with the
    number of a caption or an image.
    """
    keys = np.sort(keys, kind="stable")
    new = np.ones(len(keys), np.bool_)
    new[1:] = keys[1:] != keys[:-1]
    first = np.flatnonzero(new)
    return keys[first], np.diff(first, append=len(keys))


def _orders(stream: WordStream, owners: Ints, images: int) -> Iterator[Order]:
    """Counts the n-grams of 1, 2, 3 and 4 words."""
    caption, room = stream.captions(), stream.room()
    start = np.arange(len(stream.ids))  # where the n-grams of the current length begin
    pairs, code = np.arange(len(stream.words)), stream.ids  # a word is its own code
    for n in range(1, ORDERS + 1):
        if n > 1:
            fits = room[start] >= n
            start, code = start[fits], code[fits]
            pairs, code = np.unique(
                code * len(stream.words) + stream.ids[start + n - 1], return_inverse=True
            )
        codes = max(1, len(pairs))
        keys, count = distinct(caption[start] * codes + code)
        entries = Entries(*np.divmod(keys, codes), count)
        border = int(np.searchsorted(entries.caption, images))
        rest = entries[border:]
        references = Entries(rest.caption - images, rest.code, rest.count)
        wanted = owners[references.caption] * codes + references.code
        yield Order(
            *np.divmod(pairs, len(stream.words)),
            entries[:border],
            references,
            *_matches(keys[:border], wanted),
        )


def _matches(keys: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Places in the sorted keys and in `wanted` of what both have; (matches,) each."""
    if not len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    place = np.searchsorted(keys, wanted)
    place[place == len(keys)] = 0
    found = np.flatnonzero(keys[place] == wanted)
    return place[found], found
