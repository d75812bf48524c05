"""Batches of captioned images: padding, and the tables that batches are cut from.

Shapes: `B` images, `N` regions, `C` captions per image, `T` words, `d` feature width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.data.sampler import random_keys
from ngsan.data.store import Regions
from ngsan.text.vocabulary import BOUNDARY

NO_CAPTION = -1
"""Fills a matrix of captions where an image has fewer of them."""


@dataclass(frozen=True)
class CaptionBatch:
    """Images as regions, each with its captions, which share one encoding.

    Padding is zero: no feature, no box, the boundary as word.

    Attributes:
        features: (B, N, d) region features; for a model of pixels (B, 3, S, S) images instead.
        boxes: (B, N, 4) `cxcywh` relative to the image, or None for elements without a place.
        mask: (B, N) boolean, True = a real region; None when all are.
        words: (B, C, T) input of the decoder, the boundary first.
        targets: (B, C, T) expected output, the boundary last.
        target_mask: (B, C, T) boolean, True = a real target.
        caption_mask: (B, C) boolean, True = a real caption; images may have fewer than C.
        ids: The B image ids.
    """

    features: Tensor
    boxes: Tensor | None
    mask: Tensor | None
    words: Tensor
    targets: Tensor
    target_mask: Tensor
    caption_mask: Tensor
    ids: list[str]

    def __len__(self) -> int:
        """B."""
        return len(self.ids)

    def __getitem__(self, index: Tensor | slice) -> "CaptionBatch":
        """Some of the images, with the same padding.

        Args:
            index: A slice, a vector of positions or a (B,) boolean mask. A tensor on a device is
                copied to the host, which waits for the device.
        """
        places = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index]
        if places.ndim != 1:
            raise ValueError(
                "a batch is indexed by a slice or a vector, so that it stays a batch: "
                "batch[2:3] rather than batch[2]"
            )
        ids = [self.ids[place] for place in places.tolist()]
        return self._map(lambda tensor: tensor[index], ids)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "CaptionBatch":
        """The batch on a device; `non_blocking` needs `pin_memory`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking), self.ids)

    def pin_memory(self) -> "CaptionBatch":
        """The batch in page-locked memory; `DataLoader(pin_memory=True)` calls this."""
        return self._map(Tensor.pin_memory, self.ids)

    def _map(self, change: Callable[[Tensor], Tensor], ids: list[str]) -> "CaptionBatch":
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: change(part) for name, part in parts.items() if isinstance(part, Tensor)}
        return replace(self, **changed, ids=ids)


def pad_regions(
    regions: Sequence[Regions], *, width: int | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Pads the regions of several images with zeros.

    Args:
        regions: Of B images, at least one, with equal feature width; all with boxes or all without.
        width: N, or None for the maximum of these images.
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
        torch.from_numpy(features).to(dtype),  # much faster than NumPy from float16
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
        """Numbers captions, given how many each image has and the seed of their turns."""
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        owners = np.repeat(np.arange(len(counts)), counts)
        return cls(offsets, np.lexsort((random_keys(int(offsets[-1]), seed), owners)))

    def choose(
        self, indices: NDArray[np.int64], *, count: int | None = None, epoch: int = 0
    ) -> NDArray[np.int64]:
        """The captions of some images for one epoch.

        If an image has more captions than `count`, they take turns from epoch to epoch, so that
        after k epochs the numbers of their uses differ by at most one.

        Args:
            indices: (B,) images.
            count: Maximum number of captions per image, or None for all in their order.
            epoch: The pass over the data.

        Returns:
            (B, C) captions, padded with `NO_CAPTION`. C is `count`, or the maximum of these images.
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
        tokens: (words + 1,) int32; the last is spare, so that reading is always possible.
        offsets: (captions + 2,) int64; words `offsets[k]` to `offsets[k + 1]` are those of
            caption k; the last caption is spare and empty.
    """

    tokens: Tensor
    offsets: Tensor

    @classmethod
    def of_lengths(
        cls, tokens: Sequence[int] | NDArray[Any], lengths: Sequence[int] | NDArray[Any]
    ) -> "TokenTable":
        """Makes the table from the word ids of all captions, without boundaries, and lengths."""
        ends = np.cumsum(lengths, dtype=np.int64)
        return cls(
            torch.from_numpy(np.append(np.asarray(tokens, np.int32), np.int32(BOUNDARY))),
            torch.from_numpy(np.concatenate(([0], ends, ends[-1:] if len(ends) else [0]))),
        )

    def to(self, device: torch.device | str) -> "TokenTable":
        """The table on a device."""
        return TokenTable(self.tokens.to(device), self.offsets.to(device))

    def width(self, rows: NDArray[np.int64]) -> int:
        """T for some captions (or `NO_CAPTION`): the words of the longest, and the boundary."""
        offsets = self.offsets.numpy()
        lengths = np.where(rows >= 0, offsets[rows + 1] - offsets[rows], 0)
        return int(lengths.max(initial=0)) + 1

    def gather(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Captions as decoder input and targets. Never waits for a device.

        Args:
            rows: (B, C) captions, or `NO_CAPTION`, on the device of the table.
            width: T, at least that of `width`.

        Returns:
            words, targets and target_mask (B, C, T), and caption_mask (B, C), see `CaptionBatch`.
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
