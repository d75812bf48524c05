"""`ngsan plot`: draws figures."""

from rich.console import Console

from ngsan.commands import plot_geometry
from ngsan.commands.command_line import Parser
from ngsan.plots import plot_curves, read_curve

DESCRIPTION = """Draws metrics by epoch from the logs of training runs, as Figure 3 of the paper
does. `ngsan plot geometry --help` explains the figures of a model's geometric bias."""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(prog="ngsan plot", description=DESCRIPTION)
    parser.add_argument("figure", choices=["metrics"], help="what to draw: metrics by epoch")
    parser.add_argument(
        "log",
        type=str,
        nargs="+",
        help="JSON lines with an epoch and metrics; NAME=FILE names the run",
    )
    parser.add_argument("--to", type=str, required=True, help="the figure: .png, .pdf or .svg")
    parser.add_argument(
        "--metrics", type=str, default="CIDEr", help="one or more, with commas, a panel each"
    )
    parser.add_argument("--title", type=str, default="", help="above the figure")
    return parser


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    if arguments[:1] == ["geometry"]:
        plot_geometry.main(arguments[1:])
        return
    options = make_parser().parse_args(arguments)
    names = [name.strip() for name in options.metrics.split(",")]
    runs = [_named(log) for log in options.log]
    curves = {name: [read_curve(path, name, label) for label, path in runs] for name in names}
    plot_curves(curves, options.to, title=options.title)
    Console().print(f"the figure is in {options.to}", highlight=False)


def _named(log: str) -> tuple[str | None, str]:
    """The label and the file of NAME=FILE, or of FILE alone."""
    label, mark, path = log.partition("=")
    return (label, path) if mark and "/" not in label else (None, log)
