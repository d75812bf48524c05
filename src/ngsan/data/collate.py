"""Padding: regions and captions of several images as rectangular tensors.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words, `d` feature width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.data.sampler import random_keys
from ngsan.data.store import Regions
from ngsan.text.vocabulary import BOUNDARY

NO_CAPTION = -1
"""Stands in a matrix of captions where an image has no more of them."""


def pad_regions(
    regions: Sequence[Regions], *, width: int | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The regions of several images, zeros after them.

    Args:
        regions: Of B images, at least one, of equal feature width; all with boxes or all without.
        width: N, or None for the most regions of these images.
        dtype: Of the features.

    Returns:
        features (B, N, d); boxes (B, N, 4) float32 or None; mask (B, N), True = a region.
    """
    counts = np.array([len(item.features) for item in regions])
    with_boxes = sum(item.boxes is not None for item in regions)
    if with_boxes not in (0, len(regions)):
        raise ValueError(
            f"{with_boxes} of {len(regions)} images of a batch have boxes: all or none"
        )
    most = int(counts.max())
    width = most if width is None else width
    if width < most:
        raise ValueError(f"{most} regions do not fit into a width of {width}")
    first = regions[0].features
    features = np.zeros((len(regions), width, first.shape[1]), first.dtype)
    boxes = np.zeros((len(regions), width, 4), np.float32) if with_boxes else None
    for place, (item, count) in enumerate(zip(regions, counts, strict=True)):
        features[place, :count] = item.features
        if boxes is not None:
            boxes[place, :count] = item.boxes
    mask = np.arange(width) < counts[:, None]
    return (
        torch.from_numpy(features).to(dtype),  # far quicker than numpy is at leaving float16
        None if boxes is None else torch.from_numpy(boxes),
        torch.from_numpy(mask),
    )


@dataclass(frozen=True)
class CaptionRows:
    """Which captions belong to which image, and the order in which they take turns.

    Captions are numbered in the order of their images.

    Attributes:
        offsets: (images + 1,) captions `offsets[i]` to `offsets[i + 1]` are those of image i.
        turns: (captions,) the captions of each image in a random order.
    """

    offsets: NDArray[np.int64]
    turns: NDArray[np.int64]

    @classmethod
    def of_counts(cls, counts: Sequence[int] | NDArray[Any], *, seed: int = 0) -> "CaptionRows":
        """Numbers captions.

        Args:
            counts: Captions of each image.
            seed: Seed of the turns.
        """
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        owners = np.repeat(np.arange(len(counts)), counts)
        return cls(offsets, np.lexsort((random_keys(int(offsets[-1]), seed), owners)))

    def choose(
        self, indices: NDArray[np.int64], *, count: int | None = None, epoch: int = 0
    ) -> NDArray[np.int64]:
        """The captions of some images for one epoch.

        With fewer than all, the captions of an image take turns from epoch to epoch as on a
        wheel: after k epochs no caption was chosen more than once oftener than another.

        Args:
            indices: (B,) images.
            count: Captions of each image at most, or None for all in their order.
            epoch: The pass over the data.

        Returns:
            (B, C) captions, `NO_CAPTION` where an image has fewer than C. C is `count`, or the
            most captions of these images.
        """
        starts = self.offsets[indices][:, None]
        held = self.offsets[indices + 1][:, None] - starts
        most = int(held.max(initial=0))
        place = np.arange(most if count is None else count)
        chosen = starts + place
        if count is not None and count < most:
            turned = starts + (epoch * count + place) % np.maximum(held, 1)
            turned = np.minimum(turned, len(self.turns) - 1)  # a last image without captions
            chosen = np.where(held > count, self.turns[turned], chosen)
        return np.where(place < held, chosen, NO_CAPTION)


@dataclass(frozen=True)
class TokenTable:
    """The word ids of many captions, one after the other, in memory or on a device.

    Attributes:
        tokens: (words + 1,) int32; a spare one is last, so that there is always something to read.
        offsets: (captions + 2,) int64; words `offsets[k]` to `offsets[k + 1]` are those of
            caption k; a spare, empty caption is last.
    """

    tokens: Tensor
    offsets: Tensor

    @classmethod
    def of_lengths(
        cls, tokens: Sequence[int] | NDArray[Any], lengths: Sequence[int] | NDArray[Any]
    ) -> "TokenTable":
        """Makes the table.

        Args:
            tokens: The word ids of all captions, without boundaries.
            lengths: Words of each caption.
        """
        ends = np.cumsum(lengths, dtype=np.int64)
        return cls(
            torch.from_numpy(np.append(np.asarray(tokens, np.int32), np.int32(BOUNDARY))),
            torch.from_numpy(np.concatenate(([0], ends, ends[-1:] if len(ends) else [0]))),
        )

    def to(self, device: torch.device | str) -> "TokenTable":
        """The table on a device."""
        return TokenTable(self.tokens.to(device), self.offsets.to(device))

    def width(self, rows: NDArray[np.int64]) -> int:
        """T that captions need: the words of the longest, and the boundary.

        Args:
            rows: Captions, or `NO_CAPTION`.
        """
        offsets = self.offsets.numpy()
        lengths = np.where(rows >= 0, offsets[rows + 1] - offsets[rows], 0)
        return int(lengths.max(initial=0)) + 1

    def gather(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Captions as decoder input and targets. Never waits for a device.

        Args:
            rows: (B, C) captions, or `NO_CAPTION`, where the table is.
            width: T, at least that of `width`.

        Returns:
            words, targets and target_mask (B, C, T), and caption_mask (B, C), as in
            `CaptionBatch`.
        """
        caption_mask = rows >= 0
        rows = rows.clamp(min=0)
        starts = self.offsets[rows].unsqueeze(-1)
        lengths = self.offsets[rows + 1].unsqueeze(-1) - starts  # (B, C, 1)
        places = torch.arange(width, device=rows.device)
        target_mask = (places <= lengths) & caption_mask.unsqueeze(-1)  # (B, C, T)
        is_word = (places < lengths) & caption_mask.unsqueeze(-1)
        targets = self.tokens[torch.where(is_word, starts + places, 0)].long()
        targets = torch.where(is_word, targets, BOUNDARY)
        words = torch.nn.functional.pad(targets[..., :-1], (1, 0), value=BOUNDARY)
        return words, targets, target_mask, caption_mask
