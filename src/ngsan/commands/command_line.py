"""What the commands share: command lines and progress."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_type_hints

from jsonargparse import ArgumentParser, Namespace, auto_cli, set_parsing_settings
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")


class Parser(ArgumentParser):
    """A parser that takes options by their full names only: a mistyped one is an error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what `jsonargparse.ArgumentParser` takes."""
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})


class _ConfigParser(Parser):
    """A parser with `--config FILE`, which tells what is wrong with a file or a section."""

    def parse_args(self, args: Any = None, *more: Any, **named: Any) -> Any:
        """Reads a command line; a file that holds no keys is a `ValueError` that names it."""
        for _, path in _given(args or [], "--config"):
            _keys_of(path)
        return super().parse_args(args, *more, **named)

    def error(self, message: str, *more: Any) -> NoReturn:
        """Exits with status 2."""
        section = re.match(r'Parser key "([^"]+)":\s+Unable to load config (.+)', message)
        if section:
            key, value = section.groups()
            message = f"--{key}: {value} is no section; give its keys one by one: --{key}.KEY VALUE"
        super().error(message, *more)


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
    return auto_cli(function, args=arguments, prog=f"ngsan {name}", parser_class=_ConfigParser)


def config_parser(config: type[T], name: str, text: str) -> Parser:
    """The command line of a command that takes a whole configuration.

    Its keys become options such as `--model.layers 2`, and `--config` reads them from a YAML file;
    later words override earlier ones. The command may add options of its own.

    Args:
        config: The configuration's class.
        name: The command's name.
        text: What it does.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    usage = f"ngsan {name} [--config FILE] [--KEY VALUE ...]"
    parser = _ConfigParser(prog=f"ngsan {name}", usage=usage, description=text)
    parser.add_argument("--config", action="config", help="a YAML file with any of the keys")
    parser.add_class_arguments(config, as_group=False)
    return parser


def retell(parser: Parser, about: Mapping[str, tuple[str, str]]) -> None:
    """Explains keys of a configuration otherwise, where a command means something else by them.

    Args:
        parser: Of `config_parser`.
        about: What stands for the value, and the help, by key.
    """
    for action in parser._actions:
        if action.dest in about:
            action.metavar, action.help = about[action.dest]


def take_config(parser: Parser, options: Any, config: type[T]) -> T:
    """The configuration among the options that a parser of `config_parser` has read.

    Raises:
        ValueError: A section is no section, or a value is wrong.
    """
    _check_sections(options, config)
    made = parser.instantiate(options)
    names = [item.name for item in dataclasses.fields(config)]  # type: ignore[arg-type]
    return config(**{name: made[name] for name in names})


def task_of(arguments: list[str]) -> str:
    """What a command line is to learn: what it or its last file says; captioning otherwise.

    The rest of the line can be understood only when that is known.

    Raises:
        ValueError: A file is no YAML.
        OSError: A file cannot be read.
    """
    task = "captioning"
    for option, value in _given(arguments, "--task", "--config"):
        task = value if option == "--task" else str(_keys_of(value).get("task", task))
    return task


def _given(arguments: list[str], *options: str) -> Iterator[tuple[str, str]]:
    """Options of a command line and their values, as `--seed 1` or `--seed=1`."""
    for word, after in zip_longest(arguments, arguments[1:], fillvalue=""):
        option, _, value = word.partition("=")
        if option in options and (value or after or option == "--task"):
            yield option, value or after


def _keys_of(path: str) -> dict[Any, Any]:
    """What a YAML file holds.

    Raises:
        ValueError: It is no YAML, or holds no keys.
        OSError: It cannot be read.
    """
    import yaml

    try:
        keys = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        json.dumps(keys, default=str, skipkeys=True)  # what holds itself has no end
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(keys, dict):
        what = "nothing" if keys is None else repr(keys)
        raise ValueError(f"{path}: expected keys and values, such as seed: 1, and found {what}")
    return keys


def _check_sections(options: Any, config: type[Any], where: str = "") -> None:
    """Raises a `ValueError` if a value stands in the place of a section's keys."""
    for name, kind in get_type_hints(config).items():
        if dataclasses.is_dataclass(kind):
            value, path = options[name], f"{where}{name}"
            if not isinstance(value, Namespace):
                raise ValueError(f"{path}: expected keys and values, not {value!r}")
            assert isinstance(kind, type)
            _check_sections(value, kind, f"{path}.")


def importer_parser(
    prog: str, text: str, what: str, *, several: bool, options: Mapping[str, Mapping[str, Any]]
) -> Parser:
    """The command line of an importer: paths, what all importers take, and its own options.

    Args:
        prog: The command's name.
        text: What it reads.
        what: What it imports: "captions" or "features".
        several: Whether it takes several paths.
        options: The arguments of `add_argument` by name; underscores become dashes.
    """
    parser = Parser(prog=prog, description=text)
    if several:
        parser.add_argument("path", metavar="PATH", type=str, nargs="+", help="the files")
    else:
        parser.add_argument("path", metavar="PATH", type=str, help="the file or folder")
    parser.add_argument("--to", metavar="DIR", type=str, required=True, help="the dataset folder")
    parser.add_argument(
        "--skip-bad", action="store_true", help="skip, count and report what is bad"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help=f"replace {what} that are there already"
    )
    for name, about in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **about)
    return parser


@contextmanager
def progress_bar(
    console: Console, text: str, total: float | None
) -> Iterator[Callable[[float], None]]:
    """Shows how far a piece of work has come.

    Args:
        console: Where to show it.
        text: What is being done.
        total: How much there is to do, or None when that is not known; what is done is then
            shown as a number of images.

    Yields:
        A function to be told how much is done.
    """
    how_far = (
        (TextColumn("{task.completed:,.0f} images"), TimeElapsedColumn())
        if total is None
        else (TaskProgressColumn(), TimeRemainingColumn(elapsed_when_finished=True))
    )
    columns = (TextColumn("{task.description}"), BarColumn(), *how_far)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(text, total=total)
        yield lambda done: progress.update(task, completed=done)
