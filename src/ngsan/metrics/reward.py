"""Rewards of sampled captions, computed on the device: CIDEr-D and BLEU-4 on word ids.

Every step of self-critical training calls a reward. It never reads a value back from the device,
so it does not synchronise and can be captured in a CUDA graph. `ngsan.metrics.cider` and
`ngsan.metrics.bleu` compute the scores for reports.

Shapes: `B` images, `S` captions per image, `T` words, `R` maximum references per image. The axis
of size 4 is the order of the n-grams, minus one.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ngsan.metrics.ngrams import ORDERS
from ngsan.metrics.reward_references import Matches, NgramDocuments, References

__all__ = ["Bleu4Reward", "CiderDReward", "MixedReward", "NgramDocuments", "References", "Reward"]

MAX_ELEMENTS = 2**25
"""Elements of the largest tensor in a reward; larger batches are processed in parts."""


class Reward(nn.Module, ABC):
    """A score of captions against the references of their images.

    Attributes:
        references: The references of all images; rewards may share them. They move to a device
            together with the reward.
    """

    def __init__(self, references: References) -> None:
        super().__init__()
        self.references = references

    @abstractmethod
    def score(self, matches: Matches) -> Tensor:
        """Scores of matched captions, (B, S)."""

    @torch.no_grad()
    def forward(self, images: Tensor, captions: Tensor) -> Tensor:
        """Scores captions.

        Args:
            images: (B,) indices of the images in the references.
            captions: (B, S, T) or (B, T) word ids below the vocabulary size, without a leading
                boundary. The first boundary ends a caption; later ids are ignored. A caption
                without a boundary is incomplete: its end does not count.

        Returns:
            (B, S) or (B,) scores in single precision, in the score's natural units.

        Raises:
            ValueError: The shapes do not match, or, on the CPU only, an id is out of range.
        """
        if images.ndim != 1 or captions.ndim not in (2, 3) or len(images) != len(captions):
            raise ValueError(
                f"images {tuple(images.shape)} and captions {tuple(captions.shape)} do not "
                "match: expected (B,) and (B, S, T), or (B,) and (B, T)"
            )
        if 0 in captions.shape:
            raise ValueError(f"captions {tuple(captions.shape)} are empty")
        for name, ids in (("images", images), ("captions", captions)):
            if ids.is_floating_point() or ids.dtype == torch.bool:
                raise ValueError(f"{name} must be integer ids, not {ids.dtype}")
        if captions.device.type == "cpu":  # on a device this would synchronise
            self._check_ids(images, captions)
        if captions.ndim == 2:
            return self._score(images, captions.unsqueeze(1)).squeeze(1)
        return self._score(images, captions)

    def _check_ids(self, images: Tensor, captions: Tensor) -> None:
        """Rejects out-of-range ids."""
        prepared = self.references
        for name, ids, most in (
            ("image", images, len(prepared.first_reference) - 1),
            ("word", captions, prepared.vocab_size),
        ):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= most:
                wrong = low if low < 0 else high
                raise ValueError(f"{name} {wrong} is out of range: 0 to {most - 1}")

    def _score(self, images: Tensor, captions: Tensor) -> Tensor:
        """Scores (B, S, T) in parts of bounded size."""
        samples, max_length = captions.shape[1:]
        of_caption = ORDERS * max_length * max(max_length + ORDERS, self.references.most_references)
        at_once = max(1, MAX_ELEMENTS // of_caption)
        step = max(1, MAX_ELEMENTS // (of_caption * samples + self.references.most_ngrams))
        rows = []
        for start in range(0, len(images), step):
            some = slice(start, start + step)
            scores = [
                self.score(self.references.match(images[some], captions[some, one : one + at_once]))
                for one in range(0, samples, at_once)
            ]
            rows.append(torch.cat(scores, dim=1))
        return torch.cat(rows)


class CiderDReward(Reward):
    """CIDEr-D, from 0 to 10 (Vedantam et al., CVPR 2015).

    The cosine of the n-gram tf-idf vectors of caption and reference, with the caption's weights
    clipped at the reference's, times a Gaussian penalty of the difference in length; averaged over
    orders 1 to 4 and references, times 10. The length is the number of bigrams, as in the COCO
    tools.
    """

    squared_idf: Tensor
    inverse_norms: Tensor

    def __init__(
        self,
        references: References,
        *,
        document_frequencies: NgramDocuments | None = None,
        sigma: float = 6.0,
    ) -> None:
        """Computes the weights of the references.

        Args:
            references: The references of all images.
            document_frequencies: Those of another split; None: those of the references.
            sigma: Width of the penalty, in bigrams.
        """
        super().__init__(references)
        if not sigma > 0:
            raise ValueError(f"sigma must be above 0, not {sigma}; CIDEr-D uses 6")
        self.sigma = sigma
        own = references.documents
        given = own if document_frequencies is None else document_frequencies
        if (given.vocab_size, given.end) != (own.vocab_size, own.end):
            raise ValueError(
                f"document_frequencies have vocab_size {given.vocab_size} and end {given.end}, "
                f"the references {own.vocab_size} and {own.end}; count both in the same way"
            )
        self.documents = given
        idf = given.inverse_frequencies()
        norms = references.squared_norms(idf if given is own else idf[given.translate(own)]).sqrt()
        # The cosine with a zero vector is zero.
        inverse = torch.where(norms > 0, 1 / norms, 0.0)
        self.register_buffer("squared_idf", idf.square().float(), persistent=False)
        self.register_buffer("inverse_norms", inverse.float(), persistent=False)

    def score(self, matches: Matches) -> Tensor:
        """CIDEr-D of matched captions, (B, S)."""
        ids = matches.ids
        if self.documents is not self.references.documents:
            ids = self.documents.look_up(matches.words)
        tf, counts = matches.frequencies, matches.counts
        squared = self.squared_idf[ids] * matches.mask  # (B, S, 4, T)
        # An n-gram with k occurrences in the caption is visited k times: each adds a k-th.
        norms = (tf * squared).sum(-1).sqrt()  # (B, S, 4)
        weights = (squared / tf).unsqueeze(-1)
        products = (torch.minimum(tf.unsqueeze(-1), counts) * counts * weights).sum(-2)
        inverse = self.inverse_norms[matches.reference].mT.unsqueeze(1)  # (B, 1, 4, R)
        cosines = products * inverse / torch.where(norms > 0, norms, 1.0).unsqueeze(-1)
        # The number of bigrams is the number of words minus one. Not for an empty caption or
        # padding, but their cosines are zero.
        gap = matches.lengths.unsqueeze(-1) - matches.reference_lengths.unsqueeze(1)
        penalty = (gap / self.sigma).square().mul(-0.5).exp()
        values = (cosines.sum(-2) * penalty).sum(-1)
        return values * (10 / ORDERS) / matches.reference_mask.sum(-1, keepdim=True)


class Bleu4Reward(Reward):
    """BLEU-4 of single captions, from 0 to 1, as the COCO tools define it for one image.

    The geometric mean of the clipped precisions of orders 1 to 4, times a penalty if the caption is
    shorter than the reference of the closest length (the shorter of two equally close ones).

    Note: there is hardly any smoothing. 1e-15 is added to the matches and 1e-9 to the n-grams, so a
        caption without a common 4-gram has a value near zero.
    """

    def score(self, matches: Matches) -> Tensor:
        """BLEU-4 of matched captions, (B, S)."""
        tf = matches.frequencies
        clipped = torch.minimum(tf, matches.counts.amax(-1)) / tf * matches.mask
        correct = clipped.sum(-1)  # (B, S, 4)
        guessed = matches.mask.sum(-1)
        # The product of four such quotients underflows in single precision, its log does not.
        logs = ((correct + 1e-15) / (guessed + 1e-9)).log().mean(-1)
        length = matches.lengths.unsqueeze(-1)
        others = matches.reference_lengths.unsqueeze(1)
        distance = 2 * (others - length).abs() + (others > length)  # odd: the reference is longer
        far = torch.iinfo(distance.dtype).max
        nearest = torch.where(matches.reference_mask.unsqueeze(1), distance, far).amin(-1)
        reference_length = matches.lengths + (nearest // 2) * (2 * (nearest % 2) - 1)
        ratio = (matches.lengths + 1e-15) / (reference_length + 1e-9)
        return (logs + (1 - 1 / ratio).clamp(max=0)).exp()


class MixedReward(Reward):
    """A weighted sum of rewards that share their references, which are matched once.

    Args:
        parts: At least one pair of a weight and a reward, all with the same `References` object.
    """

    def __init__(self, parts: Sequence[tuple[float, Reward]]) -> None:
        if not parts:
            raise ValueError("a mixed reward needs at least one part")
        references = parts[0][1].references
        if any(part.references is not references for _, part in parts):
            raise ValueError("the parts of a mixed reward must share one References object")
        super().__init__(references)
        self.weights = tuple(weight for weight, _ in parts)
        self.parts = nn.ModuleList(part for _, part in parts)

    def score(self, matches: Matches) -> Tensor:
        """The weighted sum, (B, S)."""
        scores = [
            weight * cast(Reward, part).score(matches)
            for weight, part in zip(self.weights, self.parts, strict=True)
        ]
        return torch.stack(scores).sum(0)
