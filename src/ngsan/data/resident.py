"""Data held in the memory of a device, where batches are cut without waiting for it.

Shapes: `B` images of a batch, `N` regions, `C` captions per image, `T` words.
"""

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ngsan.data.batch import CaptionBatch
from ngsan.data.dataset import CaptionDataset, RegionStore
from ngsan.data.sampler import Draw

_CHUNK = 256

Seen = tuple[Tensor, Tensor | None, Tensor | None]
"""Features, boxes and mask of a batch; a mask of None means that everything is real."""


class Resident(Protocol):
    """The visual input of images, on a device."""

    def gather(self, images: Tensor, width: int) -> Seen:
        """The input of some images.

        Args:
            images: (B, 1) their places, on the device.
            width: N, to which images with fewer regions are padded.
        """


class ResidentRegions:
    """Features in the store's float16 and, if it has them, boxes, all on a device.

    Args:
        store: The features.
        images: The images to copy.
        counts: Regions of each of them.
        device: The device.
        dtype: Of the features in a batch.
    """

    def __init__(
        self,
        store: RegionStore,
        images: Sequence[str],
        counts: NDArray[np.int64],
        device: torch.device,
        *,
        dtype: torch.dtype,
    ) -> None:
        self._device, self._dtype = device, dtype
        self._starts = torch.from_numpy(np.cumsum(counts) - counts).to(device)
        self._counts = torch.from_numpy(counts).to(device)
        self._even = int(counts[0]) if (counts == counts[0]).all() else None
        total = int(counts.sum())
        self._features = torch.empty(total, store.feature_dim, dtype=torch.float16, device=device)
        self._boxes = torch.empty(total, 4, device=device) if store.has_boxes else None
        done = 0
        for start in range(0, len(images), _CHUNK):
            chunk = [store[image] for image in images[start : start + _CHUNK]]
            here = slice(done, done + sum(len(item.features) for item in chunk))
            features = np.concatenate([item.features for item in chunk])
            self._features[here] = torch.from_numpy(features)
            if self._boxes is not None:
                boxes = [item.boxes for item in chunk if item.boxes is not None]
                self._boxes[here] = torch.from_numpy(np.concatenate(boxes))
            done = here.stop

    def gather(self, images: Tensor, width: int) -> Seen:
        """See `Resident.gather`."""
        if self._even == width:  # nothing to pad
            whole = images.squeeze(1)
            features = self._features.view(-1, width, self._features.shape[1])[whole]
            boxes = None if self._boxes is None else self._boxes.view(-1, width, 4)[whole]
            mask = torch.ones(len(whole), width, dtype=torch.bool, device=self._device)
            return features.to(self._dtype), boxes, mask
        places = torch.arange(width, device=self._device)
        mask = places < self._counts[images]  # (B, N)
        held = torch.where(mask, self._starts[images] + places, 0)
        padding = ~mask.unsqueeze(-1)
        features = self._features[held].masked_fill_(padding, 0).to(self._dtype)
        boxes = None if self._boxes is None else self._boxes[held].masked_fill_(padding, 0)
        return features, boxes, mask


def upload(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """Copies an array to a device without waiting for it."""
    tensor = torch.from_numpy(numbers)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def resident_bytes(dataset: CaptionDataset) -> int:
    """Bytes of device memory that a `ResidentDataset` needs, boxes included."""
    held = dataset.held_bytes + 2 * 8 * len(dataset)
    tables = (dataset.tokens.tokens, dataset.tokens.offsets)
    return held + sum(table.numel() * table.element_size() for table in tables)


def fits(dataset: CaptionDataset, device: torch.device | str, *, share: float = 0.8) -> bool:
    """Whether a dataset fits into `share` of the memory that is free on a device."""
    return fits_bytes(resident_bytes(dataset), device, share=share)


def fits_bytes(size: int, device: torch.device | str, *, share: float = 0.8) -> bool:
    """Whether some bytes fit into `share` of the memory that is free on a device."""
    return size <= share * _free_bytes(torch.device(device))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class ResidentDataset(Dataset[CaptionBatch]):
    """The same batches as those of a `CaptionDataset`, gathered and padded on the device.

    A batch costs one small copy of indices to the device, which is not waited for: the widths are
    known on the host.

    Args:
        dataset: The dataset.
        device: The device.
        static: Whether all batches are padded to the longest of the split, so that they have one
            shape, as graphs and compilers need; otherwise to the longest of the batch.
    """

    def __init__(
        self, dataset: CaptionDataset, device: torch.device | str, *, static: bool = False
    ) -> None:
        self.dataset, self.device, self.static = dataset, torch.device(device), static
        self._tokens = dataset.tokens.to(self.device)
        self._seen = self._load()
        every = np.arange(int(dataset.rows.offsets[-1]))
        self._max_captions = int(np.diff(dataset.rows.offsets).max())
        self._max_words = dataset.tokens.width(every)

    def _load(self) -> Resident:
        """The visual input of all images."""
        data = self.dataset
        return ResidentRegions(
            data.store, data.ids, data.region_counts, self.device, dtype=data.dtype
        )

    def __len__(self) -> int:
        """The number of images."""
        return len(self.dataset)

    def __getitem__(self, draw: Draw) -> CaptionBatch:
        """The batch that a `BatchSampler` drew."""
        return self.batch(draw.indices, epoch=draw.epoch)

    def batch(self, indices: Sequence[int] | NDArray[Any], *, epoch: int = 0) -> CaptionBatch:
        """Some images as a batch on the device; see `CaptionDataset.batch`."""
        dataset = self.dataset
        places, rows = dataset.choose(indices, epoch=epoch)
        regions, words = int(dataset.region_counts[places].max()), dataset.tokens.width(rows)
        if self.static:
            regions, words = int(dataset.region_counts.max()), self._max_words
            if rows.shape[1] < self._max_captions and dataset.captions_per_image is None:
                spare = self._max_captions - rows.shape[1]
                rows = np.pad(rows, ((0, 0), (0, spare)), constant_values=-1)
        chosen = upload(np.concatenate((places[:, None], rows), axis=1), self.device)  # (B, 1 + C)
        return CaptionBatch(
            *self._seen.gather(chosen[:, :1], regions),
            *self._tokens.gather(chosen[:, 1:], words),
            ids=[dataset.ids[place] for place in places],
        )
