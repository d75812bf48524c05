"""`ngsan extract`: makes the feature store of a dataset folder from image files or clips."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.console import Console

from ngsan.commands.command_line import Parser, progress_bar
from ngsan.data.ids import id_of_file
from ngsan.data.store_writer import StoreWriter
from ngsan.export.loading import SHIPPED
from ngsan.vision.images import find_images

if TYPE_CHECKING:
    from ngsan.vision.backbone import Top
    from ngsan.vision.extraction import Extracted
    from ngsan.vision.sources import RegionSource

DESCRIPTION = """Makes regions of image files, or frames of clips, and writes them as the features
of a dataset folder. What cannot be read is reported and left out. A run that was stopped goes on
where it stopped when it is started again with the same options."""

Engine = Literal["local", "ray"]

SHARD_BYTES = 64 << 20
"""Smaller shards than those of imports: what is not in a shard is made anew after a kill."""


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    options = _parser().parse_args(arguments)
    if options.frames:
        # Imported here, as it opens the photo model that ships.
        from ngsan.commands.extract_clips import extract_clips

        extract_clips(options)
        return
    console = Console()
    files, doubles = name_files(list(find_images(options.images)))
    if not files:
        raise ValueError(f"there are no images in {', '.join(options.images)}")
    for line in doubles:
        report(console, line)
    failed = len(doubles) + _write_store(options, files, console)
    if failed:
        report(console, f"{failed:,} files were left out")
        sys.exit(1)


def describe_pictures(
    pictures: str, folder: str, wanted: Collection[str], *, device: str, console: Console
) -> None:
    """Makes the features of a dataset's images, by the backbone of the photo model that ships.

    What cannot be read is reported and left out.

    Args:
        pictures: A folder of image files that are named by their ids.
        folder: The dataset's, which has no features.
        wanted: Ids of its images.
        device: Where the network runs.
        console: Where the progress is shown.

    Raises:
        ValueError: There is no file of any of the images, or not one can be used.
    """
    words = [pictures, "--to", folder, "--source", "photo", "--device", device]
    files, _ = name_files(list(find_images([pictures])))
    mine = {name: path for name, path in files.items() if name in wanted}
    if not mine:
        raise ValueError(f"{pictures}: no file there is named like an image of {folder}")
    _write_store(_parser().parse_args(words), mine, console)


def _write_store(options: Any, files: Mapping[str, str], console: Console) -> int:
    """Writes the regions of files, by image id; returns how many were left out."""
    on_ray = options.engine == "ray"
    opening = partial(_open_source, options.source, options.size, options.top)
    source = opening("cpu" if on_ray else options.device)
    text = f"extract {source.signature}"
    failed = 0
    with StoreWriter(
        options.to, source=text, shard_bytes=SHARD_BYTES, overwrite=options.overwrite
    ) as writer:
        left = {
            # Other processes may have other working folders.
            str(Path(path).absolute()) if on_ray else path: name
            for name, path in files.items()
            if name not in writer
        }
        if len(left) < len(files):
            console.print(f"going on after {len(files) - len(left):,} images", highlight=False)
        made = _extract(options, list(left), source, partial(opening, options.device))
        with progress_bar(console, "images", len(files)) as advance_to:
            for done, one in enumerate(made, start=len(files) - len(left) + 1):
                if one.regions is None:
                    failed += 1
                    report(console, one.problem)
                else:
                    try:
                        writer.add(left[one.path], one.regions)
                    except ValueError as error:
                        failed += 1
                        report(console, f"{one.path}: {error}")
                advance_to(done)
        stored = len(writer)
        if not stored:
            raise ValueError(f"not one of {len(files):,} images could be used")
    console.print(f"{stored:,} images in {options.to}", highlight=False, markup=False)
    return failed


def _open_source(text: str, size: int, top: "Top", device: str) -> "RegionSource":
    # Only now: it takes seconds, and a wrong command line should be told at once.
    from ngsan.predict import best_device
    from ngsan.vision.sources import open_source

    kind, _, folder = text.partition(":")
    if kind == "photo":
        from ngsan.models.photo_source import photo_source

        return photo_source(folder or SHIPPED, best_device(device))
    return open_source(text, size=size, top=top, device=best_device(device))


def _extract(
    options: Any,
    paths: Sequence[str],
    source: "RegionSource",
    open_elsewhere: Callable[[], "RegionSource"],
) -> Iterator["Extracted"]:
    from ngsan.vision.extraction import extract, extract_on_ray

    how = {"batch_size": options.batch_size, "workers": options.workers}
    if options.engine == "local":
        return extract(paths, source, **how)
    gpus = {"auto": None, "cpu": 0.0}.get(options.device, 1.0)
    return extract_on_ray(paths, open_elsewhere, gpus=gpus, **how)


def name_files(paths: Sequence[Path]) -> tuple[dict[str, str], list[str]]:
    """The files by image id, and a line for each whose id another one has."""
    files: dict[str, str] = {}
    doubles = []
    for path in paths:
        name = id_of_file(path)
        first = files.setdefault(name, str(path))
        if first != str(path):
            doubles.append(f"{path}: image {name} is {first} already: ids are the files' names")
    return files, doubles


def report(console: Console, line: str | None) -> None:
    """Says what is wrong with a file."""
    console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _parser() -> Parser:
    parser = Parser(prog="ngsan extract", description=DESCRIPTION)
    parser.add_argument(
        "images", metavar="IMAGES", type=str, nargs="+", help="files, folders, or patterns"
    )
    parser.add_argument("--to", metavar="DIR", type=str, required=True, help="the dataset folder")
    parser.add_argument(
        "--source",
        type=str,
        default="grid",
        help="what makes the regions: grid, grid:NAME, photo (the backbone of the model that "
        "ships), photo:DIR (of another), onnx:FILE or torchvision:NAME",
    )
    parser.add_argument("--size", type=int, default=256, help="side of a grid's pictures")
    parser.add_argument(
        "--top",
        type=Literal["features", "head"],
        default="features",
        help="last layer of a grid's network; head has 1280 channels",
    )
    parser.add_argument(
        "--frames",
        type=int,
        default=0,
        help="take so many frames of clips: videos, moving GIFs, and folders of frames; 0 for "
        "images. The photo model that ships looks at them",
    )
    parser.add_argument(
        "--grid",
        type=int,
        default=4,
        help="with --frames: cells of a frame, so many by so many, a divisor of 8",
    )
    parser.add_argument("--batch-size", type=int, default=32, help="pictures at a time")
    parser.add_argument("--device", type=str, default="auto", help="where the network runs")
    parser.add_argument(
        "--workers", type=int, default=2, help="threads that read; with Ray, processes"
    )
    parser.add_argument(
        "--engine",
        type=Engine,
        default="local",
        help=f"where to run: {' or '.join(get_args(Engine))}",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace features that are there already"
    )
    return parser
