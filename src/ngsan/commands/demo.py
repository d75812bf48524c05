"""`ngsan demo`: captions the example photographs and writes a page about how."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ngsan.commands.command_line import Parser
from ngsan.examples import EXAMPLES
from ngsan.export.loading import SHIPPED, load_photos

PAGE = "demo/captions.html"
"""Where the page is written unless told otherwise."""

DESCRIPTION = """Captions the photographs that come with the package, and writes a page that shows
where the model looked for every word. 'ngsan demo scenes' trains models on built-in scenes instead;
'ngsan demo scenes --help' explains it."""


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the command."""
    if arguments[:1] == ["scenes"]:
        from ngsan.commands import demo_scenes  # needs torch

        demo_scenes.main(arguments[1:])
        return
    options = _parser().parse_args(arguments)
    demo(options.model, options.to)


def demo(model: str | None = None, to: str = PAGE) -> None:
    """Captions the example photographs.

    Args:
        model: A folder with a model of photographs; None for the one that comes with the package.
        to: The page to write.

    Raises:
        ValueError: There is no model of photographs in the folder.
    """
    folder = SHIPPED if model is None else Path(model)
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; --model names one with a model")
    console = Console()
    paths = [example.path for example in EXAMPLES]
    begun = time.perf_counter()
    captioner = load_photos(folder)
    captions = captioner.caption(paths)
    console.print(_table(captions))
    took = time.perf_counter() - begun
    console.print(
        f"{len(paths)} photographs in {took:.1f} seconds, the model's loading included.",
        highlight=False,
    )
    # Only now, so that the captions come first: torch takes seconds to import.
    from ngsan.explain import write_page

    write_page(
        folder,
        paths,
        Path(to),
        captions=[[caption.text] for caption in captions],
        bylines=[example.credit for example in EXAMPLES],
    )
    console.print(
        f"Where the model looked for every word: open {to} in a browser.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _table(captions: Sequence[Any]) -> Table:
    table = Table(title="Captions of the example photographs", title_justify="left")
    table.add_column("photograph", no_wrap=True)
    table.add_column("caption")
    for example, caption in zip(EXAMPLES, captions, strict=True):
        table.add_row(example.file, escape(str(caption)))
    return table


def _parser() -> Parser:
    parser = Parser(prog="ngsan demo", description=DESCRIPTION)
    parser.add_argument(
        "--model",
        metavar="DIR",
        type=str,
        help="a model of photographs, in place of the one that comes with the package",
    )
    parser.add_argument(
        "--to",
        metavar="FILE",
        type=str,
        default=PAGE,
        help="the page to write (default: %(default)s)",
    )
    return parser
