"""References as tensors of word ids, and how often captions share their n-grams.

Everything is prepared once. After that, matching is a fixed sequence of tensor operations whose
shapes follow from the shapes of the arguments: no value is ever read back from the device.

Shapes: `B` images of a call, `S` captions an image, `T` words, `R` most references of an image,
`P` most different n-grams of an image's references, `V` vocabulary, `M` images prepared. The axis
of size 4 is the order of the n-grams, less one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ngsan.metrics.reward_ngrams import ORDERS, FlatReferences, NgramDocuments, number_ngrams

_ABOVE = torch.iinfo(torch.int32).max
"""Stands above every id of an n-gram."""
_BLOCK = 2**20
"""Counts looked at together while preparing: few enough to reuse the same memory."""


@dataclass(frozen=True)
class Matches:
    """What captions share with the references of their images."""

    words: Tensor
    """(B, S, T + 3) word ids, `vocab_size` after the last."""
    lengths: Tensor
    """(B, S) words of the captions."""
    ids: Tensor
    """(B, S, 4, T) n-grams that begin at each word, by the references' own table."""
    mask: Tensor
    """(B, S, 4, T) boolean, True = such an n-gram ends within its caption."""
    frequencies: Tensor
    """(B, S, 4, T) float: how often the caption has this n-gram; 1 or more where there is none."""
    counts: Tensor
    """(B, S, 4, T, R) float: how often each reference has it; 0 where there is none."""
    reference: Tensor
    """(B, R) which references these are, by their place among those of all images."""
    reference_mask: Tensor
    """(B, R) boolean, True = a real reference."""
    reference_lengths: Tensor
    """(B, R) words of the references; anything where there is none."""


class References(nn.Module):
    """The references of M images, prepared for `match`.

    For every image there are the sorted ids of the n-grams of its references, and for each of
    these how often every reference has it.
    """

    first_reference: Tensor
    first_ngram: Tensor
    first_count: Tensor
    lengths: Tensor
    ngrams: Tensor
    counts: Tensor

    def __init__(self, flat: FlatReferences, *, vocab_size: int, end: bool, boundary: int) -> None:
        """Prepares references that were laid out; `build` does both."""
        super().__init__()
        self.vocab_size, self.end, self.boundary = vocab_size, end, boundary
        keys, places, ids = number_ngrams(flat, vocab_size)
        unknown = vocab_size + sum(map(len, keys))
        self.most_references = slots = int(flat.references.max())
        entries = torch.cat(
            [
                (flat.image[place] * unknown + id_) * slots + flat.slot[place]
                for place, id_ in zip(places, ids, strict=True)
            ]
        )
        del places, ids
        entries, counts = torch.unique_consecutive(entries.sort()[0], return_counts=True)
        pairs, pair = torch.unique_consecutive(entries // slots, return_inverse=True)
        image, ngram = pairs // unknown, pairs % unknown
        of_image = image.bincount(minlength=len(flat.references))
        self.most_ngrams = max(1, int(of_image.max()))
        first_ngram = _starts(of_image)
        first_count = _starts(of_image * flat.references)
        place = first_count[image] + flat.references[image] * (
            torch.arange(len(pairs), device=pairs.device) - first_ngram[image]
        )
        # After the last count there are zeros, which an n-gram that is not found reads.
        most = int(counts.max()) if len(counts) else 0
        kind = torch.uint8 if most < 256 else torch.int32
        table = torch.zeros(int(first_count[-1]) + slots, dtype=kind, device=pairs.device)
        table[place[pair] + entries % slots] = counts.to(kind)
        self.documents = NgramDocuments(
            keys,
            ngram.bincount(minlength=unknown + 1),
            images=len(flat.references),
            vocab_size=vocab_size,
            end=end,
        )
        self.register_buffer("first_reference", _starts(flat.references), persistent=False)
        self.register_buffer("first_ngram", first_ngram, persistent=False)
        self.register_buffer("first_count", first_count, persistent=False)
        self.register_buffer("lengths", flat.lengths.int(), persistent=False)
        self.register_buffer("ngrams", F.pad(ngram.int(), (0, 1), value=_ABOVE), persistent=False)
        self.register_buffer("counts", table, persistent=False)

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
            captions: For every image its references, at least one, each the ids of its words
                without any boundary; images are known by their place from here on.
            vocab_size: V; ids are below it.
            end: Whether the end of a caption counts as one more word, of every reference and of
                every caption that ends.
            boundary: The id that ends a caption.
            device: Where the work is done and the tables stay, until they are moved.
        """
        flat = FlatReferences.flatten(
            captions, vocab_size=vocab_size, end=end, boundary=boundary, device=device
        )
        return cls(flat, vocab_size=vocab_size, end=end, boundary=boundary)

    def match(self, images: Tensor, captions: Tensor) -> Matches:
        """Compares captions with the references of their images.

        Args:
            images: (B,) places of images among those prepared.
            captions: (B, S, T) word ids below `vocab_size`; from the first boundary on they are
                not looked at.
        """
        device, longest = captions.device, captions.shape[-1]
        captions = captions.long()
        ended = captions == self.boundary
        ends = ended.cumsum(-1)
        real = ends - ended.long() == 0 if self.end else ends == 0
        lengths = real.sum(-1)
        words = F.pad(
            torch.where(real, captions, self.vocab_size), (0, ORDERS - 1), value=self.vocab_size
        )
        orders = torch.arange(ORDERS, device=device).unsqueeze(-1)
        last = orders + torch.arange(longest, device=device)  # (4, T)
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
        """How often the references have the n-grams, (B, S, 4, T, R)."""
        first = self.first_ngram[images].unsqueeze(-1)
        places = first + torch.arange(self.most_ngrams, device=ids.device)
        inside = places < self.first_ngram[images + 1].unsqueeze(-1)
        # Rows are sorted for the search, so what stands after an image's own is above them all.
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
        """Squared lengths of the references' tf-idf vectors.

        Args:
            inverse_frequencies: By the id of an n-gram in the own table, double precision.

        Returns:
            (references, 4), double precision.
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


def _starts(sizes: Tensor) -> Tensor:
    """Where parts of these sizes begin when they stand after one another, and the end."""
    return F.pad(sizes.cumsum(0), (1, 0))


def _repetitions(words: Tensor) -> Tensor:
    """How often a caption has the n-gram that begins at each word: (..., T + 3) to (..., 4, T)."""
    longest = words.shape[-1] - ORDERS + 1
    same = words.unsqueeze(-1) == words.unsqueeze(-2)
    equal = [same[..., :longest, :longest]]
    for order in range(1, ORDERS):
        shifted = slice(order, order + longest)
        equal.append(equal[-1] & same[..., shifted, shifted])
    return torch.stack(equal, dim=-3).sum(-1, dtype=torch.float32)
