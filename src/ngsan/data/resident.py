"""A dataset held wholly in the memory of a device, from which batches are cut there.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ngsan.data.batch import CaptionBatch
from ngsan.data.dataset import CaptionDataset
from ngsan.data.resident_regions import Resident, ResidentRegions, upload
from ngsan.data.sampler import Draw


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
        self._tokens = dataset.tokens.to(self.device)
        self._seen = self._load()
        every = np.arange(int(dataset.rows.offsets[-1]))
        self._most_captions = int(np.diff(dataset.rows.offsets).max())
        self._most_words = dataset.tokens.width(every)

    def _load(self) -> Resident:
        """What is seen of all images."""
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
        chosen = upload(np.concatenate((places[:, None], rows), axis=1), self.device)  # (B, 1 + C)
        return CaptionBatch(
            *self._seen.gather(chosen[:, :1], regions),
            *self._tokens.gather(chosen[:, 1:], words),
            ids=[dataset.ids[place] for place in places],
        )
