"""Folders of frame features, an `.npy` file a clip, as VATEX gives them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ngsan.data.importers.features_import import Item, Position, list_files, read_folder
from ngsan.data.importers.features_npz import read_arrays
from ngsan.data.importers.region_boxes import find_regions, half_features
from ngsan.data.problems import Problems
from ngsan.data.store import Regions

SUFFIXES = (".npy",)


def frames_total(folder: str | Path) -> int:
    """The number of files; `done` of a position counts towards it."""
    return len(list_files(folder, SUFFIXES))


def read_frames(
    folder: str | Path,
    *,
    most_frames: int = 0,
    problems: Problems,
    start: Position | None = None,
) -> Iterator[Item]:
    """Reads a folder of clips and the folders within it, sorted by name.

    Args:
        folder: Files of (frames, D) or (1, frames, D). A file's name without its ending is the
            clip's id, as it is: clips are not numbered as images are.
        most_frames: Of a longer clip so many frames are taken, evenly from the first to the last;
            0 for all.
        problems: Where bad files are reported.
        start: The position of the last clip that is read already.

    Yields:
        Position (`file`, `done`), clip id and frames, which have neither boxes nor size.

    Raises:
        ValueError: `most_frames` is below 0, or there are no files.
    """
    if most_frames < 0:
        raise ValueError(f"most_frames: {most_frames} must be at least 0")
    folder = Path(folder)

    def load(name: str, clip_id: str) -> Regions:
        features = read_arrays(folder / name, find_regions, alone="features").features
        if features.ndim == 3 and features.shape[0] == 1:
            features = features[0]
        if features.ndim == 2 and 0 < most_frames < len(features):
            places = np.linspace(0, len(features) - 1, most_frames)
            features = features[places.round().astype(np.int64)]
        return Regions(features=half_features(features), boxes=None, size=None)

    names = list_files(folder, SUFFIXES)
    yield from read_folder(
        names, load, start=start, problems=problems, name_id=lambda name: Path(name).stem
    )
