"""Measures the feature store: reads by id against compressed npz, and how it scales.

Writes about 500 MB into a temporary folder. All reads are of files in the page cache and copy every
byte into reused buffers. One core.

    python benchmarks/store.py --json store.json
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ngsan.data.store import FeatureStore, Regions
from ngsan.data.store_writer import StoreWriter

REGIONS, WIDTH = 36, 2048
THIN_REGIONS, THIN_WIDTH = 1, 4
NPZ_TYPES = ("float16", "float32")
ITEMS_WANTED, RATIO_WANTED = 25_000, 100


class Item:
    """The buffers for one image."""

    def __init__(self, dtype: str) -> None:
        self.features = np.empty((REGIONS, WIDTH), dtype)
        self.boxes = np.empty((REGIONS, 4), np.float32)
        self.size: tuple[int, ...] | None = None


def make_images(images: int, regions: int, width: int) -> Iterator[tuple[int, Regions]]:
    """Images with random ids and dense positive features, like those of mean-pooled detectors."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(10 * images)[:images]
    sizes = rng.uniform(0.05, 0.4, (regions, 2))
    boxes = np.concatenate((rng.uniform(0.3, 0.7, (regions, 2)), sizes), axis=1).astype(np.float32)
    for image_id in ids.tolist():
        features = rng.standard_exponential((regions, width), np.float32)
        yield image_id, Regions(features, boxes, (640, 480))


def write_all(folder: Path, images: int) -> None:
    """Writes the same images as a store and as compressed npz, in float16 and in float32."""
    for dtype in NPZ_TYPES:
        (folder / dtype).mkdir()
    with StoreWriter(folder, source="benchmark") as writer:
        for image_id, regions in make_images(images, REGIONS, WIDTH):
            writer.add(image_id, regions)
            for dtype in NPZ_TYPES:
                np.savez_compressed(
                    folder / dtype / f"{image_id}.npz",
                    features=regions.features.astype(dtype),
                    boxes=np.asarray(regions.boxes),
                    size=np.array(regions.size),
                )


def store_reader(store: FeatureStore, item: Item) -> Callable[[str], None]:
    """Copies whole items out of a store."""

    def read(image_id: str) -> None:
        regions = store[image_id]
        item.features[:] = regions.features
        item.boxes[:] = regions.boxes
        item.size = regions.size

    return read


def npz_reader(folder: Path, item: Item) -> Callable[[str], None]:
    """Copies whole items out of npz files."""

    def read(image_id: str) -> None:
        with np.load(folder / f"{image_id}.npz", allow_pickle=False) as arrays:
            item.features[:] = arrays["features"]
            item.boxes[:] = arrays["boxes"]
            item.size = tuple(arrays["size"].tolist())

    return read


def items_per_second(read: Callable[[str], object], ids: list[str]) -> float:
    """One pass over the ids."""
    start = time.perf_counter()
    for image_id in ids:
        read(image_id)
    return len(ids) / (time.perf_counter() - start)


def measure_reads(folder: Path, images: int, rounds: int) -> dict[str, float]:
    """Whole items of 36 x 2048: the store, and the same items as npz."""
    write_all(folder, images)
    store = FeatureStore(folder)
    items = {dtype: Item(dtype) for dtype in NPZ_TYPES}
    readers: dict[str, Callable[[str], object]] = {
        "store": store_reader(store, items["float16"]),
        "store, views only": store.__getitem__,
    }
    readers |= {f"npz {dtype}": npz_reader(folder / dtype, items[dtype]) for dtype in NPZ_TYPES}
    ids = np.random.default_rng(1).permutation(list(store.ids())).tolist()
    passes: dict[str, list[float]] = {name: [] for name in readers}
    # Interleaved, so that other load slows all of them; the first round warms up.
    for number in range(rounds + 1):
        for name, read in readers.items():
            speeds = [items_per_second(read, ids) for _ in range(10 if "store" in name else 1)]
            passes[name] += speeds if number else []
    for name in ("npz float16", "npz float32"):
        readers["store"](ids[0])
        expected = items["float16"].features.copy()
        readers[name](ids[0])
        found = items[name.removeprefix("npz ")].features.astype(np.float16)
        if not np.array_equal(found, expected):
            raise ValueError(f"the store and the {name} of image {ids[0]} differ")
    return {name: float(np.median(speeds)) for name, speeds in passes.items()}


def measure_scale(folder: Path, images: int) -> dict[str, float]:
    """Opening and random reads of a store of thin features; microseconds."""
    path = folder / f"thin {images}"
    with StoreWriter(path, source="benchmark") as writer:
        start = time.perf_counter()
        for image_id, regions in make_images(images, THIN_REGIONS, THIN_WIDTH):
            writer.add(image_id, regions)
    written = time.perf_counter() - start
    opened, first = [], []
    for _ in range(20):
        start = time.perf_counter()
        store = FeatureStore(path)
        opened.append(time.perf_counter() - start)
        store[next(store.ids())]
        first.append(time.perf_counter() - start)
    ids = list(store.ids())
    # The same number of reads at every size, spread over the whole store.
    chosen = np.random.default_rng(1).choice(ids, 20_000).tolist()
    features = np.empty((THIN_REGIONS, THIN_WIDTH), np.float16)

    def read(image_id: str) -> None:
        features[:] = store[image_id].features

    return {
        "images": images,
        "open_us": float(np.median(opened)) * 1e6,
        "open_and_first_read_us": float(np.median(first)) * 1e6,
        "read_us": 1e6 / float(np.median([items_per_second(read, chosen) for _ in range(5)])),
        "write_us": written / images * 1e6,
    }


def report(reads: dict[str, float], scale: list[dict[str, float]]) -> None:
    """Prints the tables."""
    console = Console()
    table = Table("whole items of 36 x 2048", "items/s", "store is faster by", title="Random reads")
    for name, value in reads.items():
        ratio = f"{reads['store'] / value:.0f} x" if name.startswith("npz") else ""
        table.add_row(name, f"{value:,.0f}", ratio)
    console.print(table)
    console.print(
        f"target: {ITEMS_WANTED:,} items/s, {RATIO_WANTED} x npz. Public region features come as "
        "float32; float16 npz holds the very bytes of the store."
    )
    table = Table("images", "open, us", "open + first read, us", "read, us", "write, us")
    table.title = "Thin features, 1 x 4"
    for row in scale:
        table.add_row(f"{row['images']:,}", *(f"{row[key]:.1f}" for key in list(row)[1:]))
    console.print(table)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=600, help="images of 36 x 2048")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument(
        "--scale",
        type=int,
        nargs="+",
        default=[1_000, 10_000, 100_000, 1_000_000],
        help="sizes of the stores of thin features",
    )
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="ngsan-store-", dir=options.folder) as folder:
        reads = measure_reads(Path(folder), options.images, options.rounds)
        scale = [measure_scale(Path(folder), images) for images in options.scale]
    report(reads, scale)
    if options.json:
        machine = {"runtime": platform.machine(), "python": platform.python_version()}
        figures = {**machine, "numpy": np.__version__, "reads": reads, "scale": scale}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
