"""References as tensors of word ids, and their n-grams shared with captions.

Everything is prepared once. After that, matching is a fixed sequence of tensor operations whose
shapes follow from the shapes of the arguments: no value is ever read back from the device.

Shapes: `B` images of a call, `S` captions per image, `T` words, `R` maximum references per image,
`P` maximum distinct n-grams in an image's references, `V` vocabulary, `M` prepared images. The
axis of size 4 is the order of the n-grams, minus one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ngsan.metrics.ngrams import ORDERS, count_ngrams

Ints = NDArray[np.int64]

_MAX_KEY = torch.iinfo(torch.int64).max
_MAX_ID = torch.iinfo(torch.int32).max
"""Above every id of an n-gram."""

_BLOCK = 2**20
"""Counts processed together while preparing, to bound memory."""


class NgramDocuments(nn.Module):
    """The n-grams of a split's references, and the number of images that contain each.

    Every n-gram has an id. A single word has the id of the word. A longer n-gram is the pair of
    its prefix (the id of the n-gram without the last word) and its last word; the ids of longer
    n-grams continue in the sorted order of these pairs. So an n-gram is found by an exact binary
    search for its pair, and is unknown if its prefix is.
    """

    keys: Tensor
    frequencies: Tensor

    def __init__(
        self, keys: list[Tensor], frequencies: Tensor, *, images: int, vocab_size: int, end: bool
    ) -> None:
        """Stores the counts.

        Args:
            keys: For orders 2 to 4, the sorted pairs.
            frequencies: By n-gram id, the number of images; then 0 for "unknown".
            images: Number of images in the split.
            vocab_size: V.
            end: Whether the end of a caption counts as a word.
        """
        super().__init__()
        self.images, self.vocab_size, self.end = images, vocab_size, end
        self.sizes = (vocab_size, *map(len, keys))
        """Number of ids of each order."""
        self.unknown = sum(self.sizes)
        """The id of all n-grams that are not in the split."""
        # Ids grow with the order, and so do the pairs with these prefixes: the joined table is
        # sorted. The last key, which no n-gram has, keeps every search inside the table.
        table = torch.cat((*keys, frequencies.new_tensor([_MAX_KEY])))
        self.register_buffer("keys", table, persistent=False)
        self.register_buffer("frequencies", frequencies.int(), persistent=False)

    def find(self, prefixes: Tensor, words: Tensor) -> Tensor:
        """Ids of n-grams; `unknown` for those that are not in the split.

        Args:
            prefixes: Ids of the n-grams without their last words, any shape.
            words: The last words; `vocab_size` for none.
        """
        keys = prefixes * (self.vocab_size + 1) + words
        places = torch.searchsorted(self.keys, keys)
        return torch.where(self.keys[places] == keys, places + self.vocab_size, self.unknown)

    def look_up(self, words: Tensor) -> Tensor:
        """Ids of the n-grams of captions.

        Args:
            words: (..., T + 3) word ids; at least three times `vocab_size` after the last word.

        Returns:
            (..., 4, T) ids of the n-grams that start at each word.
        """
        max_length = words.shape[-1] - ORDERS + 1
        first = words[..., :max_length]
        ids = [torch.where(first < self.vocab_size, first, self.unknown)]
        for order in range(1, ORDERS):
            ids.append(self.find(ids[-1], words[..., order : order + max_length]))
        return torch.stack(ids, dim=-2)

    def translate(self, other: "NgramDocuments") -> Tensor:
        """The id here of every id in another table, including "unknown"."""
        ids = torch.arange(other.vocab_size, device=self.keys.device)
        first = 0
        for size in other.sizes[1:]:
            keys = other.keys[first : first + size]
            base = other.vocab_size + 1
            ids = torch.cat((ids, self.find(ids[keys // base], keys % base)))
            first += size
        return torch.cat((ids, ids.new_tensor([self.unknown])))

    def inverse_frequencies(self) -> Tensor:
        """log(images / max(1, frequency)) by id, in double precision."""
        # The log of the quotient is exactly zero for an n-gram of every image.
        return (self.images / self.frequencies.clamp(min=1).double()).log()


@dataclass(frozen=True)
class Matches:
    """N-grams that captions share with the references of their images."""

    words: Tensor
    """(B, S, T + 3) word ids, then `vocab_size`."""
    lengths: Tensor
    """(B, S) number of words of the captions."""
    ids: Tensor
    """(B, S, 4, T) ids, in `References.documents`, of the n-grams that start at each word."""
    mask: Tensor
    """(B, S, 4, T) boolean, True = the n-gram ends within the caption."""
    frequencies: Tensor
    """(B, S, 4, T) float: count of the n-gram in the caption; at least 1 outside of the mask."""
    counts: Tensor
    """(B, S, 4, T, R) float: count of the n-gram in each reference; 0 for padding."""
    reference: Tensor
    """(B, R) index of each reference among those of all images."""
    reference_mask: Tensor
    """(B, R) boolean, True = a real reference."""
    reference_lengths: Tensor
    """(B, R) number of words of the references; arbitrary for padding."""


class References(nn.Module):
    """The references of M images, prepared for `match`.

    Each image has the sorted ids of the n-grams in its references, and for each of these its count
    in every reference.
    """

    first_reference: Tensor
    first_ngram: Tensor
    first_count: Tensor
    lengths: Tensor
    ngrams: Tensor
    counts: Tensor

    def __init__(
        self,
        captions: Sequence[Sequence[Sequence[int]]],
        *,
        vocab_size: int,
        end: bool,
        boundary: int = 0,
    ) -> None:
        super().__init__()
        self.vocab_size, self.end, self.boundary = vocab_size, end, boundary
        ids, lengths, sizes = _flatten(captions, vocab_size=vocab_size, end=end, boundary=boundary)
        self.most_references = slots = int(sizes.max())
        image_of = np.repeat(np.arange(len(sizes)), sizes)
        slot_of = np.arange(len(lengths)) - np.repeat(_starts(sizes)[:-1], sizes)
        # Ids of longer n-grams follow those of shorter ones.
        keys, numbers, references, counts = [], [], [], []
        first = unknown = 0
        for pairs, entries in count_ngrams(ids, lengths, vocab_size):
            if unknown:
                prefix, last = np.divmod(pairs, vocab_size)
                keys.append((prefix + first) * (vocab_size + 1) + last)
                first = unknown
            numbers.append(entries.code + first)
            references.append(entries.caption)
            counts.append(entries.count)
            unknown += len(pairs)
        ngram, reference, count = map(np.concatenate, (numbers, references, counts))
        row = image_of[reference] * unknown + ngram
        order = np.argsort(row, kind="stable")  # fast, because the rows are nearly sorted
        reference, count, row = reference[order], count[order], row[order]
        new = np.diff(row, prepend=-1) > 0
        rows, row = row[new], np.cumsum(new) - 1
        image, ngram = np.divmod(rows, unknown)
        of_image = np.bincount(image, minlength=len(sizes))
        self.most_ngrams = max(1, int(of_image.max()))
        first_ngram, first_count = _starts(of_image), _starts(of_image * sizes)
        place = first_count[image] + sizes[image] * (np.arange(len(rows)) - first_ngram[image])
        # After the last count there are zeros, which an unknown n-gram reads.
        kind = np.uint8 if count.max(initial=0) < 256 else np.int32
        table = np.zeros(first_count[-1] + slots, kind)
        table[place[row] + slot_of[reference]] = count
        self.documents = NgramDocuments(
            [torch.from_numpy(part) for part in keys],
            torch.from_numpy(np.bincount(ngram, minlength=unknown + 1)),
            images=len(sizes),
            vocab_size=vocab_size,
            end=end,
        )
        ngrams = np.append(ngram, _MAX_ID).astype(np.int32)
        for name, values in {
            "first_reference": _starts(sizes),
            "first_ngram": first_ngram,
            "first_count": first_count,
            "lengths": lengths.astype(np.int32),
            "ngrams": ngrams,
            "counts": table,
        }.items():
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    @classmethod
    def build(
        cls,
        captions: Sequence[Sequence[Sequence[int]]],
        *,
        vocab_size: int,
        end: bool,
        boundary: int = 0,
        device: torch.device | str = "cpu",
    ) -> "References":
        """Prepares the references of images.

        Args:
            captions: The references of each image, at least one, as word ids without a boundary.
                The index of an image in this list is its index in `match`.
            vocab_size: V; all ids are below it.
            end: Whether the end counts as one more word of every reference and every complete
                caption.
            boundary: The id that ends a caption.
            device: Where to keep the tables.
        """
        return cls(captions, vocab_size=vocab_size, end=end, boundary=boundary).to(device)

    def match(self, images: Tensor, captions: Tensor) -> Matches:
        """Compares captions with the references of their images.

        Args:
            images: (B,) indices of prepared images.
            captions: (B, S, T) word ids below `vocab_size`; ids after the first boundary are
                ignored.
        """
        device, max_length = captions.device, captions.shape[-1]
        captions = captions.long()
        ended = captions == self.boundary
        ends = ended.cumsum(-1)
        real = ends - ended.long() == 0 if self.end else ends == 0
        lengths = real.sum(-1)
        words = F.pad(
            torch.where(real, captions, self.vocab_size), (0, ORDERS - 1), value=self.vocab_size
        )
        orders = torch.arange(ORDERS, device=device).unsqueeze(-1)
        last = orders + torch.arange(max_length, device=device)  # (4, T)
        ids = self.documents.look_up(words)
        slots = torch.arange(self.most_references, device=device)
        first = self.first_reference[images].unsqueeze(-1)
        references = self.first_reference[images + 1].unsqueeze(-1) - first  # (B, 1)
        reference_mask = slots < references
        reference = torch.where(reference_mask, first + slots, 0)
        return Matches(
            words=words,
            lengths=lengths,
            ids=ids,
            mask=last < lengths[..., None, None],
            frequencies=_repetitions(words),
            counts=self._counts(images, ids, references, reference_mask),
            reference=reference,
            reference_mask=reference_mask,
            reference_lengths=self.lengths[reference],
        )

    def _counts(
        self, images: Tensor, ids: Tensor, references: Tensor, reference_mask: Tensor
    ) -> Tensor:
        """Counts of the n-grams in the references, (B, S, 4, T, R)."""
        first = self.first_ngram[images].unsqueeze(-1)
        places = first + torch.arange(self.most_ngrams, device=ids.device)
        inside = places < self.first_ngram[images + 1].unsqueeze(-1)
        # Rows are sorted for the search, so the padding is above all ids.
        after = len(self.ngrams) - 1
        rows = self.ngrams[torch.where(inside, places, after)]
        wanted = ids.flatten(1).to(rows.dtype)
        found = torch.searchsorted(rows, wanted).clamp(max=self.most_ngrams - 1)
        same = rows.gather(1, found) == wanted
        start = self.first_count[images].unsqueeze(-1) + found * references
        nothing = len(self.counts) - self.most_references
        start = torch.where(same, start, nothing).view(*ids.shape, 1)
        slots = torch.arange(self.most_references, device=ids.device)
        mask = reference_mask[:, None, None, None]
        return self.counts[start + slots].float() * mask

    def squared_norms(self, inverse_frequencies: Tensor) -> Tensor:
        """Squared norms (references, 4) of the references' tf-idf vectors, in double precision.

        Args:
            inverse_frequencies: By n-gram id in `documents`, double precision.
        """
        bounds = torch.tensor(self.documents.sizes[:-1], device=self.counts.device).cumsum(0)
        norms = inverse_frequencies.new_zeros(len(self.lengths) * ORDERS)
        for start in range(0, len(self.counts), _BLOCK):
            place = self.counts[start : start + _BLOCK].nonzero().squeeze(-1) + start
            image = torch.searchsorted(self.first_count, place, right=True) - 1
            references = self.first_reference[image + 1] - self.first_reference[image]
            within = place - self.first_count[image]
            ngram = self.ngrams[self.first_ngram[image] + within // references].long()
            weights = (self.counts[place] * inverse_frequencies[ngram]).square()
            order = torch.searchsorted(bounds, ngram, right=True)
            reference = self.first_reference[image] + within % references
            norms.index_add_(0, reference * ORDERS + order, weights)
        return norms.view(-1, ORDERS)


def _flatten(
    captions: Sequence[Sequence[Sequence[int]]], *, vocab_size: int, end: bool, boundary: int
) -> tuple[Ints, Ints, Ints]:
    """Word ids of all references, words per reference, and references per image."""
    if not captions:
        raise ValueError("no images; pass at least one with a reference")
    if not 0 <= boundary < vocab_size:
        raise ValueError(f"boundary {boundary} is not an id below vocab_size {vocab_size}")
    sizes = np.fromiter(map(len, captions), np.int64, len(captions))
    if not sizes.all():
        raise ValueError(f"image {int(sizes.argmin())} has no reference; omit the image")
    lengths = np.fromiter(map(len, chain.from_iterable(captions)), np.int64, int(sizes.sum()))
    words = chain.from_iterable(chain.from_iterable(captions))
    ids = np.fromiter(words, np.int64, int(lengths.sum()))
    if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
        raise ValueError(
            f"word ids from {ids.min()} to {ids.max()} are out of range for vocab_size "
            f"{vocab_size}: 0 to {vocab_size - 1}"
        )
    if (ids == boundary).any():
        raise ValueError(f"a reference contains the boundary, {boundary}; pass only its words")
    if end:
        ids = np.insert(ids, lengths.cumsum(), boundary)
        lengths += 1
    return ids, lengths, sizes


def _starts(sizes: Ints) -> Ints:
    """Offsets of consecutive parts of these sizes, and the end."""
    return np.concatenate(([0], np.cumsum(sizes)))


def _repetitions(words: Tensor) -> Tensor:
    """Count in the caption of the n-gram that starts at each word: (..., T + 3) to (..., 4, T)."""
    max_length = words.shape[-1] - ORDERS + 1
    same = words.unsqueeze(-1) == words.unsqueeze(-2)
    equal = [same[..., :max_length, :max_length]]
    for order in range(1, ORDERS):
        shifted = slice(order, order + max_length)
        equal.append(equal[-1] & same[..., shifted, shifted])
    return torch.stack(equal, dim=-3).sum(-1, dtype=torch.float32)
