"""`ngsan pack`: a captioner in 8 bits, for PyTorch and for ONNX Runtime."""

from rich.console import Console
from rich.table import Table

from ngsan.commands.command_line import Parser

DESCRIPTION = (
    "Writes a model in 8 bits, with graphs that run without PyTorch from the same weights, and "
    "checks them against it."
)


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    parser = Parser(prog="ngsan pack", description=DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", type=str, help="the model folder")
    parser.add_argument(
        "--to",
        metavar="DIR",
        type=str,
        required=True,
        help="the folder to write; a packed model that is there is replaced",
    )
    options = parser.parse_args(arguments)
    pack(options.model, options.to)


def pack(model: str, to: str) -> None:
    """Packs a model folder and tells what was written and how well it agrees."""
    from ngsan.export import pack_captioner

    console = Console()
    with console.status("rounding, tracing and comparing with PyTorch"):
        report = pack_captioner(model, to)
    table = Table("file", title=str(report.folder), show_footer=True)
    table.columns[0].footer = "together"
    table.add_column("bytes", justify="right", footer=f"{report.size:,}")
    for name, size in report.sizes.items():
        table.add_row(name, f"{size:,}")
    console.print(table)
    console.print(
        f"From these weights, ONNX Runtime and PyTorch wrote {report.same} equal captions of "
        f"{report.captions} random inputs with a beam of 3; the largest difference of logits is "
        f"{report.difference:.1e}."
    )
