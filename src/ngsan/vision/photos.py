"""Captioned photographs: a dataset whose features are computed from pixels during training.

Shapes: `B` images, `M` images of the split, `S` side of an image.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ngsan.data.batch import CaptionBatch
from ngsan.data.dataset import CaptionDataset
from ngsan.data.pictures import PictureStore
from ngsan.data.resident import ResidentDataset, Seen
from ngsan.data.store import FeatureStore, Regions
from ngsan.threads import WorkerThreads
from ngsan.vision.decoding import shared_service
from ngsan.vision.grid import GridBackbone
from ngsan.vision.images import ImageError
from ngsan.vision.regions import WHOLE, first_boxes

MIN_SIDE = 1e-3
"""Sides of a box of which nothing is left in a crop, as a share of the crop's."""

_CHUNK = 1024
_DECODERS = 8
_BACKBONE_BATCH = 256


class CellStore:
    """Images in place of a feature store; their regions will be the cells of a grid."""

    has_boxes = True

    def __init__(
        self,
        pictures: PictureStore,
        backbone: GridBackbone,
        regions: FeatureStore | None = None,
    ) -> None:
        self.pictures, self.folder, self.regions = pictures, pictures.folder, regions
        self.size, self.feature_dim, self._cells = backbone.size, backbone.channels, backbone.cells
        self.signature = self.source = f"{pictures.signature}-{self.size}"
        if regions is not None:
            self.signature += f"-{regions.signature}"

    def __contains__(self, image: str) -> bool:
        return image in self.pictures and (self.regions is None or image in self.regions)

    def __getitem__(self, image: str) -> Regions:
        raise ValueError(f"image {image!r} has no features yet; extract them first")

    def ids(self) -> list[str]:
        return self.pictures.ids()

    def counts(self) -> NDArray[np.int64]:
        """Number of cells of each image."""
        return np.full(len(self.pictures), self._cells)


class PhotoDataset(CaptionDataset):
    """The captioned photographs of one split; a batch has images (B, 3, S, S) as features."""

    def __init__(
        self,
        folder: str | Path,
        split: str,
        pictures: PictureStore,
        backbone: GridBackbone,
        *,
        objects: int = 0,
        **options: Any,
    ) -> None:
        """Opens a split.

        Args:
            folder: The dataset folder, with captions.jsonl and vocabulary.json.
            split: For example "train".
            pictures: The photographs.
            backbone: The backbone that will compute the regions; determines the image size.
            objects: R, the boxes of an image that a batch has, of the dataset's features.
            **options: Options of `CaptionDataset`.

        Raises:
            ValueError: The dataset's features have no boxes.
        """
        self.objects = objects
        regions = FeatureStore(folder) if objects else None
        if regions is not None and not regions.has_boxes:
            raise ValueError(
                f"model.objects: {objects} needs boxes, and the features of {folder} have none: "
                "ngsan extract --source objects"
            )
        self._cells = CellStore(pictures, backbone, regions)
        super().__init__(folder, split, **options)

    def _open(self) -> CellStore:
        return self._cells

    @property
    def held_bytes(self) -> int:
        """Size of the decoded images and of the boxes in bytes."""
        return len(self) * (3 * self._cells.size**2 + 16 * self.objects)

    def images(self, places: Sequence[int] | NDArray[Any], device: torch.device | str) -> Tensor:
        """Decoded and resized photographs, (B, 3, S, S) uint8."""
        ids = [self.ids[place] for place in places]
        files = self._cells.pictures.read_many(ids)
        return decode(files, ids, self._cells.size, torch.device(device))

    def object_boxes(self, places: Sequence[int] | NDArray[Any]) -> Tensor | None:
        """The boxes (B, R, 4) of the detected regions; see `first_boxes`."""
        if self._cells.regions is None:
            return None
        found = (self._cells.regions[self.ids[place]].boxes for place in places)
        boxes = [each for each in found if each is not None]
        return torch.from_numpy(first_boxes(boxes, self.objects))

    def batch(self, indices: Sequence[int] | NDArray[Any], *, epoch: int = 0) -> CaptionBatch:
        """See `CaptionDataset.batch`."""
        places, rows = self.choose(indices, epoch=epoch)
        captions = self.tokens.gather(torch.from_numpy(rows), self.tokens.width(rows))
        ids = [self.ids[place] for place in places]
        boxes = self.object_boxes(places)
        return CaptionBatch(self.images(places, "cpu"), boxes, None, *captions, ids=ids)


class WholeImages:
    """Images, or their cells, on a device, (M, ...), and boxes (M, R, 4); nothing to pad."""

    def __init__(self, images: Tensor, boxes: Tensor | None) -> None:
        self._images, self._boxes = images, boxes

    def gather(self, images: Tensor, width: int) -> Seen:
        """See `Resident.gather`; the backbone has the boxes of the cells."""
        places = images.squeeze(1)
        return self._images[places], None if self._boxes is None else self._boxes[places], None


class ResidentPhotos(ResidentDataset):
    """The photographs of a split in a device's memory as uint8, decoded once."""

    dataset: PhotoDataset

    def _load(self) -> WholeImages:
        size, count = self.dataset._cells.size, len(self.dataset)
        images = torch.empty(count, 3, size, size, dtype=torch.uint8, device=self.device)
        for start in range(0, count, _CHUNK):
            places = np.arange(start, min(count, start + _CHUNK))
            images[start : start + len(places)] = self.dataset.images(places, self.device)
        self.images, self.boxes = images, self.dataset.object_boxes(range(count))
        if self.boxes is not None:
            self.boxes = self.boxes.to(self.device)
        return WholeImages(images, self.boxes)


class ResidentCells(ResidentDataset):
    """The cells of a split's photographs, for a frozen backbone."""

    def __init__(self, photos: ResidentPhotos, backbone: nn.Module) -> None:
        """Computes the cells of all photographs once.

        Args:
            photos: The photographs.
            backbone: Maps images (B, 3, S, S) to cells (B, N, C); in evaluation mode.
        """
        self._photos, self._backbone = photos, backbone
        super().__init__(photos.dataset, photos.device, static=photos.static)

    @torch.no_grad()
    def _load(self) -> WholeImages:
        images = self._photos.images
        made = [
            self._backbone(images[start : start + _BACKBONE_BATCH])
            for start in range(0, len(images), _BACKBONE_BATCH)
        ]
        return WholeImages(torch.cat(made), self._photos.boxes)


def decode(files: Sequence[bytes], names: Sequence[str], size: int, device: torch.device) -> Tensor:
    """Decodes images to (B, 3, S, S) uint8 on a device; a GPU decodes JPEGs itself.

    Args:
        files: The bytes of the files.
        names: Their names, for error messages.
        size: S; images of another size are resized.
        device: The device of the result.

    Raises:
        ValueError: A file is not a valid image.
    """
    if device.type == "cuda":
        decoded = _decode_on_gpu(files, device)
        if decoded is not None and all(image.shape == (3, size, size) for image in decoded):
            return torch.stack(decoded)

    def one(pair: tuple[bytes, str]) -> NDArray[np.uint8]:
        try:
            return shared_service().squares(pair[0], (size,)).squares[0]
        except ImageError as error:
            raise ValueError(f"image {pair[1]!r}: {error}") from error

    threads = WorkerThreads(_DECODERS, "pictures")
    try:
        waiting = [threads.submit(one, pair) for pair in zip(files, names, strict=True)]
        squares = [each.result() for each in waiting]
    finally:
        threads.close()
    stacked = torch.from_numpy(np.stack(squares))
    return stacked.permute(0, 3, 1, 2).contiguous().to(device)


def _decode_on_gpu(files: Sequence[bytes], device: torch.device) -> list[Tensor] | None:
    """JPEGs decoded by the GPU; None if that is not possible."""
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
        return None  # an unusual file; the CPU decodes it or names it
    return found


def augment(
    images: Tensor,
    boxes: Tensor | None = None,
    *,
    min_crop: float = 0.6,
    color_jitter: float = 0.2,
) -> tuple[Tensor, Tensor | None]:
    """Crops, flips and jitters images at random, on the device, and moves boxes along.

    Crops are resized to the whole without keeping the aspect ratio, like the images themselves.
    Uses torch's global generator; never synchronises with the device.

    Args:
        images: (B, 3, S, S), uint8 from 0 to 255 or floats from 0 to 1.
        boxes: (B, R, 4) `cxcywh` relative to the image, or None. They are clipped to the crop; one
            of which nothing is left becomes the whole crop.
        min_crop: Minimum of a crop's sides, as a share of the image's.
        color_jitter: Maximum change of brightness and contrast.

    Returns:
        (B, 3, S, S) float32, 0 to 1; and the boxes.
    """
    count, device = len(images), images.device
    side = min_crop + (1 - min_crop) * torch.rand(count, 2, device=device)
    place = (2 * torch.rand(count, 2, device=device) - 1) * (1 - side)
    mirror = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    transform = torch.zeros(count, 2, 3, device=device)
    transform[:, 0, 0] = side[:, 0] * mirror
    transform[:, 1, 1] = side[:, 1]
    transform[:, :, 2] = place
    grid = F.affine_grid(transform, list(images.shape), align_corners=False)
    numbers = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    views = F.grid_sample(numbers, grid, padding_mode="border", align_corners=False)
    contrast = 1 + color_jitter * (2 * torch.rand(count, 1, 1, 1, device=device) - 1)
    brightness = color_jitter * (torch.rand(count, 1, 1, 1, device=device) - 0.5)
    mean = views.mean((1, 2, 3), keepdim=True)
    colored = ((views - mean) * contrast + mean + brightness).clamp(0, 1)
    return colored, None if boxes is None else _move_boxes(boxes, side, place, mirror)


def _move_boxes(boxes: Tensor, side: Tensor, place: Tensor, mirror: Tensor) -> Tensor:
    """Boxes of images as boxes of their crops.

    Args:
        boxes: (B, R, 4).
        side: (B, 2) width and height of the crops, as shares of the image's.
        place: (B, 2) their centres, from -1 to 1.
        mirror: (B,) -1 for a mirrored crop, else 1.
    """
    centres = (2 * boxes[..., :2] - 1 - place[:, None]) / side[:, None]  # in a crop, from -1 to 1
    turned = torch.stack((centres[..., 0] * mirror[:, None], centres[..., 1]), -1)
    centres, halves = (turned + 1) / 2, boxes[..., 2:] / side[:, None] / 2
    low, high = (centres - halves).clamp(0, 1), (centres + halves).clamp(0, 1)
    moved = torch.cat(((low + high) / 2, high - low), -1)
    visible = ((high - low) > MIN_SIDE).all(-1, keepdim=True)
    return torch.where(visible, moved, moved.new_tensor(WHOLE))
