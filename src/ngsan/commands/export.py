"""`ngsan export`: a captioner as ONNX graphs."""

from typing import Literal

from rich.console import Console
from rich.table import Table

from ngsan.commands.command_line import Parser

DESCRIPTION = (
    "Writes a captioner as ONNX graphs that run without PyTorch, and checks them against it."
)


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    parser = Parser(prog="ngsan export", description=DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", type=str, help="the model folder")
    parser.add_argument(
        "--to",
        metavar="DIR",
        type=str,
        required=True,
        help="the folder to write; an export that is there is replaced",
    )
    parser.add_argument(
        "--precision",
        choices=["float32", "int8"],
        default="float32",
        help="int8 is smaller, faster on a CPU and a little less exact",
    )
    options = parser.parse_args(arguments)
    export(options.model, options.to, options.precision)


def export(model: str, to: str, precision: Literal["float32", "int8"]) -> None:
    """Exports a model folder and tells what was written and how well it agrees."""
    from ngsan.export import export_captioner
    from ngsan.light.manifest import BACKBONE

    console = Console()
    with console.status("tracing the model and comparing it with PyTorch"):
        report = export_captioner(model, to, precision=precision)
    table = Table("file", title=f"{report.folder}, opset {report.opset}")
    table.add_column("bytes", justify="right")
    for name, size in report.sizes.items():
        table.add_row(name, f"{size:,}")
    console.print(table)
    if report.saved_precision != report.precision:
        console.print(
            f"The weights were saved in {report.saved_precision}; the export has "
            f"{report.precision}."
        )
    which = "the same" if report.same == report.captions else f"{report.same} equal ones of"
    what = "images" if BACKBONE in report.sizes else "regions"
    console.print(
        f"ONNX Runtime and PyTorch wrote {which} {report.captions} captions of random {what} "
        f"with a beam of 3; the largest difference of logits is {report.difference:.1e}."
    )
