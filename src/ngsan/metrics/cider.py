"""CIDEr and its variants, and the document frequencies that they weight n-grams by.

Three scores are called CIDEr. Each compares a caption with each reference by the cosine of their
tf-idf weighted n-gram counts, averages over n = 1 to 4 and over references, and multiplies by 10.
They differ in the rest:

======================  ==========  ==============  =================================
here                    clipped,    document        elsewhere
                        penalised   frequencies of
======================  ==========  ==============  =================================
`Cider`: "CIDEr"        yes         the references  what papers and the COCO server
                                                    report as CIDEr; pycocoevalcap
`CiderD`: "CIDEr-D"     yes         as given, or    the reward of self-critical
                                    the references  training ("CIDEr-D" of the paper
                                                    of CIDEr)
`CiderPlain`:           no          as given, or    the first formula of the paper;
"CIDEr-plain"                       the references  ``cider`` of its authors' program
======================  ==========  ==============  =================================

Clipped: an n-gram counts in the product at most as often as the reference has it. Penalised: the
cosine is multiplied by exp(-d² / (2 sigma²)), where d is the difference in length and sigma is 6.
So the score that everybody calls CIDEr is actually CIDEr-D, and `CiderD` without document
frequencies equals `Cider`.

Self-critical training adds one more difference that papers often omit: whether the end of the
sentence counts as a word (`end`). Such numbers cannot be compared with published ones; their
signature has ``end:yes``.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.atomic_io import replace_file
from ngsan.metrics.captions import MeanMetric, TokenizedCaptions, rows_of_values
from ngsan.metrics.ngrams import ORDERS, Entries, Ints, NgramTable, Order, WordStream, distinct

FORMAT = 1
"""Version of the file of document frequencies."""

_SIGMA = 6.0
_SCALE = 10.0
# CIDEr takes log(max(1, frequency)): an n-gram of one image has the weight of an unseen one.
_MIN_IMAGES = 2

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DocumentFrequencies:
    """Number of images whose references contain each n-gram, usually in a training split.

    N-grams of a single image are not stored: CIDEr treats them like unseen ones, and most n-grams
    are of that kind. The prefix of an n-gram is at least as frequent as the n-gram, so every
    stored n-gram can be found through its first words.
    """

    images: int
    """Number of counted images."""
    end: bool
    """Whether the end of the sentence counts as a word."""
    words: tuple[str, ...]
    """The words of two images or more, sorted; "" is the end of the sentence."""
    keys: tuple[Ints, ...]
    """For each n the sorted n-grams: rank of the first n - 1 words * `len(words)` + last word."""
    counts: tuple[NDArray[np.int32], ...]
    """For each n the number of images of each n-gram in `keys`."""

    @classmethod
    def count(
        cls, references: Iterable[Sequence[Sequence[str]]], *, end: bool = False
    ) -> DocumentFrequencies:
        """Counts the images of every n-gram of 1 to 4 words.

        Args:
            references: References of each image, each a list of words.
            end: Whether the end of the sentence counts as a word of every reference.
        """
        sizes: list[int] = []

        def captions() -> Iterator[Sequence[str]]:
            for several in references:
                if isinstance(several, str) or any(isinstance(one, str) for one in several):
                    raise ValueError(f"{several!r} is not tokenized; tokenize it first")
                sizes.append(len(several))
                yield from several

        stream = WordStream.read(captions(), end=end)
        if not sizes:
            raise ValueError("no references to count; pass those of at least one image")
        image = np.repeat(np.arange(len(sizes)), sizes)[stream.captions()]
        rank, words = _ranks_of_words(stream, image)
        levels = list(_count_levels(rank, stream.room(), image, len(words)))
        keys, counts = zip(*levels, strict=True)
        return cls(len(sizes), end, words, keys, counts)

    def __call__(self, ngram: Sequence[str]) -> int:
        """Number of images with the n-gram of 1 to 4 words; 0 if it is 0 or 1.

        The end of the sentence is the word "".
        """
        if not 1 <= len(ngram) <= ORDERS:
            raise ValueError(f"{ngram!r} has {len(ngram)} words; pass 1 to {ORDERS}")
        rank = np.zeros(1, np.int64)
        for keys, word in zip(self.keys, ngram, strict=False):
            last = np.array([self._ids.get(word, -1)])
            rank = self._find(keys, rank, last)
        found = int(rank[0])
        return 0 if found < 0 else int(self.counts[len(ngram) - 1][found])

    def of_table(self, table: NgramTable) -> list[NDArray[np.float64]]:
        """For each n the frequency (codes,) of a table's n-grams; 0 if it is 0 or 1."""
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
        """Ranks of n-grams from the rank of their first words and the last word; -1 if unseen."""
        wanted = np.where((first < 0) | (last < 0), -1, first * len(self.words) + last)
        place = np.searchsorted(keys, wanted)
        return np.where(np.append(keys, -2)[place] == wanted, place, -1)

    @cached_property
    def signature(self) -> str:
        """Number of images and a checksum of everything that affects a score."""
        digest = hashlib.blake2b(digest_size=4)
        digest.update(f"{self.images} {self.end} {' '.join(self.words)}".encode())
        for keys, counts in zip(self.keys, self.counts, strict=True):
            digest.update(keys.astype("<i8").tobytes() + counts.astype("<i4").tobytes())
        return f"{self.images}-{digest.hexdigest()}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a compressed npz file atomically."""
        arrays: dict[str, NDArray[np.generic]] = {
            "format": np.array(FORMAT),
            "images": np.array(self.images),
            "end": np.array(self.end),
            # No word contains a line break: words were split at white space.
            "words": np.frombuffer("\n".join(self.words).encode(), np.uint8),
        }
        for n, (keys, counts) in enumerate(zip(self.keys, self.counts, strict=True), start=1):
            # Differences of sorted keys are small and compress well.
            arrays[f"steps_{n}"] = np.diff(keys, prepend=0)
            arrays[f"counts_{n}"] = counts
        with replace_file(Path(path)) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DocumentFrequencies:
        """Reads a file that `save` wrote.

        Raises:
            ValueError: The file is of another kind, damaged, or of another format version.
        """
        advice = "write the file again with DocumentFrequencies.save"
        try:
            # Opened here because NumPy leaves the file of a broken archive open.
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = dict(archive)
        except (ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} has no document frequencies ({error}); {advice}") from error
        needed = {"format", "images", "end", "words"}
        needed |= {f"{part}_{n}" for part in ("steps", "counts") for n in range(1, ORDERS + 1)}
        if missing := sorted(needed - arrays.keys()):
            raise ValueError(f"{path} has no document frequencies (no {missing[0]}); {advice}")
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


@dataclass(frozen=True)
class ConsensusMetric(MeanMetric):
    """The formula of `Cider`, `CiderD` and `CiderPlain`; the fields are where they differ.

    Note: the length in the penalty is the number of bigrams, as in the COCO tools, so captions of
        zero words and of one word have the same length.
    """

    name: str
    """Name of the score."""
    document_frequencies: DocumentFrequencies | None
    """Frequencies of n-grams; None: count them in the scored references."""
    end: bool
    """Whether the end of the sentence counts as a word of every caption."""
    clip: bool
    """Whether an n-gram's weight is clipped at its weight in the reference."""
    sigma: float | None
    """Width of the length penalty; None for no penalty."""

    def __post_init__(self) -> None:
        given = self.document_frequencies
        if given is not None and given.end != self.end:
            raise ValueError(
                f"the document frequencies were counted with end={given.end} and the metric has "
                f"end={self.end}; count them again or pass end={given.end}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def signature(self) -> Mapping[str, str]:
        given = self.document_frequencies
        return {
            "df": "references" if given is None else given.signature,
            "end": "yes" if self.end else "no",
            "clip": "yes" if self.clip else "no",
            "sigma": "none" if self.sigma is None else f"{self.sigma:g}",
            "n": str(ORDERS),
        }

    def statistics(self, captions: TokenizedCaptions) -> Floats:
        """Statistics (images, 2): the score of each image, and 1."""
        table = captions.ngrams(end=self.end)
        if self.document_frequencies is None:
            images = table.images
            frequencies = [_own_frequencies(order, table) for order in table.orders]
        else:
            images = self.document_frequencies.images
            frequencies = self.document_frequencies.of_table(table)
        similarity = np.zeros(len(table.reference_lengths))
        for order, frequency in zip(table.orders, frequencies, strict=True):
            similarity += self._cosines(order, _idf(frequency, images), table)
        if self.sigma is not None:
            bigrams = np.maximum(0, table.lengths - 1)[table.reference_image]
            distance = bigrams - np.maximum(0, table.reference_lengths - 1)
            similarity *= np.exp(-(distance**2) / (2 * self.sigma**2))
        sums = _sums(table.reference_image, similarity, table.images)
        counts = np.bincount(table.reference_image, minlength=table.images)
        return rows_of_values(_SCALE * sums / (ORDERS * counts))

    def _cosines(self, order: Order, idf: Floats, table: NgramTable) -> Floats:
        """(references,) Cosine of each reference and its image's caption, for one n."""
        hypothesis = order.hypotheses.count * idf[order.hypotheses.code]
        reference = order.references.count * idf[order.references.code]
        theirs = reference[order.in_reference]
        ours = hypothesis[order.in_hypothesis]
        product = (np.minimum(ours, theirs) if self.clip else ours) * theirs
        references = len(table.reference_lengths)
        dots = _sums(order.references.caption[order.in_reference], product, references)
        norms = _norms(order.hypotheses, hypothesis, table.images)[table.reference_image]
        norms = norms * _norms(order.references, reference, references)
        # If a norm is zero, so are all weights and the product.
        return np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)


class Cider(ConsensusMetric):
    """CIDEr as papers report it, with the document frequencies of the scored references."""

    def __init__(self) -> None:
        # No options, so that the name has one meaning.
        super().__init__("CIDEr", None, end=False, clip=True, sigma=_SIGMA)


class CiderD(ConsensusMetric):
    """CIDEr-D: the formula of `Cider` with the given document frequencies, as in training.

    Args:
        document_frequencies: Those of a training split; None: those of the scored references.
        end: Whether the end of the sentence counts as a word of every caption; the document
            frequencies must agree.
    """

    def __init__(
        self, document_frequencies: DocumentFrequencies | None = None, *, end: bool = False
    ) -> None:
        super().__init__("CIDEr-D", document_frequencies, end=end, clip=True, sigma=_SIGMA)


class CiderPlain(ConsensusMetric):
    """The original CIDEr: the cosine without clipping and length penalty."""

    def __init__(self, document_frequencies: DocumentFrequencies | None = None) -> None:
        super().__init__("CIDEr-plain", document_frequencies, end=False, clip=False, sigma=None)


def _own_frequencies(order: Order, table: NgramTable) -> Floats:
    """(codes,) Number of images whose references contain each n-gram."""
    codes = max(1, len(order.last))
    image = table.reference_image[order.references.caption]
    once, _ = distinct(image * codes + order.references.code)  # count an image once
    return np.bincount(once % codes, minlength=codes).astype(np.float64)


def _idf(frequency: Floats, images: int) -> Floats:
    """(codes,) Inverse document frequency: log(images / max(1, frequency))."""
    idf: Floats = np.log(images) - np.log(np.maximum(1.0, frequency))
    # Exactly zero; rounding errors would give a vector of such n-grams a direction.
    idf[frequency >= images] = 0.0
    return idf


def _norms(entries: Entries, weights: Floats, captions: int) -> Floats:
    """(captions,) Norm of each caption's weight vector."""
    return np.sqrt(_sums(entries.caption, weights**2, captions))


def _sums(index: Ints, weights: Floats, size: int) -> Floats:
    """(size,) Sum of the weights per index."""
    # bincount of an empty index gives integers.
    return np.bincount(index, weights, size).astype(np.float64, copy=False)


def _ranks_of_words(stream: WordStream, image: Ints) -> tuple[Ints, tuple[str, ...]]:
    """(positions,) Rank of each word among the kept words, or -1; and the kept words, sorted."""
    size = len(stream.words)
    images_of = np.bincount(distinct(image * size + stream.ids)[0] % size, minlength=size)
    kept = sorted(np.flatnonzero(images_of >= _MIN_IMAGES).tolist(), key=stream.words.__getitem__)
    rank = np.full(size, -1)
    rank[kept] = np.arange(len(kept))
    return rank[stream.ids], tuple(stream.words[number] for number in kept)


def _count_levels(
    word: Ints, room: Ints, image: Ints, words: int
) -> Iterator[tuple[Ints, NDArray[np.int32]]]:
    """For n = 1 to 4 the sorted keys of the kept n-grams, and their numbers of images.

    Args:
        word: Rank of the word at each position, -1 if it is not kept.
        room: Number of words from each position to the end of its caption.
        image: Index of the image at each position.
        words: Number of kept words.
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
        once, _ = distinct(image[start] * codes + code)  # count an image once
        images_of = np.bincount(once % codes, minlength=len(keys))
        often = images_of >= _MIN_IMAGES
        new_rank = np.where(often, np.cumsum(often) - 1, -1)
        rank = new_rank[code]
        start, rank = start[rank >= 0], rank[rank >= 0]
        yield keys[often], images_of[often].astype(np.int32)
