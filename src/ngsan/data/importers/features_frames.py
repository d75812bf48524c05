"""Folders of frame features, an `.npy` file a clip, as VATEX gives them."""

from collections.abc import Iterator
from pathlib import Path

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
    folder: str | Path, *, problems: Problems, start: Position | None = None
) -> Iterator[Item]:
    """Reads a folder of clips and the folders within it, sorted by name.

    Args:
        folder: Files of (frames, D) or (1, frames, D). A file's name without its ending is the
            clip's id, as it is: clips are not numbered as images are.
        problems: Where bad files are reported.
        start: The position of the last clip that is read already.

    Yields:
        Position (`file`, `done`), clip id and frames, which have neither boxes nor size.
    """
    folder = Path(folder)

    def load(name: str, clip_id: str) -> Regions:
        features = read_arrays(folder / name, find_regions, alone="features").features
        if features.ndim == 3 and features.shape[0] == 1:
            features = features[0]
        return Regions(features=half_features(features), boxes=None, size=None)

    names = list_files(folder, SUFFIXES)
    yield from read_folder(
        names, load, start=start, problems=problems, name_id=lambda name: Path(name).stem
    )
