"""`ngsan data features`: imports features of regions or frames into a dataset folder."""

import argparse
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from ngsan.cli.data_captions import add_import_options
from ngsan.cli.output import open_console, progress_bar, say
from ngsan.cli.parser import Command, Group, Parser, natural
from ngsan.data.captions import CAPTIONS, read_captions
from ngsan.data.folder_walk import walk
from ngsan.data.importers.features import (
    SKIPPED,
    UNREADABLE_FOLDER,
    BoxFormat,
    BoxRules,
    BoxUnit,
    GridAxes,
    Item,
    import_features,
)
from ngsan.data.importers.folders import (
    frames_total,
    npz_total,
    read_frames,
    read_npz,
    read_tensors,
    tensors_total,
)
from ngsan.data.importers.hdf5 import hdf5_total, read_hdf5
from ngsan.data.importers.tsv import BOTTOM_UP_FIELDS, read_tsv, tsv_total
from ngsan.data.problems import Problems
from ngsan.data.splits import read_id_list
from ngsan.data.store_writer import StoreWriter

_OPTIONS: dict[str, dict[str, Any]] = {
    "fields": {
        "metavar": "NAMES",
        "default": ",".join(BOTTOM_UP_FIELDS),
        "help": "the columns in order, separated by commas",
    },
    "boxes": {"metavar": "DIR", "help": "a second folder, with the boxes"},
    "ids": {"metavar": "FILE", "help": "the image id of each row, one per line"},
    "grid_axes": {
        "choices": get_args(GridAxes),
        "default": "hwd",
        "help": "order of the axes of grid features, whose boxes are the cells",
    },
    "max_frames": {
        "type": natural,
        "metavar": "N",
        "default": 0,
        "help": "keep N evenly spaced frames of a longer clip; 0 keeps all",
    },
    "box_format": {
        "choices": get_args(BoxFormat),
        "default": "xyxy",
        "help": "the numbers of a box",
    },
    "box_unit": {"choices": get_args(BoxUnit), "default": "auto", "help": "unit of the numbers"},
}
"""Options of single importers; those of boxes become `BoxRules`."""

_BOXES = ("box_format", "box_unit")
_READERS = {"grid_axes": "grid"}
"""Names of readers' arguments that differ from the options'."""


def _importer(
    name: str,
    text: str,
    read: Callable[..., Iterator[Item]],
    total: Callable[..., int],
    names: tuple[str, ...],
    *,
    several: bool = False,
    example: str,
) -> Command:
    """A command that imports features.

    Args:
        name: Its name.
        text: Its help.
        read: The reader: gets a path, or paths, its options by keyword, `start` and `problems`.
        total: How much there is to read, in the unit of the positions' `done`.
        names: Its options, keys of `_OPTIONS`.
        several: Whether it reads several files.
        example: A command line after the name.
    """

    def add_options(parser: Parser) -> None:
        own = {name: _OPTIONS[name] for name in names}
        add_import_options(parser, several=several, own=own, what="features")

    def run(options: argparse.Namespace) -> int:
        chosen = {_READERS.get(key, key): getattr(options, key) for key in names}
        paths = [Path(path) for path in (options.path if several else [options.path])]
        beside = [Path(chosen[key]) for key in ("boxes", "ids") if chosen.get(key)]
        fingerprint = _fingerprint([*paths, *beside], chosen)
        if chosen.get("ids"):
            chosen["ids"] = list(read_id_list(chosen["ids"]))
        sized = {key: chosen[key] for key in ("boxes", "ids") if chosen.get(key)}
        size = total(options.path, **sized)
        source = f"{name} {', '.join(path.name for path in paths)} ({size}, {fingerprint})"
        if "fields" in chosen:
            chosen["fields"] = chosen["fields"].split(",")
        if _BOXES[0] in chosen:
            chosen = {key: value for key, value in chosen.items() if key not in _BOXES}
            chosen["box_rules"] = _box_rules(options)
        return _import(options, source, size, lambda **how: read(options.path, **how, **chosen))

    return Command(text, add_options, run, [f"data features {name} {example} -o mydata"])


FEATURES = Group(
    "Import features of regions or frames.",
    {
        "tsv": _importer(
            "tsv",
            "Bottom-up TSV files: boxes and features in base64.",
            read_tsv,
            tsv_total,
            ("fields", *_BOXES),
            several=True,
            example="trainval_36/*.tsv",
        ),
        "npz": _importer(
            "npz",
            "A folder with one .npz or .npy file per image.",
            read_npz,
            npz_total,
            ("boxes", "grid_axes", *_BOXES),
            example="regions --box-format cxcywh",
        ),
        "hdf5": _importer(
            "hdf5",
            "An HDF5 file, as the public captioners store features.",
            read_hdf5,
            hdf5_total,
            ("ids", "grid_axes", *_BOXES),
            example="features.hdf5",
        ),
        "tensors": _importer(
            "tensors",
            "A folder with one .safetensors or .pt file per image.",
            read_tensors,
            tensors_total,
            ("grid_axes", *_BOXES),
            example="regions",
        ),
        "frames": _importer(
            "frames",
            "A folder with one .npy file of frame features per video clip (VATEX).",
            read_frames,
            frames_total,
            ("max_frames",),
            example="val --max-frames 32",
        ),
    },
)


def _fingerprint(paths: list[Path], options: dict[str, Any]) -> str:
    """A hash of sources and options, so that an import resumes only its own work."""
    digest = hashlib.blake2b(repr(sorted(options.items())).encode(), digest_size=6)
    for path in paths:
        digest.update(os.fsencode(path.resolve()))
        for file in sorted(walk(path, lambda _: None)) if path.is_dir() else [path]:
            digest.update(os.fsencode(file))
            with suppress(OSError):  # reported by the reader, too
                about = file.stat()
                digest.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()


def _box_rules(options: argparse.Namespace) -> BoxRules:
    """The rules of the command line; image sizes come from captions imported before."""
    folder = Path(options.output)
    sizes = {}
    if (folder / CAPTIONS).exists():
        sizes = {record.id: record.size for record in read_captions(folder) if record.size}
    return BoxRules(options.box_format, options.box_unit, sizes)


def _import(
    options: argparse.Namespace, source: str, total: int, read: Callable[..., Iterator[Item]]
) -> int:
    """Imports features; returns 1 if a folder could not be read, else 0."""
    console = open_console()
    problems = Problems(skip=options.skip_bad)
    with StoreWriter(options.output, source=source, overwrite=options.overwrite) as writer:
        start = writer.position
        if start is not None:
            say(console, f"resuming after {len(writer):,} images")
            problems.resume(start.get(SKIPPED, {}))
        with progress_bar(console, "features", total) as advance_to:
            import_features(
                read(start=start, problems=problems),
                writer,
                problems,
                lambda position: advance_to(position["done"]),
            )
        stored = len(writer)
        if not stored:
            raise ValueError("; ".join((f"{source}: no image was imported", *problems.summary())))
    for line in problems.summary():
        say(console, line, style="yellow")
    say(console, f"wrote {stored:,} images to {options.output}")
    return 1 if problems.counts[UNREADABLE_FOLDER] else 0
