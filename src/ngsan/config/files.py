"""Configurations as plain values and as YAML, every key under its explanation."""

import ast
import dataclasses
import difflib
import inspect
import re
import textwrap
import types
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_FLOAT = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")


def from_dict(cls: type[T], values: Any, where: str = "") -> T:
    """Makes a configuration from plain values, as YAML holds them.

    Args:
        cls: The dataclass to make.
        values: A mapping of keys to values; keys that are left out have their defaults.
        where: The dotted path of `values`, for messages.

    Raises:
        ValueError: A key is unknown or a value is wrong; the message names the key.
    """
    values = _mapping(values, where or cls.__name__)
    names = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    arguments = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in names:
            close = difflib.get_close_matches(str(key), names, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(names)}"
            raise ValueError(f"unknown key {path!r}; {hint}")
        nested = _dataclass_of(hints[key])
        if nested is not None and not (value is None and nested is not hints[key]):
            value = from_dict(nested, {**_default_of(names[key]), **_mapping(value, path)}, path)
        elif hints[key] is float and isinstance(value, str) and _FLOAT.fullmatch(value):
            value = float(value)  # YAML 1.1 takes 1e-4 for a word
        arguments[key] = value
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ValueError(f"{where}.{error}" if where else str(error)) from error


def _dataclass_of(hint: Any) -> type | None:
    """The dataclass that a field holds, or may hold besides None."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    found = [option for option in options if dataclasses.is_dataclass(option)]
    return found[0] if found else None  # type: ignore[return-value]


def _default_of(item: "dataclasses.Field[Any]") -> dict[str, Any]:
    """A field's own default as plain values; it may differ from the defaults of its class."""
    default = item.default
    if item.default_factory is not dataclasses.MISSING:
        default = item.default_factory()
    return dataclasses.asdict(default) if dataclasses.is_dataclass(default) else {}  # type: ignore[arg-type]


def _mapping(values: Any, where: str) -> dict[Any, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"{where}: expected keys and values, not {values!r}")
    return values


def read_yaml(cls: type[T], path: str | Path) -> T:
    """Reads a configuration from a YAML file; errors name the file and the key."""
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        return from_dict(cls, {} if values is None else values)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def to_yaml(config: Any) -> str:
    """Writes a configuration as YAML, each key under its explanation."""
    import yaml

    explanations = explain(type(config))
    blocks = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        comment = textwrap.indent(textwrap.fill(explanations[item.name], 95), "# ")
        if dataclasses.is_dataclass(value):
            blocks.append(f"{comment}\n{item.name}:\n{textwrap.indent(to_yaml(value), '  ')}")
        else:
            blocks.append(f"{comment}\n{yaml.safe_dump({item.name: value})}")
    return "\n".join(blocks)


def explain(cls: type) -> dict[str, str]:
    """The explanation that stands under each field of a configuration, inherited ones included."""
    texts = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, body.body[1:], strict=False):
            match statement, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=text)),
                ):
                    texts[name] = " ".join(str(text).split())
    return texts
