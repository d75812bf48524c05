"""`ngsan extract --frames`: makes the feature store of a dataset folder from clips.

No torch is needed: the photo model that ships looks at the frames, and `ngsan caption` later does
the same.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from ngsan.commands.command_line import progress_bar
from ngsan.commands.extract import SHARD_BYTES, name_files, report
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.export.loading import SHIPPED
from ngsan.light.clips import FrameDescriber
from ngsan.light.manifest import MANIFEST
from ngsan.light.model import LightModel
from ngsan.vision.clips import MOST_TAKEN, find_clips, open_clip
from ngsan.vision.images import ImageError


def extract_clips(options: Any) -> None:
    """Runs the command.

    Args:
        options: Of `ngsan extract`; those of images other than their defaults are refused.

    Raises:
        ValueError: An option is wrong, or not one clip could be used.
    """
    if not 1 <= options.frames <= MOST_TAKEN:
        raise ValueError(f"--frames: {options.frames} is not from 1 to {MOST_TAKEN}")
    for name, default in {"source": "grid", "top": "features", "engine": "local"}.items():
        if getattr(options, name) != default:
            raise ValueError(f"--{name} has no use with --frames: the photo model looks at clips")
    console = Console()
    clips, doubles = name_files(list(find_clips(options.images)))
    if not clips:
        raise ValueError(f"there are no clips in {', '.join(options.images)}")
    for line in doubles:
        report(console, line)
    photos = LightModel(SHIPPED)
    describer = FrameDescriber(photos, options.grid)
    source = f"extract frames {options.frames}, grid {options.grid}, photo model {_seal()}"
    failed = len(doubles)
    with StoreWriter(
        options.to, source=source, shard_bytes=SHARD_BYTES, overwrite=options.overwrite
    ) as writer:
        left = {name: path for name, path in clips.items() if name not in writer}
        if len(left) < len(clips):
            console.print(f"going on after {len(clips) - len(left):,} clips", highlight=False)
        with progress_bar(console, "clips", len(clips)) as advance_to:
            for done, (name, path) in enumerate(left.items(), start=len(clips) - len(left) + 1):
                try:
                    squares = open_clip(Path(path), frames=options.frames, size=describer.size)
                except ImageError as error:
                    failed += 1
                    report(console, str(error))
                else:
                    writer.add(name, Regions(*describer.describe(squares), None))
                advance_to(done)
        stored = len(writer)
        if not stored:
            raise ValueError(f"not one of {len(clips):,} clips could be used")
    console.print(
        f"{stored:,} clips in {options.to}; their model: --model.frame_grid {options.grid} "
        "--model.positions sinusoidal --model.geometry absolute",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if failed:
        report(console, f"{failed:,} clips were left out")
        sys.exit(1)


def _seal() -> str:
    """What tells the photo model that ships apart from any other."""
    told = json.loads((SHIPPED / MANIFEST).read_text(encoding="utf-8"))
    return str(told["seal"])[:12]
