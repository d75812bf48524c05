"""The built-in scenes of a run, written into its folder when it begins."""

import shutil
from collections.abc import Callable
from pathlib import Path

from lightning_fabric import Fabric

from ngsan.data.shards import PARTIAL

_SCENES = "scenes"


def place_scenes(
    fabric: Fabric, output: Path, *, last: str, fresh: bool, write: Callable[[Path], None]
) -> Path:
    """The folder of a run's scenes, which the first process writes if they are not there.

    Args:
        fabric: The processes.
        output: The run's folder.
        last: The file that is written last, which shows that the folder is whole.
        fresh: Whether the run has just begun: scenes that are there may be another's.
        write: Writes the scenes into a folder.
    """
    folder = output / _SCENES
    if fabric.is_global_zero and (fresh or not (folder / last).is_file()):
        # What a kill left half written would be taken up, and has some of the scenes already.
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        write(folder)
    fabric.barrier()
    return folder
