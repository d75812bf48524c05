"""Configurations on the command line: recipes, files, and keys such as `--model.layers 2`."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ngsan.cli.parser import UsageError, unknown
from ngsan.config import config_class, explain, find_recipe, from_dict, read_mapping

T = TypeVar("T")


@dataclass(frozen=True)
class Key:
    """A key of a configuration."""

    hint: Any
    """Its type."""

    text: str
    """What it means."""

    default: object

    @property
    def metavar(self) -> str:
        """What stands for its value in the help."""
        choices = _choices(self.hint)
        if choices and sum(map(len, choices)) < 60:
            return "{" + ",".join(choices) + "}"
        names = {int: "N", float: "X", bool: "true|false"}
        return names.get(self.hint, "VALUE")

    def parse(self, text: str) -> Any:
        """The value that a text on the command line stands for, as YAML would hold it."""
        if self.hint is str or _choices(self.hint):
            return text
        from ngsan.config.yaml_text import load_yaml

        try:
            return load_yaml(text)
        except ValueError:
            return text  # of the wrong type, which `from_dict` reports with the key


def _choices(hint: Any) -> tuple[str, ...]:
    return tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()


def keys_of(config: type[Any]) -> Mapping[str, Key]:
    """All keys of a configuration by their dotted names."""
    return dict(_walk(config, None, ""))


def keys_of_recipe(recipe: str) -> Mapping[str, Key]:
    """The keys of a recipe's class, with the recipe's values as defaults."""
    config, values = run_values(recipe)
    return dict(_walk(config, from_dict(config, values), ""))


def _walk(config: type[Any], default: Any, where: str) -> Iterator[tuple[str, Key]]:
    hints, texts = get_type_hints(config), explain(config)
    for item in dataclasses.fields(config):
        value = item.default
        if item.default_factory is not dataclasses.MISSING:
            value = item.default_factory()
        if default is not None:
            value = getattr(default, item.name)
        name, hint = f"{where}{item.name}", hints[item.name]
        sections = [one for one in (hint, *get_args(hint)) if dataclasses.is_dataclass(one)]
        if hint not in sections:
            shown = "null" if value is None and sections else value
            yield name, Key(hint, texts.get(item.name, ""), shown)
        for section in sections:
            assert isinstance(section, type)
            yield from _walk(section, value, f"{name}.")


def run_values(recipe: str, files: Sequence[str] = ()) -> tuple[type[Any], dict[str, Any]]:
    """The class and the values of a run: those of a recipe, replaced by those of further files.

    Args:
        recipe: A recipe's name, a YAML file, or a model folder.
        files: Recipes' names or YAML files.

    Raises:
        ValueError: A recipe, a task or a key is unknown, or a file is wrong.
    """
    folder = Path(recipe)
    path = folder / "config.yaml" if folder.is_dir() else find_recipe(recipe)
    values: dict[str, Any] = {}
    read = {}
    for file in (path, *map(find_recipe, files)):
        try:
            read[file] = read_mapping(file)
            values = _merge(values, read[file])
            config = config_class(str(values.get("task", "captioning")))
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    known = keys_of(config)
    for file, found in read.items():
        for name in _names(found):
            if name not in known and not _is_section(known, name):
                problem = unknown("key", name, known, "ngsan describe --yaml")
                raise ValueError(f"{file}: {problem}")
    return config, values


def with_keys(config: type[T], values: dict[str, Any], keys: Mapping[str, Any], see: str) -> T:
    """Makes a configuration of values and of keys that a command line sets.

    Args:
        config: The class.
        values: Of a recipe; a missing key has its default.
        keys: Values, as text or of their types, by dotted name.
        see: The command, for messages.

    Raises:
        UsageError: A key is unknown.
        ValueError: A value is wrong.
    """
    known = keys_of(config)
    for name, value in keys.items():
        if name not in known:
            if _is_section(known, name):
                raise UsageError(f"--{name} is a section; set its keys: --{name}.KEY VALUE")
            options = [f"--{key}".replace("_", "-") for key in known]
            option = f"--{name}".replace("_", "-")
            raise UsageError(unknown("option", option, options, f"{see} --help"))
        parsed = known[name].parse(value) if isinstance(value, str) else value
        nested: Any = parsed
        for part in reversed(name.split(".")):
            nested = {part: nested}
        values = _merge(values, nested)
    return from_dict(config, values)


def _is_section(keys: Mapping[str, Key], name: str) -> bool:
    return any(key.startswith(f"{name}.") for key in keys)


def _merge(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of `over` in their place, section by section."""
    merged = dict(values)
    for name, value in over.items():
        old = merged.get(name)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[name] = _merge(typing.cast(Any, old), value) if both else value
    return merged


def _names(values: Mapping[Any, Any], where: str = "", depth: int = 0) -> Iterator[str]:
    """The dotted names of values; a section without values counts as a name of its own."""
    for name, value in values.items():
        if isinstance(value, dict) and value and depth < 5:
            yield from _names(value, f"{where}{name}.", depth + 1)
        else:
            yield f"{where}{name}"
