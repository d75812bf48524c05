"""A dataset held wholly in the memory of a device, from which batches are cut there.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words, `R` regions of the whole split,
`d` feature width.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ngsan.data.batch import CaptionBatch
from ngsan.data.dataset import CaptionDataset
from ngsan.data.sampler import Draw

_CHUNK = 256


def resident_bytes(dataset: CaptionDataset) -> int:
    """Bytes of device memory that a `ResidentDataset` takes, boxes included."""
    held = dataset.held_bytes + 2 * 8 * len(dataset)
    tables = (dataset.tokens.tokens, dataset.tokens.offsets)
    return held + sum(table.numel() * table.element_size() for table in tables)


def fits(dataset: CaptionDataset, device: torch.device | str, *, share: float = 0.8) -> bool:
    """Whether a dataset finds room on a device.

    Args:
        dataset: The dataset.
        device: The device.
        share: Of the memory that is free at the moment, what the dataset may take.
    """
    return resident_bytes(dataset) <= share * _free_bytes(torch.device(device))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class ResidentDataset(Dataset[CaptionBatch]):
    """The same batches as those of a `CaptionDataset`, gathered and padded on the device.

    A batch costs one small copy of indices to the device and no waiting for it: the widths that
    it needs are known on the host.
    """

    def __init__(
        self, dataset: CaptionDataset, device: torch.device | str, *, static: bool = False
    ) -> None:
        """Copies the dataset to the device.

        Args:
            dataset: The dataset, which also tells the captions an image and the features' dtype.
            device: Where to.
            static: Whether all batches are padded to the longest of the split, so that they have
                one shape, as graphs and compilers like it; otherwise each to its own longest, as
                `CaptionDataset.batch` does.
        """
        self.dataset, self.device, self.static = dataset, torch.device(device), static
        counts = dataset.region_counts
        starts = np.cumsum(counts) - counts
        self._starts = torch.from_numpy(starts).to(self.device)
        self._counts = torch.from_numpy(counts).to(self.device)
        self._tokens = dataset.tokens.to(self.device)
        self._features, self._boxes = self._load(int(counts.sum()))
        every = np.arange(int(dataset.rows.offsets[-1]))
        self._even = int(counts[0]) if (counts == counts[0]).all() else None
        self._most_captions = int(np.diff(dataset.rows.offsets).max())
        self._most_words = dataset.tokens.width(every)

    def _load(self, total: int) -> tuple[Tensor, Tensor | None]:
        """All features (R, d) in the store's float16 and, if it has them, all boxes (R, 4)."""
        store, ids = self.dataset.store, self.dataset.ids
        features = torch.empty(total, store.feature_dim, dtype=torch.float16, device=self.device)
        boxes = torch.empty(total, 4, device=self.device) if store.has_boxes else None
        done = 0
        for start in range(0, len(ids), _CHUNK):
            chunk = [store[image] for image in ids[start : start + _CHUNK]]
            here = slice(done, done + sum(len(item.features) for item in chunk))
            features[here] = torch.from_numpy(np.concatenate([item.features for item in chunk]))
            if boxes is not None:
                placed = [item.boxes for item in chunk if item.boxes is not None]
                boxes[here] = torch.from_numpy(np.concatenate(placed))
            done = here.stop
        return features, boxes

    def __len__(self) -> int:
        """The number of images."""
        return len(self.dataset)

    def __getitem__(self, draw: Draw) -> CaptionBatch:
        """The batch that a `BatchSampler` drew."""
        return self.batch(draw.indices, epoch=draw.epoch)

    def batch(self, indices: Sequence[int] | NDArray[Any], *, epoch: int = 0) -> CaptionBatch:
        """Some images as a batch on the device.

        Args:
            indices: Positions, at least one; on the host.
            epoch: The pass over the data, which decides whose turn among the captions it is.
        """
        dataset = self.dataset
        places, rows = dataset.choose(indices, epoch=epoch)
        regions, words = int(dataset.region_counts[places].max()), dataset.tokens.width(rows)
        if self.static:
            regions, words = int(dataset.region_counts.max()), self._most_words
            if rows.shape[1] < self._most_captions and dataset.captions_per_image is None:
                spare = self._most_captions - rows.shape[1]
                rows = np.pad(rows, ((0, 0), (0, spare)), constant_values=-1)
        chosen = self._upload(np.concatenate((places[:, None], rows), axis=1))  # (B, 1 + C)
        return CaptionBatch(
            *self._gather(chosen[:, :1], regions),
            *self._tokens.gather(chosen[:, 1:], words),
            ids=[dataset.ids[place] for place in places],
        )

    def _upload(self, numbers: NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(numbers)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def _gather(self, images: Tensor, width: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Features, boxes and mask of images (B, 1), padded to a width."""
        if self._even == width:
            # Every image has so many regions: nothing to pad.
            whole = images.squeeze(1)
            features = self._features.view(-1, width, self._features.shape[1])[whole]
            boxes = None if self._boxes is None else self._boxes.view(-1, width, 4)[whole]
            mask = torch.ones(len(whole), width, dtype=torch.bool, device=self.device)
            return features.to(self.dataset.dtype), boxes, mask
        places = torch.arange(width, device=self.device)
        mask = places < self._counts[images]  # (B, N)
        held = torch.where(mask, self._starts[images] + places, 0)
        padding = ~mask.unsqueeze(-1)
        features = self._features[held].masked_fill_(padding, 0).to(self.dataset.dtype)
        boxes = None if self._boxes is None else self._boxes[held].masked_fill_(padding, 0)
        return features, boxes, mask
