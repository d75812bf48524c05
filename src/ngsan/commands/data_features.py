"""`ngsan data features`: brings features of regions or frames into a dataset folder."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ngsan.commands.command_line import importer_parser, progress_bar
from ngsan.data.captions import CAPTIONS, read_captions
from ngsan.data.importers.features_frames import frames_total, read_frames
from ngsan.data.importers.features_hdf5 import hdf5_total, read_hdf5
from ngsan.data.importers.features_import import SKIPPED, Item, import_features
from ngsan.data.importers.features_npz import npz_total, read_npz
from ngsan.data.importers.features_tensors import read_tensors, tensors_total
from ngsan.data.importers.features_tsv import BOTTOM_UP_FIELDS, read_tsv, tsv_total
from ngsan.data.importers.region_boxes import BoxFormat, BoxRules, BoxUnit, GridAxes
from ngsan.data.problems import Problems
from ngsan.data.splits import read_id_list
from ngsan.data.store_writer import StoreWriter

_OPTIONS: dict[str, dict[str, Any]] = {
    "fields": {
        "type": str,
        "default": ",".join(BOTTOM_UP_FIELDS),
        "help": "the columns in their order, joined by commas",
    },
    "boxes": {"type": str | None, "help": "a second folder, with the boxes"},
    "ids": {"type": str | None, "help": "the image id of each row, a line each"},
    "grid": {
        "type": GridAxes,
        "default": "hwd",
        "help": "order of the axes of grid features, whose boxes are the cells",
    },
    "most_frames": {
        "type": int,
        "default": 0,
        "help": "take so many frames of a longer clip, evenly; 0 for all",
    },
    "box_format": {"type": BoxFormat, "default": "xyxy", "help": "how a box is written"},
    "box_unit": {"type": BoxUnit, "default": "auto", "help": "what its numbers count"},
}
"""Options of single importers; those of boxes become `BoxRules`."""

_BOXES = ("box_format", "box_unit")


@dataclass(frozen=True)
class FeatureImporter:
    """A sub-command of `ngsan data features`."""

    text: str
    """What it reads."""

    read: Callable[..., Iterator[Item]]
    """The reader: gets a path, or paths, its options by keyword, `start` and `problems`."""

    total: Callable[..., int]
    """How much there is to read, in the unit of the positions' `done`."""

    options: tuple[str, ...] = ()
    """Its keys of `_OPTIONS`."""

    several: bool = False
    """Whether it takes several files."""

    def __call__(self, arguments: list[str], prog: str) -> None:
        """Reads the command line and imports."""
        own = {name: _OPTIONS[name] for name in self.options}
        parser = importer_parser(prog, self.text, "features", several=self.several, options=own)
        options = parser.parse_args(arguments)
        chosen = {name: options[name] for name in self.options}
        paths = [Path(name) for name in (options.path if self.several else [options.path])]
        beside = [Path(chosen[name]) for name in ("boxes", "ids") if chosen.get(name)]
        fingerprint = _fingerprint([*paths, *beside], chosen)
        if chosen.get("ids"):
            chosen["ids"] = list(read_id_list(chosen["ids"]))
        told = {name: chosen[name] for name in ("boxes", "ids") if chosen.get(name)}
        total = self.total(options.path, **told)
        kind = prog.split()[-1]
        source = f"{kind} {', '.join(path.name for path in paths)} ({total}, {fingerprint})"
        if "fields" in chosen:
            chosen["fields"] = chosen["fields"].split(",")
        if _BOXES[0] in self.options:
            chosen = {name: value for name, value in chosen.items() if name not in _BOXES}
            chosen["box_rules"] = _box_rules(options)
        _import(
            options,
            source,
            total,
            lambda start, problems: self.read(
                options.path, start=start, problems=problems, **chosen
            ),
        )


FEATURES = {
    "tsv": FeatureImporter(
        "Bottom-up TSV files: boxes and features in base64.",
        read_tsv,
        tsv_total,
        ("fields", *_BOXES),
        several=True,
    ),
    "npz": FeatureImporter(
        "A folder of one .npz or .npy file an image.",
        read_npz,
        npz_total,
        ("boxes", "grid", *_BOXES),
    ),
    "hdf5": FeatureImporter(
        "An HDF5 file, as the public captioners store features.",
        read_hdf5,
        hdf5_total,
        ("ids", "grid", *_BOXES),
    ),
    "tensors": FeatureImporter(
        "A folder of one .safetensors or .pt file an image.",
        read_tensors,
        tensors_total,
        ("grid", *_BOXES),
    ),
    "frames": FeatureImporter(
        "A folder of one .npy file of frame features a video clip (VATEX).",
        read_frames,
        frames_total,
        ("most_frames",),
    ),
}


def _fingerprint(paths: list[Path], options: dict[str, Any]) -> str:
    """Tells sources and ways to read them apart, so that an import goes on with its own alone."""
    digest = hashlib.blake2b(repr(sorted(options.items())).encode(), digest_size=6)
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            about = file.stat()
            digest.update(f"{file.resolve()} {about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()


def _box_rules(options: Any) -> BoxRules:
    """The rules of the command line; image sizes come from captions imported before."""
    folder = Path(options.to)
    sizes = {}
    if (folder / CAPTIONS).exists():
        sizes = {record.id: record.size for record in read_captions(folder) if record.size}
    return BoxRules(options.box_format, options.box_unit, sizes)


def _import(
    options: Any, source: str, total: int, read: Callable[[Any, Problems], Iterator[Item]]
) -> None:
    console = Console()
    problems = Problems(skip=options.skip_bad)
    with StoreWriter(options.to, source=source, overwrite=options.overwrite) as writer:
        start = writer.position
        if start is not None:
            console.print(f"going on after {len(writer):,} images", highlight=False)
            problems.take_up(start.get(SKIPPED, {}))
        with progress_bar(console, "features", total) as advance_to:
            import_features(
                read(start, problems),
                writer,
                problems,
                lambda position: advance_to(position["done"]),
            )
        if not len(writer):
            raise ValueError(
                "; ".join((f"{source}: not one image could be imported", *problems.summary()))
            )
        stored = len(writer)
    for line in problems.summary():
        console.print(line, style="yellow", highlight=False, markup=False)
    console.print(f"{stored:,} images in {options.to}", highlight=False, markup=False)
