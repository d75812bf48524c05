"""Captioned photographs: a dataset whose features are yet to be made of pixels.

Shapes: `B` images, `M` images of the whole split, `S` side of an image.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ngsan.data.batch import CaptionBatch
from ngsan.data.dataset import CaptionDataset
from ngsan.data.pictures import PictureStore
from ngsan.data.resident import ResidentDataset
from ngsan.data.resident_regions import Seen
from ngsan.data.store import Regions
from ngsan.vision.backbone import GridBackbone
from ngsan.vision.images import ImageError, open_image, to_square

_CHUNK = 1024
_DECODERS = 8
_DESCRIBED = 256


class CellStore:
    """Pictures in the place of a feature store: their regions will be the cells of a grid."""

    has_boxes = True

    def __init__(self, pictures: PictureStore, backbone: GridBackbone) -> None:
        """Takes the pictures and what will make cells of them."""
        self.pictures, self.folder = pictures, pictures.folder
        self.size, self.feature_dim, self._cells = backbone.size, backbone.channels, backbone.cells
        self.signature = self.source = f"{pictures.signature}-{self.size}"

    def __contains__(self, image: str) -> bool:
        """Whether there is a picture of an image."""
        return image in self.pictures

    def __getitem__(self, image: str) -> Regions:
        """There are none yet."""
        raise ValueError(f"image {image!r} is a picture: extract its features first")

    def ids(self) -> list[str]:
        """The images."""
        return self.pictures.ids()

    def counts(self) -> NDArray[np.int64]:
        """The cells of each image."""
        return np.full(len(self.pictures), self._cells)


class PhotoDataset(CaptionDataset):
    """The captioned photographs of one split; a batch has images (B, 3, S, S) as features."""

    def __init__(
        self,
        folder: str | Path,
        split: str,
        pictures: PictureStore,
        backbone: GridBackbone,
        **options: Any,
    ) -> None:
        """Opens a split.

        Args:
            folder: The dataset folder, with captions.jsonl and vocabulary.json.
            split: Such as "train".
            pictures: The photographs.
            backbone: What will make regions of them; tells their size.
            **options: Those of `CaptionDataset`.
        """
        self._cells = CellStore(pictures, backbone)
        super().__init__(folder, split, **options)

    def _open(self) -> CellStore:
        return self._cells

    @property
    def held_bytes(self) -> int:
        """Bytes that the images take in memory."""
        return len(self) * 3 * self._cells.size**2

    def images(self, places: Sequence[int] | NDArray[Any], device: torch.device | str) -> Tensor:
        """(B, 3, S, S) bytes: some of the photographs, decoded and squashed.

        Raises:
            ValueError: A file is no image; names it.
        """
        ids = [self.ids[place] for place in places]
        files = self._cells.pictures.read_many(ids)
        return decode(files, ids, self._cells.size, torch.device(device))

    def batch(self, indices: Sequence[int] | NDArray[Any], *, epoch: int = 0) -> CaptionBatch:
        """See `CaptionDataset.batch`."""
        places, rows = self.choose(indices, epoch=epoch)
        captions = self.tokens.gather(torch.from_numpy(rows), self.tokens.width(rows))
        ids = [self.ids[place] for place in places]
        return CaptionBatch(self.images(places, "cpu"), None, None, *captions, ids=ids)


class WholeImages:
    """Images, or the cells that a backbone made of them, on a device: nothing to pad."""

    def __init__(self, images: Tensor) -> None:
        """Takes them, (M, ...)."""
        self._images = images

    def gather(self, images: Tensor, width: int) -> Seen:
        """See `Resident.gather`; their boxes are the backbone's."""
        return self._images[images.squeeze(1)], None, None


class ResidentPhotos(ResidentDataset):
    """The photographs of a split in the memory of a device, as bytes, decoded once."""

    dataset: PhotoDataset

    def _load(self) -> WholeImages:
        size, count = self.dataset._cells.size, len(self.dataset)
        images = torch.empty(count, 3, size, size, dtype=torch.uint8, device=self.device)
        for start in range(0, count, _CHUNK):
            places = np.arange(start, min(count, start + _CHUNK))
            images[start : start + len(places)] = self.dataset.images(places, self.device)
        self.images = images
        return WholeImages(images)


class ResidentCells(ResidentDataset):
    """The cells of a split's photographs, for a backbone that learns no more."""

    def __init__(self, photos: ResidentPhotos, backbone: nn.Module) -> None:
        """Describes all photographs once.

        Args:
            photos: The photographs.
            backbone: From images (B, 3, S, S) to cells (B, N, C); in evaluation mode.
        """
        self._photos, self._backbone = photos, backbone
        super().__init__(photos.dataset, photos.device, static=photos.static)

    @torch.no_grad()
    def _load(self) -> WholeImages:
        images = self._photos.images
        made = [
            self._backbone(images[start : start + _DESCRIBED])
            for start in range(0, len(images), _DESCRIBED)
        ]
        return WholeImages(torch.cat(made))


def decode(files: Sequence[bytes], names: Sequence[str], size: int, device: torch.device) -> Tensor:
    """Images as bytes (B, 3, S, S) on a device; JPEGs are decoded there if it is a GPU.

    Args:
        files: What the files hold.
        names: What to call them if one is damaged.
        size: S; images of another size are squashed.
        device: Where to.

    Raises:
        ValueError: A file is no image; names it.
    """
    if device.type == "cuda":
        decoded = _decode_on_gpu(files, device)
        if decoded is not None and all(image.shape == (3, size, size) for image in decoded):
            return torch.stack(decoded)

    def one(pair: tuple[bytes, str]) -> NDArray[np.uint8]:
        try:
            return to_square(open_image(pair[0], near=2 * size), size)
        except ImageError as error:
            raise ValueError(f"image {pair[1]!r}: {error}") from error

    with ThreadPoolExecutor(_DECODERS) as pool:
        squares = list(pool.map(one, zip(files, names, strict=True)))
    stacked = torch.from_numpy(np.stack(squares))
    return stacked.permute(0, 3, 1, 2).contiguous().to(device)


def _decode_on_gpu(files: Sequence[bytes], device: torch.device) -> list[Tensor] | None:
    """JPEGs decoded by the GPU itself; None where that cannot be."""
    try:
        io: Any = import_module("torchvision.io")
    except (ImportError, RuntimeError):
        return None
    if not all(file[:2] == b"\xff\xd8" for file in files):
        return None
    given = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
    try:
        found: list[Tensor] = io.decode_jpeg(given, mode=io.ImageReadMode.RGB, device=device)
    except RuntimeError:
        return None  # one of them is odd: the CPU will tell which, or read it
    return found
