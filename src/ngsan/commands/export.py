"""`ngsan export`: a captioner as ONNX graphs."""

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
    options = parser.parse_args(arguments)
    export(options.model, options.to)


def export(model: str, to: str) -> None:
    """Exports a model folder and tells what was written and how well it agrees."""
    from ngsan.export import export_captioner

    console = Console()
    with console.status("tracing the model and comparing it with PyTorch"):
        report = export_captioner(model, to)
    table = Table("file", title=f"{report.folder}, opset {report.opset}")
    table.add_column("bytes", justify="right")
    for name, size in report.sizes.items():
        table.add_row(name, f"{size:,}")
    console.print(table)
    if report.saved_precision != "float32":
        console.print(
            f"The weights were saved in {report.saved_precision}; the export has float32."
        )
    console.print(
        f"ONNX Runtime and PyTorch wrote the same {report.captions} captions of random "
        f"regions with a beam of 3; the largest difference of logits is {report.difference:.1e}."
    )
