"""The regions of images held wholly in the memory of a device.

Shapes: `B` images of a batch, `N` regions, `R` regions of all images, `d` feature width.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ngsan.data.dataset import RegionStore

_CHUNK = 256

Seen = tuple[Tensor, Tensor | None, Tensor | None]
"""Features, boxes and mask of a batch; a mask of None says that everything is real."""


class Resident(Protocol):
    """What is seen of images, on a device."""

    def gather(self, images: Tensor, width: int) -> Seen:
        """What is seen of some images.

        Args:
            images: (B, 1) their places, on the device.
            width: N, what images with fewer regions are padded to.
        """


class ResidentRegions:
    """Features in the store's float16 and, if it has them, boxes, all on a device."""

    def __init__(
        self,
        store: RegionStore,
        images: Sequence[str],
        counts: NDArray[np.int64],
        device: torch.device,
        *,
        dtype: torch.dtype,
    ) -> None:
        """Copies the regions to the device.

        Args:
            store: Where they are.
            images: Whose.
            counts: How many regions each of these has.
            device: Where to.
            dtype: What features of a batch are wanted in.
        """
        self._device, self._dtype = device, dtype
        self._starts = torch.from_numpy(np.cumsum(counts) - counts).to(device)
        self._counts = torch.from_numpy(counts).to(device)
        self._even = int(counts[0]) if (counts == counts[0]).all() else None
        total = int(counts.sum())
        self._features = torch.empty(total, store.feature_dim, dtype=torch.float16, device=device)
        self._boxes = torch.empty(total, 4, device=device) if store.has_boxes else None
        self._copy(store, images)

    def _copy(self, store: RegionStore, images: Sequence[str]) -> None:
        done = 0
        for start in range(0, len(images), _CHUNK):
            chunk = [store[image] for image in images[start : start + _CHUNK]]
            here = slice(done, done + sum(len(item.features) for item in chunk))
            features = np.concatenate([item.features for item in chunk])
            self._features[here] = torch.from_numpy(features)
            if self._boxes is not None:
                placed = [item.boxes for item in chunk if item.boxes is not None]
                self._boxes[here] = torch.from_numpy(np.concatenate(placed))
            done = here.stop

    def gather(self, images: Tensor, width: int) -> Seen:
        """See `Resident.gather`."""
        if self._even == width:
            # Every image has so many regions: nothing to pad.
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
    """An array of the host on a device, which is not waited for."""
    tensor = torch.from_numpy(numbers)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
