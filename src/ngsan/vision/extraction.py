"""Extracts the regions of many image files, with threads that read ahead.

On a cluster, Ray Data does the same in many processes; see `extract_on_ray`.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from typing import Any

import numpy as np

from ngsan.data.ids import id_of_file
from ngsan.data.store import Regions
from ngsan.threads import WorkerThreads
from ngsan.vision.decoding import shared_service
from ngsan.vision.images import ImageError, Picture
from ngsan.vision.regions import RegionSource


@dataclass(frozen=True)
class Extracted:
    """The result for one file."""

    path: str
    """The file."""
    regions: Regions | None
    """Its regions, or None if it failed."""
    problem: str | None = None
    """Error message that names the file."""


def extract(
    paths: Sequence[str], source: RegionSource, *, batch_size: int = 32, workers: int = 2
) -> Iterator[Extracted]:
    """Extracts the regions of image files.

    Args:
        paths: The files.
        source: The source of regions.
        batch_size: Images per batch of the source.
        workers: Threads that read images.

    Yields:
        The result for each file, in order.
    """
    for name, value in {"batch_size": batch_size, "workers": workers}.items():
        if value < 1:
            raise ValueError(f"{name}: {value} must be at least 1")
    threads = WorkerThreads(workers, "pictures")
    waiting: deque[tuple[str, Future[Picture | str]]] = deque()
    ahead = iter(paths)
    try:
        while True:
            # One batch is read while the source works on the other.
            for path in islice(ahead, 2 * batch_size - len(waiting)):
                waiting.append((path, threads.submit(_read, path, source)))
            if not waiting:
                return
            batch = [waiting.popleft() for _ in range(min(batch_size, len(waiting)))]
            yield from _regions_of([(path, read.result()) for path, read in batch], source)
    finally:
        threads.close()


def extract_on_ray(
    paths: Sequence[str],
    open_source: Callable[[], RegionSource],
    *,
    batch_size: int = 32,
    workers: int = 2,
    gpus: float | None = None,
) -> Iterator[Extracted]:
    """Extracts the regions of image files on the connected Ray cluster, else on a local one.

    Args:
        paths: The files, by names that are valid on every machine of the cluster.
        open_source: Opens a source; called once in every worker.
        batch_size: Images per batch of a source.
        workers: Processes, each with its own source.
        gpus: GPUs per worker, may be a fraction; None for one, if the cluster has any.

    Yields:
        The result for each file, in order.
    """
    # Disables Ray's usage reports; must be set before the import.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray, data = import_module("ray"), import_module("ray.data")
    except ImportError:
        raise ValueError("extraction on a cluster needs Ray: pip install 'ngsan[ray]'") from None
    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        if gpus is None:
            gpus = float("GPU" in ray.cluster_resources())
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        # Small blocks keep all workers busy and give results early.
        blocks = max(workers, -(-len(paths) // batch_size))
        rows = data.from_items([{"path": path} for path in paths], override_num_blocks=blocks)
        made = rows.map_batches(
            RayWorker,
            fn_constructor_args=(open_source,),
            batch_size=batch_size,
            concurrency=workers,
            num_gpus=gpus or None,
        )
        for row in made.iter_rows():
            yield _from_row(row)
    finally:
        if started:
            ray.shutdown()


class RayWorker:
    """A worker process with its own source."""

    def __init__(self, open_source: Callable[[], RegionSource]) -> None:
        self._source = open_source()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The regions of a batch of files, as columns of bytes and numbers."""
        paths = [str(path) for path in batch["path"]]
        found = _regions_of([(path, _read(path, self._source)) for path in paths], self._source)
        rows = [_to_row(one) for one in found]
        return {name: _column([row[name] for row in rows]) for name in rows[0]}


def _column(values: list[Any]) -> Any:
    """Bytes stay objects: numpy's bytes type strips trailing zeros."""
    if not isinstance(values[0], bytes):
        return np.array(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _to_row(one: Extracted) -> dict[str, Any]:
    regions = one.regions
    features = np.empty((0, 0), np.float16) if regions is None else regions.features
    boxes = None if regions is None else regions.boxes
    with np.errstate(over="ignore"):
        half = features.astype(np.float16)  # as in the store, which rejects overflow
    width, height = (regions and regions.size) or (0, 0)
    return {
        "path": one.path,
        "problem": one.problem or "",
        "features": np.ascontiguousarray(half).tobytes(),
        "boxes": b"" if boxes is None else np.ascontiguousarray(boxes, np.float32).tobytes(),
        "count": len(features),
        "width": width,
        "height": height,
    }


def _from_row(row: dict[str, Any]) -> Extracted:
    if row["problem"]:
        return Extracted(row["path"], None, row["problem"])
    features = np.frombuffer(row["features"], np.float16).reshape(int(row["count"]), -1)
    boxes = np.frombuffer(row["boxes"], np.float32).reshape(-1, 4) if row["boxes"] else None
    size = (int(row["width"]), int(row["height"])) if row["width"] else None
    return Extracted(row["path"], Regions(features, boxes, size))


def _read(path: str, source: RegionSource) -> Picture | str:
    """The prepared image with its original size, or an error message."""
    try:
        picture = shared_service().picture(path, min_side=source.min_side)
    except ImageError as error:
        return str(error)
    return Picture(source.prepare(picture.image), picture.size)


def _regions_of(
    batch: Sequence[tuple[str, Picture | str]], source: RegionSource
) -> Iterator[Extracted]:
    """The result for each file of a batch, in order."""
    good = [(path, picture) for path, picture in batch if isinstance(picture, Picture)]
    found = iter(_each(good, source))
    for path, picture in batch:
        regions = picture if isinstance(picture, str) else next(found)
        if isinstance(regions, str):
            problem = regions if isinstance(picture, str) else f"{path}: {regions}"
            yield Extracted(path, None, problem)
        else:
            yield Extracted(path, regions)


def _each(pictures: Sequence[tuple[str, Picture]], source: RegionSource) -> list[Regions | str]:
    """The regions of each image, or an error message."""
    if not pictures:
        return []
    images = [picture.image for _, picture in pictures]
    try:
        made = source.regions(images, [id_of_file(path) for path, _ in pictures])
    except ValueError as error:
        if len(pictures) == 1:
            return [str(error)]
        return [one for picture in pictures for one in _each([picture], source)]
    return [
        replace(regions, size=picture.size)
        for regions, (_, picture) in zip(made, pictures, strict=True)
    ]
