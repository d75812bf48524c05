"""The n-grams of references as ids, and in how many images each of them occurs.

Shapes: `T` words, `V` vocabulary, `M` images. An axis of size 4 is the order of n-grams, less one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

ORDERS = 4
_LAST = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class FlatReferences:
    """References after one another."""

    words: Tensor
    """Word ids, the end included where it counts."""
    left: Tensor
    """For every word, the words from it to the end of its reference, itself included."""
    image: Tensor
    """For every word, its image."""
    slot: Tensor
    """For every word, which of its image's references it is in."""
    lengths: Tensor
    """For every reference, its words."""
    references: Tensor
    """(M,) references of every image."""

    @classmethod
    def flatten(
        cls,
        captions: Sequence[Sequence[Sequence[int]]],
        *,
        vocab_size: int,
        end: bool,
        boundary: int,
        device: torch.device | str,
    ) -> "FlatReferences":
        """Checks and lays out nested sequences; `References.build` explains the arguments."""
        if not captions:
            raise ValueError("there are no images; give at least one with a reference")
        if not 0 <= boundary < vocab_size:
            raise ValueError(f"boundary {boundary} is not an id below vocab_size {vocab_size}")
        of_image = np.fromiter(map(len, captions), np.int64, len(captions))
        if not of_image.all():
            raise ValueError(f"image {int(of_image.argmin())} has no reference; leave it out")
        lengths = np.fromiter(
            map(len, chain.from_iterable(captions)), np.int64, int(of_image.sum())
        )
        words = np.fromiter(
            chain.from_iterable(chain.from_iterable(captions)), np.int64, int(lengths.sum())
        )
        if words.size and not (words.min() >= 0 and words.max() < vocab_size):
            raise ValueError(
                f"word ids run from {words.min()} to {words.max()}; "
                f"with vocab_size {vocab_size} they are from 0 to {vocab_size - 1}"
            )
        if (words == boundary).any():
            raise ValueError(f"a reference holds the boundary, {boundary}; give its words alone")
        if end:
            words = np.insert(words, lengths.cumsum(), boundary)
            lengths += 1
        return cls._place(*(torch.from_numpy(x).to(device) for x in (words, lengths, of_image)))

    @classmethod
    def _place(cls, words: Tensor, lengths: Tensor, references: Tensor) -> "FlatReferences":
        image = torch.arange(len(references), device=words.device)
        image_of_reference = image.repeat_interleave(references)
        first = references.cumsum(0) - references
        slot = torch.arange(len(lengths), device=words.device) - first[image_of_reference]
        stop = lengths.cumsum(0).repeat_interleave(lengths)
        return cls(
            words=words,
            left=stop - torch.arange(len(words), device=words.device),
            image=image_of_reference.repeat_interleave(lengths),
            slot=slot.repeat_interleave(lengths),
            lengths=lengths,
            references=references,
        )


class NgramDocuments(nn.Module):
    """The n-grams of a split's references, and in how many images each of them occurs.

    Every n-gram has an id. That of a single word is the word's own; a longer one is the pair of
    the n-gram without its last word, by id, and that word, and pairs are numbered on as they are
    sorted. So a longer n-gram is found by a binary search for its pair, exactly and in any
    vocabulary, and is unknown when its beginning is.
    """

    keys: Tensor
    frequencies: Tensor

    def __init__(
        self, keys: list[Tensor], frequencies: Tensor, *, images: int, vocab_size: int, end: bool
    ) -> None:
        """Takes what was counted.

        Args:
            keys: For the orders from two on, the sorted pairs.
            frequencies: By n-gram id, the images that it occurs in; a zero for "unknown" last.
            images: Images of the split, at least as many as any frequency.
            vocab_size: V.
            end: Whether the end of a caption counts as a word.
        """
        super().__init__()
        self.images, self.vocab_size, self.end = images, vocab_size, end
        self.sizes = (vocab_size, *map(len, keys))
        """Ids of every order."""
        self.unknown = sum(self.sizes)
        """The id of every n-gram that the split does not have."""
        # Ids grow with the order, so do the pairs that they begin: one table is sorted throughout.
        # A last key that no n-gram has keeps every search inside of it.
        table = torch.cat((*keys, frequencies.new_tensor([_LAST])))
        self.register_buffer("keys", table, persistent=False)
        self.register_buffer("frequencies", frequencies.int(), persistent=False)

    @classmethod
    def count(
        cls,
        captions: Sequence[Sequence[Sequence[int]]],
        *,
        vocab_size: int,
        end: bool,
        boundary: int = 0,
        device: torch.device | str = "cpu",
    ) -> "NgramDocuments":
        """Counts a split; the arguments are those of `References.build`."""
        flat = FlatReferences.flatten(
            captions, vocab_size=vocab_size, end=end, boundary=boundary, device=device
        )
        keys, places, ids = number_ngrams(flat, vocab_size)
        unknown = vocab_size + sum(map(len, keys))
        pairs = [flat.image[at] * unknown + id_ for at, id_ in zip(places, ids, strict=True)]
        frequencies = (torch.unique(torch.cat(pairs)) % unknown).bincount(minlength=unknown + 1)
        images = len(flat.references)
        return cls(keys, frequencies, images=images, vocab_size=vocab_size, end=end)

    def find(self, beginnings: Tensor, words: Tensor) -> Tensor:
        """Ids of n-grams.

        Args:
            beginnings: Ids of the n-grams without their last words, any shape.
            words: The last words; `vocab_size` stands for none.

        Returns:
            Ids; `unknown` for those that the split does not have.
        """
        keys = beginnings * (self.vocab_size + 1) + words
        places = torch.searchsorted(self.keys, keys)
        return torch.where(self.keys[places] == keys, places + self.vocab_size, self.unknown)

    def look_up(self, words: Tensor) -> Tensor:
        """Ids of the n-grams of captions.

        Args:
            words: (..., T + 3) word ids; `vocab_size` after the last of a caption, three times
                at least.

        Returns:
            (..., 4, T) ids of the n-grams that begin at each word.
        """
        longest = words.shape[-1] - ORDERS + 1
        first = words[..., :longest]
        ids = [torch.where(first < self.vocab_size, first, self.unknown)]
        for order in range(1, ORDERS):
            ids.append(self.find(ids[-1], words[..., order : order + longest]))
        return torch.stack(ids, dim=-2)

    def translate(self, other: "NgramDocuments") -> Tensor:
        """For every id of another table, "unknown" included, the id here."""
        ids = torch.arange(other.vocab_size, device=self.keys.device)
        first = 0
        for size in other.sizes[1:]:
            keys = other.keys[first : first + size]
            base = other.vocab_size + 1
            ids = torch.cat((ids, self.find(ids[keys // base], keys % base)))
            first += size
        return torch.cat((ids, ids.new_tensor([self.unknown])))

    def inverse_frequencies(self) -> Tensor:
        """By id, log(images / max(1, frequency)) in double precision."""
        # The log of the quotient, as it is exactly zero for what occurs in every image.
        return (self.images / self.frequencies.clamp(min=1).double()).log()


def number_ngrams(
    flat: FlatReferences, vocab_size: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Numbers n-grams: sorted pairs of orders 2 to 4; where n-grams begin, and their ids."""
    keys: list[Tensor] = []
    places = [torch.arange(len(flat.words), device=flat.words.device)]
    ids = [flat.words]
    for order in range(1, ORDERS):
        goes_on = flat.left[places[-1]] > order
        places.append(places[-1][goes_on])
        pairs = ids[-1][goes_on] * (vocab_size + 1) + flat.words[places[-1] + order]
        found, number = torch.unique(pairs, return_inverse=True)
        ids.append(number + vocab_size + sum(map(len, keys)))
        keys.append(found)
    return keys, places, ids
