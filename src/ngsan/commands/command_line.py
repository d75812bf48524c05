"""Command lines made from a function's signature; its docstring is the help text."""

from collections.abc import Callable
from typing import Any

from jsonargparse import ArgumentParser, auto_cli, set_parsing_settings


class _Parser(ArgumentParser):
    """A parser that takes options by their full names only: a mistyped one is an error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})


def run(function: Callable[..., Any], arguments: list[str], name: str) -> Any:
    """Reads a command line and calls the function with it.

    Configurations among the parameters become options such as `--model.layers 2`, and `--config`
    reads them from a YAML file; later words override earlier ones. A wrong command line exits
    with status 2 and a message that names the option.

    Args:
        function: What to call; its annotations and Google docstring describe the options.
        arguments: The command line after the command's name.
        name: The command's name.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    return auto_cli(function, args=arguments, prog=f"ngsan {name}", parser_class=_Parser)
