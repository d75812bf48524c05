"""The data of a captioner in batches: from the device's memory, or read ahead by processes."""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ngsan.config import DataConfig, MovingConfig, TrainConfig
from ngsan.data.batch import CaptionBatch
from ngsan.data.captions import VOCABULARY
from ngsan.data.dataset import CaptionDataset
from ngsan.data.pictures import PictureStore
from ngsan.data.resident import ResidentDataset, fits, fits_bytes
from ngsan.data.sampler import BatchSampler, Draw, SamplerState
from ngsan.data.synthetic.folders import (
    sample_moving_splits,
    sample_splits,
    scene_vocabulary,
    write_moving_folder,
    write_scene_folder,
)
from ngsan.train.distributed import inference_dtype
from ngsan.train.task import data_folder, place_scenes
from ngsan.vision.backbone import build_backbone
from ngsan.vision.photos import PhotoDataset, ResidentCells, ResidentPhotos

_MULTIPLE = 128


def sample_epoch(
    fabric: Fabric, seed: int, size: int, batch_size: int, epoch: int = 0, position: int = 0
) -> BatchSampler:
    """This process's share of the batches of an epoch, from a position on."""
    return BatchSampler.from_state(
        SamplerState(seed, epoch, position),
        size,
        batch_size,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        empty_shares=True,
    )


def open_data(
    fabric: Fabric, config: TrainConfig, output: Path, *, fresh: bool
) -> tuple[CaptionDataset, CaptionDataset]:
    """The training and validation splits.

    Args:
        fabric: The processes.
        config: The run.
        output: The run's folder, where built-in scenes are written.
        fresh: Whether the run is new.

    Raises:
        ValueError: The dataset does not exist or is damaged.
        OSError: It cannot be read.
    """
    data, model = config.data, config.model
    scenes = None
    if data.scenes is not None or data.moving is not None:
        write = partial(_write_scenes, data)
        scenes = place_scenes(fabric, output, last=VOCABULARY, fresh=fresh, write=write)
    folder = data_folder(data, scenes, "ngsan data")
    options: dict[str, Any] = {
        "max_length": data.max_length,
        "captions_per_image": data.captions_per_image or None,
        "seed": config.seed,
        "dtype": inference_dtype(config.runtime, fabric.device.type),
        "skip_missing": data.skip_missing,
    }
    if model.backbone == "none":
        return (
            CaptionDataset(folder, data.train_split, boxes=data.boxes, **options),
            CaptionDataset(folder, data.val_split, boxes=data.boxes, **options),
        )
    if data.boxes != "given":
        raise ValueError(
            f"data.boxes: {data.boxes!r} is for regions with boxes, not for a model with the "
            f"backbone {model.backbone}; set data.boxes to given"
        )
    if not config.vision.images:
        raise ValueError(
            f"vision.images: a model with the backbone {model.backbone} needs images; pass their "
            "folder: --vision.images DIR"
        )
    with torch.device("meta"):  # its sizes are needed, and not its weights
        backbone = build_backbone(
            model.backbone,
            size=model.image_size,
            pretrained=False,
            description=model.backbone_config,
        )
    images = PictureStore(config.vision.images)
    options["objects"] = model.objects
    return (
        PhotoDataset(folder, data.train_split, images, backbone, **options),
        PhotoDataset(folder, data.val_split, images, backbone, **options),
    )


def _write_scenes(data: DataConfig, folder: Path) -> None:
    """Writes the built-in scenes, still or moving."""
    if data.train_split == data.val_split:
        raise ValueError(f"data.val_split: {data.val_split!r} is also the training split")
    chosen = data.scenes or data.moving
    assert chosen is not None
    sizes = {data.train_split: chosen.train, data.val_split: chosen.test}
    if isinstance(chosen, MovingConfig):
        moving = sample_moving_splits(sizes, frames=chosen.frames, seed=chosen.seed)
        write_moving_folder(folder, moving, seed=chosen.seed)
    else:
        batches = sample_splits(
            sizes, min_objects=chosen.min_objects, max_objects=chosen.max_objects, seed=chosen.seed
        )
        write_scene_folder(folder, batches, scene_vocabulary())


def hold(
    dataset: CaptionDataset,
    device: torch.device,
    where: Literal["auto", "device", "host"],
    *,
    static: bool,
) -> ResidentDataset | None:
    """The dataset in the device's memory, if it should be there and fits."""
    if where == "host" or (where == "auto" and not fits(dataset, device)):
        return None
    kind = ResidentPhotos if isinstance(dataset, PhotoDataset) else ResidentDataset
    return kind(dataset, device, static=static)


class StoreFiles:
    """The files of a dataset's features, which must not change during a run.

    They are memory-mapped. Reading beyond the end of a truncated file kills the process without a
    message, so their sizes are checked first.
    """

    def __init__(self, dataset: CaptionDataset) -> None:
        files = sorted(dataset.store.folder.glob("*.safetensors"))
        self._sizes = {path: path.stat().st_size for path in files}

    def check(self) -> None:
        """Raises an `OSError` that names a file that is missing or has another size."""
        for path, size in self._sizes.items():
            found = path.stat().st_size
            if found != size:
                raise OSError(
                    f"{path} had {size} bytes when the run started and has {found} now; copy "
                    "it again, or import the features again"
                )


class BatchLoader:
    """The batches of a dataset, in the order of a sampler."""

    def __init__(
        self,
        dataset: CaptionDataset,
        resident: ResidentDataset | None,
        device: torch.device,
        *,
        workers: int = 0,
        static: bool = False,
    ) -> None:
        """Holds the dataset.

        Args:
            dataset: The dataset.
            resident: The same in the device's memory, or None to read batch by batch.
            device: The device of the batches.
            workers: Processes that read ahead, if the dataset is not resident.
            static: Whether all batches have one shape: smaller ones are padded with images whose
                captions do not count.
        """
        self.dataset, self._resident, self.device = dataset, resident, device
        self._workers, self._static = workers, static
        self._files = StoreFiles(dataset) if resident is None else None
        self._regions = int(dataset.region_counts.max())
        self.full = bool((dataset.region_counts == self._regions).all())

    def precomputed(self, backbone: nn.Module) -> "BatchLoader":
        """The same photographs as cells that a frozen backbone computes once.

        Photographs stay as they are if they, or their cells, are not in the device's memory.
        """
        width = next(backbone.parameters()).element_size() * self.dataset.store.feature_dim
        size = width * int(self.dataset.region_counts.sum())
        if not isinstance(self._resident, ResidentPhotos) or not fits_bytes(size, self.device):
            return self
        cells = ResidentCells(self._resident, backbone)
        return BatchLoader(self.dataset, cells, self.device, static=self._static)

    def batches(self, sampler: BatchSampler) -> Iterator[tuple[CaptionBatch, Tensor]]:
        """The batches from the sampler's position to the end of its epoch.

        Yields:
            A batch and the places (B,) of its images in the dataset, on the device.

        Raises:
            OSError: The features or a process that reads ahead are gone.
        """
        size = -(-sampler.batch_size // sampler.world_size) if self._static else 0
        for draw, batch in zip(sampler, self._batches(sampler, size), strict=True):
            places = torch.from_numpy(_padded_indices(draw.indices, size))
            yield batch, places.to(self.device, non_blocking=True)

    def _batches(self, sampler: BatchSampler, size: int) -> Iterator[CaptionBatch]:
        if self._resident is not None:
            for draw in sampler:
                whole = self._resident.batch(_padded_indices(draw.indices, size), epoch=draw.epoch)
                yield _mask_padding(whole, len(draw.indices))
            return
        loader: DataLoader[CaptionBatch] = DataLoader(
            self.dataset,
            sampler=_PaddedSampler(sampler, size),
            batch_size=None,
            num_workers=self._workers,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_ignore_signals,
        )
        for draw, batch in zip(sampler, self._read(loader), strict=True):
            there = batch.to(self.device, non_blocking=True)
            yield _mask_padding(self._padded(there) if self._static else there, len(draw.indices))

    def _read(self, loader: "DataLoader[CaptionBatch]") -> Iterator[CaptionBatch]:
        """The batches of a data loader, with one clear error if reading fails."""
        batches = iter(loader)
        while True:
            try:
                if self._files is not None:
                    self._files.check()
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise OSError(
                    f"a process that reads {self.dataset.folder} ahead has died "
                    f"({str(error).rstrip('. ')}): check the dataset with ngsan data inspect, and "
                    "the free memory; --runtime.workers 0 reads without such processes"
                ) from error
            except (OSError, ValueError, KeyError) as error:
                # An error from another process brings its whole traceback as its text.
                text = str(error).strip().splitlines() or [""]
                raise OSError(f"{self.dataset.folder} cannot be read: {text[-1]}") from error
            yield batch

    def _padded(self, batch: CaptionBatch) -> CaptionBatch:
        """A batch padded to the one shape that all have."""
        captions = self.dataset.captions_per_image or int(np.diff(self.dataset.rows.offsets).max())
        # Images, unlike regions, have no mask, and their boxes are equally many anyway.
        regions = 0 if batch.mask is None else self._regions - batch.features.shape[1]
        more = captions - batch.words.shape[1]
        words = self.dataset.max_length + 1 - batch.words.shape[2]
        pad = torch.nn.functional.pad
        return CaptionBatch(
            features=pad(batch.features, (0, 0, 0, regions)) if regions else batch.features,
            boxes=None if batch.boxes is None else pad(batch.boxes, (0, 0, 0, regions)),
            mask=None if batch.mask is None else pad(batch.mask, (0, regions)),
            words=pad(batch.words, (0, words, 0, more)),
            targets=pad(batch.targets, (0, words, 0, more)),
            target_mask=pad(batch.target_mask, (0, words, 0, more)),
            caption_mask=pad(batch.caption_mask, (0, more)),
            ids=batch.ids,
        )

    def max_targets(self, sampler: BatchSampler, epochs: int) -> int:
        """Most target words, including ends, in any batch of some epochs; rounded up."""
        lengths = np.diff(self.dataset.tokens.offsets.numpy()) + 1
        most = 0
        for epoch in range(epochs):
            rows = self.dataset.choose(np.arange(len(self.dataset)), epoch=epoch)[1]
            counts = np.where(rows >= 0, lengths[rows], 0).sum(1)[sampler.order(epoch)]
            for first in range(sampler.world_size):
                mine = np.where(
                    np.arange(len(counts)) % sampler.batch_size % sampler.world_size == first,
                    counts,
                    0,
                )
                sums = np.add.reduceat(mine, np.arange(0, len(mine), sampler.batch_size))
                most = max(most, int(sums.max()))
        return -(-most // _MULTIPLE) * _MULTIPLE


class _PaddedSampler:
    """A sampler whose last batch is padded."""

    def __init__(self, sampler: BatchSampler, size: int) -> None:
        self._sampler, self._size = sampler, size

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Draw]:
        for draw in self._sampler:
            yield Draw(_padded_indices(draw.indices, self._size), draw.epoch)


def _padded_indices(indices: "np.ndarray[Any, np.dtype[np.int64]]", size: int) -> Any:
    """Indices padded to a size by repeating the last; at least one."""
    if not len(indices):
        return np.zeros(max(1, size), np.int64)
    return np.pad(indices, (0, max(0, size - len(indices))), mode="edge")


def _mask_padding(batch: CaptionBatch, real: int) -> CaptionBatch:
    """A batch in which the captions of all but the first images do not count."""
    if real < len(batch):
        batch.target_mask[real:] = False
        batch.caption_mask[real:] = False
    return batch


def _ignore_signals(worker: int) -> None:
    """Leaves the shutdown to the main process; the workers end with it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
