"""Batches for the steps of a phase: cut on the device, or read ahead by other processes."""

import signal
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ngsan.data.batch import CaptionBatch
from ngsan.data.dataset import CaptionDataset
from ngsan.data.resident import ResidentDataset, fits
from ngsan.data.sampler import BatchSampler, Draw
from ngsan.vision.photos import PhotoDataset, ResidentCells, ResidentPhotos

_MULTIPLE = 128


def hold(
    dataset: CaptionDataset,
    device: torch.device,
    where: Literal["auto", "device", "host"],
    *,
    static: bool,
) -> ResidentDataset | None:
    """The dataset in the device's memory, if it is to be there and finds room."""
    if where == "host" or (where == "auto" and not fits(dataset, device)):
        return None
    kind = ResidentPhotos if isinstance(dataset, PhotoDataset) else ResidentDataset
    return kind(dataset, device, static=static)


class StoreFiles:
    """The files of a dataset's features, which are to stay as they are during a run.

    They are mapped into memory. To read behind the end of one that was cut short kills a process
    without a word, so it is better to look first.
    """

    def __init__(self, dataset: CaptionDataset) -> None:
        """Takes note of the files' sizes."""
        files = sorted(dataset.store.folder.glob("*.safetensors"))
        self._sizes = {path: path.stat().st_size for path in files}

    def check(self) -> None:
        """Raises an `OSError` that names a file that is gone or has another size."""
        for path, size in self._sizes.items():
            found = path.stat().st_size
            if found != size:
                raise OSError(
                    f"{path} had {size} bytes when the run began and has {found} now: copy it "
                    "again, or import the features again"
                )


class Feed:
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
        """Takes the dataset.

        Args:
            dataset: The dataset.
            resident: The same in the device's memory, or None to read batch by batch.
            device: Where batches are wanted.
            workers: Processes that read ahead, if the dataset is not resident.
            static: Whether all batches have one shape: smaller ones are filled up with images
                whose captions do not count.
        """
        self.dataset, self._resident, self.device = dataset, resident, device
        self._workers, self._static = workers, static
        self._files = StoreFiles(dataset) if resident is None else None
        self._regions = int(dataset.region_counts.max())
        self.full = bool((dataset.region_counts == self._regions).all())

    def described(self, backbone: nn.Module) -> "Feed":
        """The same photographs as the cells that a backbone makes of them, once and for all.

        Only photographs in the device's memory are; others stay as they are.
        """
        if not isinstance(self._resident, ResidentPhotos):
            return self
        cells = ResidentCells(self._resident, backbone)
        return Feed(self.dataset, cells, self.device, static=self._static)

    def batches(self, sampler: BatchSampler) -> Iterator[tuple[CaptionBatch, Tensor]]:
        """The batches from the sampler's position to the end of its epoch.

        Yields:
            A batch and the places (B,) of its images in the dataset, on the device.

        Raises:
            OSError: The features have gone, or a process that reads ahead has.
        """
        size = -(-sampler.batch_size // sampler.world_size) if self._static else 0
        for draw, batch in zip(sampler, self._made(sampler, size), strict=True):
            places = torch.from_numpy(_filled(draw.indices, size))
            yield batch, places.to(self.device, non_blocking=True)

    def _made(self, sampler: BatchSampler, size: int) -> Iterator[CaptionBatch]:
        if self._resident is not None:
            for draw in sampler:
                whole = self._resident.batch(_filled(draw.indices, size), epoch=draw.epoch)
                yield _silenced(whole, len(draw.indices))
            return
        loader: DataLoader[CaptionBatch] = DataLoader(
            self.dataset,
            sampler=_Filled(sampler, size),
            batch_size=None,
            num_workers=self._workers,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_leave_signals,
        )
        for draw, batch in zip(sampler, self._read(loader), strict=True):
            there = batch.to(self.device, non_blocking=True)
            yield _silenced(self._padded(there) if self._static else there, len(draw.indices))

    def _read(self, loader: "DataLoader[CaptionBatch]") -> Iterator[CaptionBatch]:
        """What a loader reads, as long as there is something to read from."""
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
                    f"({str(error).rstrip('. ')}): look at the dataset with ngsan data inspect, "
                    "and whether memory is short; --machine.workers 0 reads without such processes"
                ) from error
            except (OSError, ValueError, KeyError) as error:
                # An error from another process brings its whole traceback as its text.
                text = str(error).strip().splitlines() or [""]
                raise OSError(f"{self.dataset.folder} cannot be read: {text[-1]}") from error
            yield batch

    def _padded(self, batch: CaptionBatch) -> CaptionBatch:
        """A batch in the one shape that all have."""
        captions = self.dataset.captions_per_image or int(np.diff(self.dataset.rows.offsets).max())
        regions = self._regions - batch.features.shape[1]
        more = captions - batch.words.shape[1]
        words = self.dataset.longest + 1 - batch.words.shape[2]
        pad = torch.nn.functional.pad
        return CaptionBatch(
            features=pad(batch.features, (0, 0, 0, regions))
            if batch.mask is not None
            else batch.features,
            boxes=None if batch.boxes is None else pad(batch.boxes, (0, 0, 0, regions)),
            mask=None if batch.mask is None else pad(batch.mask, (0, regions)),
            words=pad(batch.words, (0, words, 0, more)),
            targets=pad(batch.targets, (0, words, 0, more)),
            target_mask=pad(batch.target_mask, (0, words, 0, more)),
            caption_mask=pad(batch.caption_mask, (0, more)),
            ids=batch.ids,
        )

    def most_targets(self, sampler: BatchSampler, epochs: int) -> int:
        """Most words to be learned, ends included, in any batch of some epochs; rounded up."""
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


class _Filled:
    """A sampler whose last batch is filled up."""

    def __init__(self, sampler: BatchSampler, size: int) -> None:
        self._sampler, self._size = sampler, size

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Draw]:
        for draw in self._sampler:
            yield Draw(_filled(draw.indices, self._size), draw.epoch)


def _filled(indices: "np.ndarray[Any, np.dtype[np.int64]]", size: int) -> Any:
    """Indices filled up to a size by repeating the last; at least one."""
    if not len(indices):
        return np.zeros(max(1, size), np.int64)
    return np.pad(indices, (0, max(0, size - len(indices))), mode="edge")


def _silenced(batch: CaptionBatch, real: int) -> CaptionBatch:
    """A batch in which the captions of all but the first images do not count."""
    if real < len(batch):
        batch.target_mask[real:] = False
        batch.caption_mask[real:] = False
    return batch


def _leave_signals(worker: int) -> None:
    """Leaves it to the main process to end in order; the workers end with it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
