"""A batch of captioned images.

Shapes: `B` images, `N` regions, `C` captions an image, `T` words, `d` feature width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_TENSORS = (
    "features",
    "boxes",
    "mask",
    "words",
    "targets",
    "target_mask",
    "caption_mask",
)


@dataclass(frozen=True)
class CaptionBatch:
    """Images as regions, each with its captions, so that these share one encoding.

    Padding holds zeros: no feature, no box, the boundary as word.

    Attributes:
        features: (B, N, d) appearance; for a model of pixels (B, 3, S, S) images in their place.
        boxes: (B, N, 4) `cxcywh` relative to the image, or None for elements without a place.
        mask: (B, N) boolean, True = a real region; None when all are.
        words: (B, C, T) what the decoder is given, the boundary first.
        targets: (B, C, T) what it shall answer, the boundary last.
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
        """The number of images, B."""
        return len(self.ids)

    def __getitem__(self, index: Tensor | slice) -> "CaptionBatch":
        """Some of the images, padded as they were.

        Args:
            index: A slice, a vector of positions or a (B,) boolean mask. To tell the ids of a
                tensor on a device, the device is waited for.
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
        """The batch on a device.

        Args:
            device: Where to.
            non_blocking: Whether to go on before the copy is done; it needs `pin_memory`.
        """
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking), self.ids)

    def pin_memory(self) -> "CaptionBatch":
        """The batch in page-locked memory; `DataLoader(pin_memory=True)` calls this."""
        return self._map(Tensor.pin_memory, self.ids)

    def _map(self, change: Callable[[Tensor], Tensor], ids: list[str]) -> "CaptionBatch":
        tensors = {name: getattr(self, name) for name in _TENSORS}
        changed = {name: change(tensor) for name, tensor in tensors.items() if tensor is not None}
        return replace(self, **changed, ids=ids)
