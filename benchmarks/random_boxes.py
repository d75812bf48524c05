"""Makes regions of many sizes from the cells of a grid.

    python benchmarks/random_boxes.py --cells coco --to coco-boxes
    ngsan reproduce models-cross-entropy --data coco-boxes -o boxes --seeds 2

Detectors give overlapping boxes of many sizes; a grid gives cells of one size. This script draws
random boxes over the cells of each image, the same ones at each run, with the mean of their cells
as features. The tables can then be made with regions that differ in size and place but hold
no more information than the cells.
"""

import argparse
import hashlib
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.data.store import FeatureStore, Regions
from ngsan.data.store_writer import StoreWriter


def draw_boxes(random: np.random.Generator, count: int, side: int) -> NDArray[np.int64]:
    """Random boxes of whole cells: (count, 4) left, top, right, bottom."""
    size = np.exp(random.uniform(0, np.log(side + 1), (count, 2))).astype(np.int64)
    corner = (random.random((count, 2)) * (side + 1 - size)).astype(np.int64)
    return np.concatenate((corner, corner + size), axis=1)


def mean_in_boxes(cells: NDArray[np.float32], boxes: NDArray[np.int64]) -> NDArray[np.float32]:
    """The mean of the cells (side, side, d), row by row, in each box: (count, d)."""
    sums = np.pad(cells.cumsum(0, dtype=np.float64).cumsum(1), ((1, 0), (1, 0), (0, 0)))
    left, top, right, bottom = boxes.T
    inside = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    area = (right - left) * (bottom - top)
    return (inside / area[:, None]).astype(np.float32)


def regions_of(cells: Regions, name: str, count: int, seed: int) -> Regions:
    """The random regions of an image."""
    side = round(len(cells.features) ** 0.5)
    if side * side != len(cells.features):
        raise SystemExit(f"image {name} has {len(cells.features)} regions, not a square grid")
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    boxes = draw_boxes(random, count, side)
    features = np.asarray(cells.features, np.float32).reshape(side, side, -1)
    corners = boxes / side
    centres = (corners[:, :2] + corners[:, 2:]) / 2
    sizes = corners[:, 2:] - corners[:, :2]
    places = np.concatenate((centres, sizes), axis=1).astype(np.float32)
    return Regions(mean_in_boxes(features, boxes), places, cells.size)


def main() -> None:
    """Writes the dataset folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=Path, required=True, help="a dataset with grid features")
    parser.add_argument("--to", type=Path, required=True, help="the new dataset's folder")
    parser.add_argument("--regions", type=int, default=36, help="boxes per image")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    store = FeatureStore(options.cells)
    source = f"{options.regions} random boxes, seed {options.seed}, of {store.source}"
    with StoreWriter(options.to, source=source) as writer:
        for name in store.ids():
            if name not in writer:
                drawn = regions_of(store[name], name, options.regions, options.seed)
                writer.add(name, drawn)
    for part in ("captions.jsonl", "vocabulary.json"):
        if (options.cells / part).exists():
            shutil.copy(options.cells / part, options.to)
    print(f"{len(store):,} images written to {options.to}")


if __name__ == "__main__":
    main()
