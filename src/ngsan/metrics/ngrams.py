"""N-grams of a set of captions as arrays: counted once, used by BLEU and CIDEr.

A word becomes an id. An n-gram becomes the rank of the pair (its first n - 1 words, its last word)
among all such pairs. So every n-gram has a small code, whatever the size of the vocabulary, and
nothing depends on a hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

ORDERS = 4
"""Length of the longest n-grams."""

END = ""
"""The end of the sentence where it counts as a word; no real word is empty."""

Ints = NDArray[np.int64]


class _Ids(dict[str, int]):
    """Word -> id; a new word gets the next one."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


@dataclass(frozen=True)
class WordStream:
    """The words of many captions, concatenated."""

    words: tuple[str, ...]
    """The distinct words by id; the first is `END`, whether it is used or not."""
    ids: Ints
    """(positions,) Word id at each position."""
    lengths: Ints
    """(captions,) Number of words, including the end of the sentence if it counts."""

    @classmethod
    def read(cls, captions: Iterable[Sequence[str]], *, end: bool) -> WordStream:
        """Numbers the words; words with inner white space are split, as in the COCO tools."""
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
        """(positions,) Index of the caption."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def room(self) -> Ints:
        """(positions,) Number of words from here to the end of the caption, inclusive."""
        return np.repeat(np.cumsum(self.lengths), self.lengths) - np.arange(len(self.ids))


@dataclass(frozen=True)
class Entries:
    """N-gram counts of captions: a sparse matrix, sorted by caption, then by code."""

    caption: Ints
    """Index of the caption."""
    code: Ints
    """Code of the n-gram."""
    count: Ints
    """How often the caption has the n-gram."""

    def __getitem__(self, part: slice) -> Entries:
        return Entries(self.caption[part], self.code[part], self.count[part])


@dataclass(frozen=True)
class Order:
    """The n-grams of one length n."""

    first: Ints
    """(codes,) Code of the first n - 1 words among the n-grams of that length; 0 if n = 1."""
    last: Ints
    """(codes,) Id of the last word."""
    hypotheses: Entries
    """N-grams of the captions, one caption per image."""
    references: Entries
    """N-grams of all references, numbered consecutively."""
    in_hypothesis: Ints
    """(matches,) Index in `hypotheses` of an n-gram that a caption shares with a reference."""
    in_reference: Ints
    """(matches,) Index in `references` of the same n-gram."""


@dataclass(frozen=True)
class NgramTable:
    """All n-grams of captions and references."""

    words: tuple[str, ...]
    """The distinct words by id."""
    lengths: Ints
    """(images,) Number of words of each caption."""
    reference_lengths: Ints
    """(references,) Number of words of each reference."""
    reference_image: Ints
    """(references,) Index of the image of each reference."""
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
    """The distinct keys in order, and the count of each.

    Like `np.unique`, but several times faster for nearly sorted keys, such as keys that start with
    the index of a caption or an image.
    """
    keys = np.sort(keys, kind="stable")
    new = np.ones(len(keys), np.bool_)
    new[1:] = keys[1:] != keys[:-1]
    first = np.flatnonzero(new)
    return keys[first], np.diff(first, append=len(keys))


def count_ngrams(ids: Ints, lengths: Ints, size: int) -> Iterator[tuple[Ints, Entries]]:
    """Counts the n-grams of 1, 2, 3 and 4 words in each caption.

    Args:
        ids: Word ids of all captions, concatenated.
        lengths: Number of words of each caption.
        size: Number of words in the vocabulary.

    Yields:
        For each n, the distinct n-grams in order, as code of the first n - 1 words * `size` + last
        word; and their counts by caption. The code of an n-gram is its index; that of a single
        word is the word's id.
    """
    caption = np.repeat(np.arange(len(lengths)), lengths)
    room = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(ids))
    start = np.arange(len(ids))  # where the n-grams of the current length start
    pairs, code = np.arange(size), ids
    for n in range(1, ORDERS + 1):
        if n > 1:
            fits = room[start] >= n
            start, code = start[fits], code[fits]
            pairs, code = np.unique(code * size + ids[start + n - 1], return_inverse=True)
        codes = max(1, len(pairs))
        keys, count = distinct(caption[start] * codes + code)
        yield pairs, Entries(*np.divmod(keys, codes), count)


def _orders(stream: WordStream, owners: Ints, images: int) -> Iterator[Order]:
    """N-grams of captions and references; the captions of the images come first in the stream."""
    size = len(stream.words)
    for pairs, entries in count_ngrams(stream.ids, stream.lengths, size):
        codes = max(1, len(pairs))
        border = int(np.searchsorted(entries.caption, images))
        hypotheses, rest = entries[:border], entries[border:]
        references = Entries(rest.caption - images, rest.code, rest.count)
        keys = hypotheses.caption * codes + hypotheses.code
        wanted = owners[references.caption] * codes + references.code
        yield Order(*np.divmod(pairs, size), hypotheses, references, *_matches(keys, wanted))


def _matches(keys: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Indices in the sorted keys and in `wanted` of the keys that both have; (matches,) each."""
    if not len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    place = np.searchsorted(keys, wanted)
    place[place == len(keys)] = 0
    found = np.flatnonzero(keys[place] == wanted)
    return place[found], found
