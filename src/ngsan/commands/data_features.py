"""`ngsan data features`: brings features of regions or frames into a dataset folder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ngsan.commands.command_line import Parser, progress_bar
from ngsan.data.captions import CAPTIONS, read_captions
from ngsan.data.importers.features_frames import frames_total, read_frames
from ngsan.data.importers.features_hdf5 import hdf5_total, read_hdf5
from ngsan.data.importers.features_import import Item, import_features
from ngsan.data.importers.features_npz import npz_total, read_npz
from ngsan.data.importers.features_tensors import read_tensors, tensors_total
from ngsan.data.importers.features_tsv import BOTTOM_UP_FIELDS, read_tsv, tsv_total
from ngsan.data.importers.problems import Problems
from ngsan.data.importers.region_boxes import BoxFormat, BoxRules, BoxUnit
from ngsan.data.store_writer import StoreWriter

Reader = Callable[[Any, Problems], Iterator[Item]]


def tsv(arguments: list[str], prog: str) -> None:
    """Bottom-up TSV files: boxes and features in base64."""
    parser = _parser(prog, tsv, "path", "TSV files, read one after the other", several=True)
    parser.add_argument(
        "--fields",
        type=str,
        default=",".join(BOTTOM_UP_FIELDS),
        help="the columns in their order, joined by commas",
    )
    options = parser.parse_args(arguments)
    paths = [Path(path) for path in options.path]
    source = "tsv " + ", ".join(f"{path.name} {_bytes(path)} bytes" for path in paths)
    _import(
        options,
        source,
        tsv_total(paths),
        lambda start, problems: read_tsv(
            paths,
            problems=problems,
            start=start,
            fields=options.fields.split(","),
            box_rules=_box_rules(options),
        ),
    )


def npz(arguments: list[str], prog: str) -> None:
    """A folder of one .npz or .npy file an image."""
    parser = _parser(prog, npz, "path", "the folder")
    parser.add_argument("--boxes", type=str | None, help="a second folder, with the boxes")
    _add_grid(parser)
    options = parser.parse_args(arguments)
    total = npz_total(options.path, boxes=options.boxes)
    _import(
        options,
        f"npz {Path(options.path).name} {total} files",
        total,
        lambda start, problems: read_npz(
            options.path,
            problems=problems,
            start=start,
            boxes=options.boxes,
            grid=options.grid,
            box_rules=_box_rules(options),
        ),
    )


def hdf5(arguments: list[str], prog: str) -> None:
    """An HDF5 file, as the public captioners store features."""
    parser = _parser(prog, hdf5, "path", "the file")
    _add_grid(parser)
    options = parser.parse_args(arguments)
    path = Path(options.path)
    _import(
        options,
        f"hdf5 {path.name} {_bytes(path)} bytes",
        hdf5_total(path),
        lambda start, problems: read_hdf5(
            path,
            problems=problems,
            start=start,
            grid=options.grid,
            box_rules=_box_rules(options),
        ),
    )


def tensors(arguments: list[str], prog: str) -> None:
    """A folder of one .safetensors or .pt file an image."""
    parser = _parser(prog, tensors, "path", "the folder")
    _add_grid(parser)
    options = parser.parse_args(arguments)
    total = tensors_total(options.path)
    _import(
        options,
        f"tensors {Path(options.path).name} {total} files",
        total,
        lambda start, problems: read_tensors(
            options.path,
            problems=problems,
            start=start,
            grid=options.grid,
            box_rules=_box_rules(options),
        ),
    )


def frames(arguments: list[str], prog: str) -> None:
    """A folder of one .npy file of frame features a video clip (VATEX)."""
    parser = _parser(prog, frames, "path", "the folder", boxes=False)
    options = parser.parse_args(arguments)
    total = frames_total(options.path)
    _import(
        options,
        f"frames {Path(options.path).name} {total} files",
        total,
        lambda start, problems: read_frames(options.path, problems=problems, start=start),
    )


FEATURES = {"tsv": tsv, "npz": npz, "hdf5": hdf5, "tensors": tensors, "frames": frames}


def _parser(
    prog: str,
    command: Callable[..., None],
    name: str,
    text: str,
    *,
    several: bool = False,
    boxes: bool = True,
) -> Parser:
    """The options that all feature importers share."""
    parser = Parser(prog=prog, description=command.__doc__)
    if several:
        parser.add_argument(name, type=str, nargs="+", help=text)
    else:
        parser.add_argument(name, type=str, help=text)
    parser.add_argument("--to", type=str, required=True, help="the dataset folder")
    parser.add_argument(
        "--skip-bad", action="store_true", help="skip, count and report what is bad"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace features that are there already"
    )
    if boxes:
        parser.add_argument(
            "--box-format", type=BoxFormat, default="xyxy", help="how a box is written"
        )
        parser.add_argument(
            "--box-unit", type=BoxUnit, default="auto", help="what its numbers count"
        )
    return parser


def _add_grid(parser: Parser) -> None:
    parser.add_argument(
        "--grid",
        type=Literal["hwd", "dhw"],
        default="hwd",
        help="order of the axes of grid features, whose boxes are the cells",
    )


def _bytes(path: Path) -> int:
    return path.stat().st_size


def _box_rules(options: Any) -> BoxRules:
    """The rules of the command line; image sizes come from captions imported before."""
    folder = Path(options.to)
    sizes = {}
    if (folder / CAPTIONS).exists():
        sizes = {record.id: record.size for record in read_captions(folder) if record.size}
    return BoxRules(options.box_format, options.box_unit, sizes)


def _import(options: Any, source: str, total: int, read: Reader) -> None:
    console = Console()
    problems = Problems(skip=options.skip_bad)
    with StoreWriter(options.to, source=source, overwrite=options.overwrite) as writer:
        start = writer.position
        if start is not None:
            console.print(f"going on after {len(writer):,} images", highlight=False)
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
