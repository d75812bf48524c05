"""`ngsan extract`: makes the feature store of a dataset folder from image files or clips."""

import argparse
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ngsan.cli.output import note, open_console, progress_bar, say, warn
from ngsan.cli.parser import Command, Parser
from ngsan.cli.region_sources import (
    add_source_options,
    open_described,
    open_source,
    refuse,
    take_source,
)
from ngsan.data.ids import id_of_file
from ngsan.data.store import Regions
from ngsan.data.store_writer import StoreWriter
from ngsan.predict.backend_onnx import OnnxBackend
from ngsan.predict.captioner import PHOTO_MODEL
from ngsan.predict.clips import FrameDescriber
from ngsan.predict.manifest import MANIFEST
from ngsan.vision.clips import MAX_SAMPLED, find_clips, open_clip
from ngsan.vision.images import ImageError, find_images

if TYPE_CHECKING:
    from ngsan.vision.extraction import Extracted
    from ngsan.vision.regions import RegionSource

_SHARD_BYTES = 64 << 20
"""Smaller shards than those of imports: what is not in a shard is made again after a kill."""


def _add_options(parser: Parser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files, folders, or patterns")
    parser.option("output", metavar="DIR", required=True, help="dataset folder to write to")
    add_source_options(parser)
    parser.option(
        "frames",
        help="extract features of N frames of clips (videos, moving GIFs, folders of frames) with "
        "the shipped photo model, instead of images",
    )
    parser.option(
        "grid",
        type=int,
        metavar="N",
        default=4,
        help="with --frames: rows and columns of cells per frame, a divisor of 8",
    )
    parser.option("batch-size", default=32)
    parser.option("device", default="auto")
    parser.option("threads", help="CPU threads of ONNX Runtime (default: one per core)")
    parser.option(
        "workers", type=int, metavar="N", default=2, help="threads that read; with Ray, processes"
    )
    parser.option("engine", choices=("local", "ray"), default="local", help="where to run")
    parser.option("overwrite", help="replace existing features")


def _run(options: argparse.Namespace) -> int:
    take_source(options)
    what = "images" if options.frames is None else "clips"
    found = find_images(options.paths) if options.frames is None else find_clips(options.paths)
    if options.frames is not None:
        _check_clips(options)
    files, problems = _name_files(list(found))
    if not files:
        raise ValueError(f"no {what} in {', '.join(map(repr, options.paths))}")
    for line in problems:
        warn(line)
    failed = len(problems) + (
        _write_images(options, files) if options.frames is None else _write_clips(options, files)
    )
    if failed:
        warn(f"{failed:,} {what} were skipped")
    return 1 if failed else 0


def _check_clips(options: argparse.Namespace) -> None:
    if options.frames > MAX_SAMPLED:
        raise ValueError(f"--frames: {options.frames} is more than {MAX_SAMPLED}")
    refuse(
        options, ("source", "extractor", "top", "engine"), "--frames, which uses the photo model"
    )


def extract_images(images: str, folder: str, wanted: Collection[str], *, device: str) -> None:
    """Extracts the features of a dataset's images with the backbone of the shipped model.

    Args:
        images: A folder of image files that are named by their ids.
        folder: The dataset's, which has no features.
        wanted: Ids of its images.
        device: Where the network runs.

    Raises:
        ValueError: No file belongs to an image, or none can be used.
    """
    words = [images, "--output", folder, "--extractor", "photo", "--device", device]
    files, _ = _name_files(list(find_images([images])))
    mine = {name: path for name, path in files.items() if name in wanted}
    if not mine:
        raise ValueError(f"{images}: no file there is named like an image of {folder}")
    options = EXTRACT.parser("ngsan extract").parse(words)
    take_source(options)
    _write_images(options, mine)


def source_of_model(model: Path) -> "RegionSource":
    """Opens what made the features that a model of regions was trained on.

    Raises:
        ValueError: It is not known, or cannot be opened.
    """
    from ngsan.models.checkpoint import read_features

    description = read_features(model)
    if not description:
        raise ValueError(
            f"{model} is a model of regions that does not say what made them: train it again, or "
            "pass features to Captioner.caption_regions in Python"
        )

    def parse(words: list[str]) -> argparse.Namespace:
        whole = ["photo.jpg", "--output", "none", *words]
        options = EXTRACT.parser("ngsan extract").parse(whole)
        take_source(options)
        return options

    return open_described(description, parse)


def _name_files(paths: Sequence[Path]) -> tuple[dict[str, str], list[str]]:
    """The files by image id, and a message for each that has none, or another one's."""
    files: dict[str, str] = {}
    problems = []
    for path in paths:
        try:
            name = id_of_file(path)
            name.encode()
        except UnicodeEncodeError:
            problems.append(f"{path}: its name, which is its id, is not UTF-8; rename the file")
            continue
        except ValueError as error:
            problems.append(f"{path}: {error}")
            continue
        first = files.setdefault(name, str(path))
        if first != str(path):
            problems.append(f"{path}: {first} already has the id {name}; ids are file names")
    return files, problems


def _write_images(options: argparse.Namespace, files: Mapping[str, str]) -> int:
    """Writes the regions of images, by id; returns how many were skipped."""
    on_ray = options.engine == "ray"
    opening = partial(open_source, options)
    source = opening("cpu" if on_ray else options.device)

    def extract(left: Mapping[str, str]) -> "Iterator[tuple[str, Regions | str]]":
        # Other processes may have other working folders.
        names = {
            str(Path(path).absolute()) if on_ray else path: name for name, path in left.items()
        }
        for one in _extract(options, list(names), source, partial(opening, options.device)):
            yield names[one.path], one.problem or "" if one.regions is None else one.regions

    return _write(options, f"extract {source.signature}", files, extract)


def _write_clips(options: argparse.Namespace, files: Mapping[str, str]) -> int:
    """Writes the cells of frames of clips, by id; returns how many were skipped."""
    describer = FrameDescriber(OnnxBackend(PHOTO_MODEL), options.grid)
    seal = str(json.loads((PHOTO_MODEL / MANIFEST).read_text(encoding="utf-8"))["seal"])[:12]

    def extract(left: Mapping[str, str]) -> "Iterator[tuple[str, Regions | str]]":
        for name, path in left.items():
            try:
                squares = open_clip(Path(path), frames=options.frames, size=describer.size)
            except ImageError as error:
                yield name, str(error)
            else:
                yield name, Regions(*describer.describe(squares), None)

    source = f"extract frames {options.frames}, grid {options.grid}, photo model {seal}"
    failed = _write(options, source, files, extract)
    note(
        f"train on them with --model.frame-grid {options.grid} --model.positions sinusoidal "
        "--model.geometry absolute"
    )
    return failed


def _write(
    options: argparse.Namespace,
    source: str,
    files: Mapping[str, str],
    extract: "Callable[[Mapping[str, str]], Iterator[tuple[str, Regions | str]]]",
) -> int:
    """Writes the features of files to the store, and resumes an earlier run.

    Args:
        options: Of the command line.
        source: The store's description of how the features were made.
        files: The files by id.
        extract: Gives the id and the features, or what is wrong, of files by id.

    Returns:
        How many were skipped.
    """
    console, failed = open_console(), 0
    with StoreWriter(
        options.output, source=source, shard_bytes=_SHARD_BYTES, overwrite=options.overwrite
    ) as writer:
        left = {name: path for name, path in files.items() if name not in writer}
        if len(left) < len(files):
            say(console, f"resuming after {len(files) - len(left):,} files")
        with progress_bar(console, "extracting", len(files)) as advance_to:
            start = len(files) - len(left) + 1
            for done, (name, found) in enumerate(extract(left), start=start):
                if not isinstance(found, str):
                    try:
                        writer.add(name, found)
                    except ValueError as error:
                        found = f"{files[name]}: {error}"
                if isinstance(found, str):
                    failed += 1
                    warn(found)
                advance_to(done)
        stored = len(writer)
        if not stored:
            raise ValueError(f"none of {len(files):,} files could be used")
    say(console, f"wrote the features of {stored:,} files to {options.output}")
    return failed


def _extract(
    options: argparse.Namespace,
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


EXTRACT = Command(
    """Extract region features of images, or frame features of clips, into a dataset folder. A file
    that cannot be read is reported and skipped, and the exit status is 1. A run that was stopped
    resumes when it is started again with the same options.""",
    _add_options,
    _run,
    [
        "extract photos -o mydata",
        "extract photos -o mydata --extractor photo --device cuda",
        "extract photos -o mydata --source objects --min-regions 10 --max-regions 36",
        "extract photos -o mydata --source boxes instances_val2014.json",
        "extract clips -o mydata --frames 8",
    ],
)
