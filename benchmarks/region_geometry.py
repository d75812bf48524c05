"""How well the place and size of a region can be predicted from its feature alone.

    ngsan extract photos -o crop --source objects
    ngsan extract photos -o roi --source objects --pool roi
    python benchmarks/region_geometry.py crop roi

A feature that gives its box away makes geometry in attention superfluous. For each folder, ridge
regression on the regions of three fifths of the images they share predicts the centre, the width
and height and the log of the area of boxes relative to their images; a fifth chooses the strength
of the penalty, and R2 is that of the last fifth. 1 is perfect, 0 the mean of all boxes.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.data.store import FeatureStore

TARGETS = ("centre x", "centre y", "width", "height", "log area")
PENALTIES = 10.0 ** np.arange(-3, 6)
"""Strengths of the penalty, for standardized features."""


def targets(boxes: NDArray[np.floating]) -> NDArray[np.float64]:
    """What is predicted of boxes (n, 4)."""
    exact = boxes.astype(np.float64)
    return np.concatenate((exact, np.log(exact[:, 2:].prod(1, keepdims=True))), 1)


def read(store: FeatureStore, images: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The features of all regions of some images, and the targets."""
    found = [store[image] for image in images]
    boxes = [one.boxes for one in found if one.boxes is not None]
    features = np.concatenate([one.features for one in found])
    return features.astype(np.float64), targets(np.concatenate(boxes))


def r2(predicted: NDArray[np.float64], real: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the variance that is explained, of each target."""
    return 1 - ((predicted - real) ** 2).mean(0) / real.var(0)


def predict_boxes(store: FeatureStore, parts: list[list[str]]) -> NDArray[np.float64]:
    """R2 of each target on the images of the last part."""
    (x, y), (x_val, y_val), (x_test, y_test) = (read(store, part) for part in parts)
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    x, x_val, x_test = ((part - mean) / deviation for part in (x, x_val, x_test))
    middle = y.mean(0)
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    along = vectors.T @ (x.T @ (y - middle)) / len(x)
    weights = [vectors @ (along / (values[:, None] + penalty)) for penalty in PENALTIES]
    scores = np.array([r2(x_val @ one + middle, y_val) for one in weights])  # (penalties, targets)
    best = scores.argmax(0)
    chosen = np.stack([weights[row][:, column] for column, row in enumerate(best)], 1)
    return r2(x_test @ chosen + middle, y_test)


def main() -> None:
    """Prints a table with a row for each folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="datasets with features and boxes")
    options = parser.parse_args()
    stores = [FeatureStore(folder) for folder in options.folders]
    shared = set(stores[0].ids()).intersection(*(store.ids() for store in stores[1:]))
    images = sorted(shared, key=lambda name: hashlib.sha256(name.encode()).digest())
    cuts = [len(images) * 3 // 5, len(images) * 4 // 5]
    parts = [images[: cuts[0]], images[cuts[0] : cuts[1]], images[cuts[1] :]]
    print(f"{len(images):,} images, {', '.join(f'{len(part):,}' for part in parts)}")
    print("| features | width | " + " | ".join(TARGETS) + " |")
    for folder, store in zip(options.folders, stores, strict=True):
        found = " | ".join(f"{value:.2f}" for value in predict_boxes(store, parts))
        print(f"| {folder.name} | {store.feature_dim} | {found} |", flush=True)


if __name__ == "__main__":
    main()
