"""`ngsan export` and `ngsan pack`: models as ONNX graphs, and in 8 bits."""

import argparse

from rich.table import Table

from ngsan.cli.output import open_console, say
from ngsan.cli.parser import Command, Parser


def _add_options(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model folder")
    parser.option(
        "output",
        metavar="DIR",
        required=True,
        help="folder to write; an earlier result in it is replaced",
    )


def _export_options(parser: Parser) -> None:
    _add_options(parser)
    parser.option(
        "precision",
        choices=("float32", "int8"),
        help="int8 is smaller, faster on a CPU and a little less exact",
    )


def _export(options: argparse.Namespace) -> None:
    from ngsan.export.write import export_model
    from ngsan.predict.manifest import BACKBONE

    console = open_console()
    with console.status("tracing the model and comparing it with PyTorch"):
        report = export_model(options.model, options.output, precision=options.precision)
    console.print(_table(f"{report.folder}, opset {report.opset}", report.sizes))
    if report.saved_precision != report.precision:
        say(
            console,
            f"The weights were saved in {report.saved_precision}; the export has "
            f"{report.precision}.",
        )
    what = "images" if BACKBONE in report.sizes else "regions"
    say(
        console,
        f"ONNX Runtime and PyTorch agree on {report.same} of {report.captions} captions of random "
        f"{what} with a beam of 3; the largest difference of logits is {report.difference:.1e}.",
    )


def _pack(options: argparse.Namespace) -> None:
    from ngsan.export.write import pack_model

    console = open_console()
    with console.status("quantizing, tracing and comparing with PyTorch"):
        report = pack_model(options.model, options.output)
    console.print(_table(str(report.folder), {**report.sizes, "total": report.size}))
    say(
        console,
        f"ONNX Runtime and PyTorch agree on {report.same} of {report.captions} captions of random "
        f"inputs with a beam of 3; the largest difference of logits is {report.difference:.1e}.",
    )


def _table(title: str, sizes: dict[str, int]) -> Table:
    table = Table("file", title=title)
    table.add_column("bytes", justify="right")
    for name, size in sizes.items():
        table.add_row(name, f"{size:,}")
    return table


EXPORT = Command(
    "Write a model as ONNX graphs that run without PyTorch, and compare them with it.",
    _export_options,
    _export,
    ["export runs/mine -o exported", "export runs/mine -o exported --precision int8"],
)

PACK = Command(
    """Write a model in 8 bits, with ONNX graphs that run without PyTorch from the same weights,
    and compare them with it.""",
    _add_options,
    _pack,
    ["pack runs/mine -o packed", "caption photos --model packed"],
)
