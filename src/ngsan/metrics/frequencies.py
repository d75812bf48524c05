"""In how many images' references an n-gram occurs: the rarity that CIDEr weighs n-grams by."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.durable import replacing
from ngsan.metrics.ngrams import ORDERS, Ints, NgramTable, WordStream, distinct

__all__ = ["DocumentFrequencies"]

FORMAT = 1
"""Version of the file."""

# CIDEr takes log(max(1, frequency)): an n-gram of a single image weighs like one of none.
_LEAST = 2


@dataclass(frozen=True, eq=False)
class DocumentFrequencies:
    """Document frequencies of a set of references, usually of a training split.

    N-grams that occur in one image only are left out: to CIDEr they are the same as unseen ones,
    and most n-grams are of that kind. What an n-gram begins with is at least as frequent as
    itself, so every n-gram that is kept can be found through its first words.
    """

    images: int
    """Number of images that were counted."""

    end: bool
    """Whether the end of the sentence was counted as a word."""

    words: tuple[str, ...]
    """The words that occur in two images or more, in order; "" is the end of the sentence."""

    keys: tuple[Ints, ...]
    """For each n the sorted n-grams: rank of the first n - 1 words x `len(words)` + last word."""

    counts: tuple[NDArray[np.int32], ...]
    """For each n the number of images of each n-gram of `keys`."""

    @classmethod
    def count(
        cls, references: Iterable[Sequence[Sequence[str]]], *, end: bool = False
    ) -> DocumentFrequencies:
        """Counts the images of every n-gram of 1 to 4 words.

        Args:
            references: For each image its references, each a list of words.
            end: Whether the end of the sentence counts as a word of every reference.

        Raises:
            ValueError: There are no images.
        """
        sizes: list[int] = []

        def captions() -> Iterator[Sequence[str]]:
            for several in references:
                if isinstance(several, str) or any(isinstance(one, str) for one in several):
                    raise ValueError(f"{several!r} is not cut into words; tokenise it first")
                sizes.append(len(several))
                yield from several

        stream = WordStream.read(captions(), end=end)
        if not sizes:
            raise ValueError("there are no references to count; give those of at least one image")
        image = np.repeat(np.arange(len(sizes)), sizes)[stream.captions()]
        rank, words = _ranks_of_words(stream, image)
        levels = list(_count_levels(rank, stream.room(), image, len(words)))
        keys, counts = zip(*levels, strict=True)
        return cls(len(sizes), end, words, keys, counts)

    def __call__(self, ngram: Sequence[str]) -> int:
        """Number of images whose references have the n-gram of 1 to 4 words; 0 for 0 or 1 image.

        The end of the sentence is the word "".
        """
        if not 1 <= len(ngram) <= ORDERS:
            raise ValueError(f"{ngram!r} has {len(ngram)} words; give 1 to {ORDERS}")
        rank = np.zeros(1, np.int64)
        for keys, word in zip(self.keys, ngram, strict=False):
            last = np.array([self._ids.get(word, -1)])
            rank = self._find(keys, rank, last)
        found = int(rank[0])
        return 0 if found < 0 else int(self.counts[len(ngram) - 1][found])

    def of_table(self, table: NgramTable) -> list[NDArray[np.float64]]:
        """For each n the frequency (codes,) of the n-grams of a table; 0 for 0 or 1 image."""
        words = np.array([self._ids.get(word, -1) for word in table.words])
        rank = np.zeros(1, np.int64)
        found = []
        for keys, counts, order in zip(self.keys, self.counts, table.orders, strict=True):
            rank = self._find(keys, rank[order.first], words[order.last])
            found.append(np.where(rank < 0, 0, np.append(counts, 0)[rank]).astype(np.float64))
        return found

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def _find(self, keys: Ints, first: Ints, last: Ints) -> Ints:
        """Ranks of n-grams by the rank of their first words and the id of the last; -1 if none."""
        wanted = np.where((first < 0) | (last < 0), -1, first * len(self.words) + last)
        place = np.searchsorted(keys, wanted)
        return np.where(np.append(keys, -2)[place] == wanted, place, -1)

    @cached_property
    def signature(self) -> str:
        """Number of images and a check sum of everything that decides a score."""
        digest = hashlib.blake2b(digest_size=4)
        digest.update(f"{self.images} {self.end} {' '.join(self.words)}".encode())
        for keys, counts in zip(self.keys, self.counts, strict=True):
            digest.update(keys.astype("<i8").tobytes() + counts.astype("<i4").tobytes())
        return f"{self.images}-{digest.hexdigest()}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a compressed npz file, whole or not at all."""
        arrays: dict[str, NDArray[np.generic]] = {
            "format": np.array(FORMAT),
            "images": np.array(self.images),
            "end": np.array(self.end),
            # No word has a line break in it: words were cut at white space.
            "words": np.frombuffer("\n".join(self.words).encode(), np.uint8),
        }
        for n, (keys, counts) in enumerate(zip(self.keys, self.counts, strict=True), start=1):
            # Differences of sorted keys are small, hence compress well.
            arrays[f"steps_{n}"] = np.diff(keys, prepend=0)
            arrays[f"counts_{n}"] = counts
        with replacing(Path(path)) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DocumentFrequencies:
        """Reads what `save` wrote.

        Raises:
            ValueError: The file is something else, is damaged, or has a newer format.
        """
        advice = "make the file again with DocumentFrequencies.save"
        try:
            # Opened here, since NumPy leaves the file of a broken archive open.
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = dict(archive)
        except (ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} holds no document frequencies ({error}); {advice}") from error
        needed = {"format", "images", "end", "words"}
        needed |= {f"{part}_{n}" for part in ("steps", "counts") for n in range(1, ORDERS + 1)}
        if missing := sorted(needed - arrays.keys()):
            raise ValueError(f"{path} holds no document frequencies (no {missing[0]}); {advice}")
        if (found := int(arrays["format"])) != FORMAT:
            raise ValueError(f"{path} has format {found} and this version reads {FORMAT}; {advice}")
        text = arrays["words"].tobytes().decode()
        levels = range(1, ORDERS + 1)
        return cls(
            images=int(arrays["images"]),
            end=bool(arrays["end"]),
            words=tuple(text.split("\n")) if len(arrays["steps_1"]) else (),
            keys=tuple(np.cumsum(arrays[f"steps_{n}"]) for n in levels),
            counts=tuple(arrays[f"counts_{n}"] for n in levels),
        )


def _ranks_of_words(stream: WordStream, image: Ints) -> tuple[Ints, tuple[str, ...]]:
    """At each position the rank of its word among those kept, in order, or -1; and these words."""
    size = len(stream.words)
    images_of = np.bincount(distinct(image * size + stream.ids)[0] % size, minlength=size)
    kept = sorted(np.flatnonzero(images_of >= _LEAST).tolist(), key=stream.words.__getitem__)
    rank = np.full(size, -1)
    rank[kept] = np.arange(len(kept))
    return rank[stream.ids], tuple(stream.words[number] for number in kept)


def _count_levels(
    word: Ints, room: Ints, image: Ints, words: int
) -> Iterator[tuple[Ints, NDArray[np.int32]]]:
    """For n = 1 to 4 the sorted keys of the n-grams that are kept, and their numbers of images.

    Args:
        word: Rank of the word at each position, -1 for one that is not kept.
        room: Number of words from each position to the end of its caption.
        image: Number of the image at each position.
        words: Number of the words that are kept.
    """
    start = np.arange(len(word))
    rank = np.zeros_like(start)
    for n in range(1, ORDERS + 1):
        fits = room[start] >= n
        start, rank = start[fits], rank[fits]
        last = word[start + n - 1]
        kept = last >= 0
        start, rank, last = start[kept], rank[kept], last[kept]
        keys, code = np.unique(rank * words + last, return_inverse=True)
        codes = max(1, len(keys))
        once, _ = distinct(image[start] * codes + code)  # several captions, one image
        images_of = np.bincount(once % codes, minlength=len(keys))
        often = images_of >= _LEAST
        new_rank = np.where(often, np.cumsum(often) - 1, -1)
        rank = new_rank[code]
        start, rank = start[rank >= 0], rank[rank >= 0]
        yield keys[often], images_of[often].astype(np.int32)
