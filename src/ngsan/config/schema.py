"""Checks of a configuration's values, and configurations as plain values and as YAML."""

import ast
import dataclasses
import difflib
import inspect
import math
import re
import textwrap
import types
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_MOST_EXACT = 2**53
"""Above it, not every integer is a floating point number."""

_FLOAT = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises a `ValueError` that names the key unless `value` is one of `choices`."""
    if value not in choices:
        close = difflib.get_close_matches(str(value), [str(choice) for choice in choices], 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(map(str, choices))}{hint}")


def check_range(
    config: object,
    *names: str,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Raises a `ValueError` that names the first of these keys whose value is out of bounds."""
    for name in names:
        value = getattr(config, name)
        if at_least is not None and not value >= at_least:
            raise ValueError(f"{name}: {value} must be at least {at_least}")
        if above is not None and not value > above:
            raise ValueError(f"{name}: {value} must be above {above}")
        if below is not None and not value < below:
            raise ValueError(f"{name}: {value} must be below {below}")
        if at_most is not None and not value <= at_most:
            raise ValueError(f"{name}: {value} must be at most {at_most}")


MAX_SEED = 2**63 - 1
"""Limit of a seed, which is kept in 64 bits."""


def check_seed(config: Any) -> None:
    """Raises a `ValueError` unless the key `seed` fits into 64 bits."""
    if not -MAX_SEED <= config.seed <= MAX_SEED:
        raise ValueError(f"seed: {config.seed} does not fit into 64 bits")


def check_types(config: Any) -> None:
    """Raises a `ValueError` that names the first key whose value is not of its declared type."""
    hints = get_type_hints(type(config))
    for item in dataclasses.fields(config):
        value, hint = getattr(config, item.name), hints[item.name]
        if get_origin(hint) is Literal:
            check_choice(item.name, value, get_args(hint))
            continue
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        allowed = tuple(get_origin(kind) or kind for kind in kinds)
        if float in allowed:
            allowed = (*allowed, int)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{item.name}: {value} is not finite")
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            wanted = getattr(hint, "__name__", str(hint))
            raise ValueError(f"{item.name}: {value!r} is not of type {wanted}")


def from_dict(cls: type[T], values: Any, where: str = "") -> T:
    """Makes a configuration from plain values, as YAML holds them.

    Args:
        cls: The dataclass to make.
        values: A mapping of keys to values; missing keys have their defaults.
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
            value = float(value)  # YAML 1.1 reads 1e-4 as a string
        arguments[key] = value
    try:
        made = cls(**arguments)
    except ValueError as error:
        raise ValueError(f"{where}.{error}" if where else str(error)) from error
    # 0 and 0.0 are one setting, also where settings are hashed.
    whole = {
        key: float(value)
        for key, value in arguments.items()
        if hints[key] is float and type(value) is int and abs(value) <= _MOST_EXACT
    }
    return dataclasses.replace(made, **whole) if whole else made  # type: ignore[type-var]


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


def read_mapping(path: str | Path) -> dict[str, Any]:
    """The keys and values of a YAML file; raises a `ValueError` if it holds something else."""
    from ngsan.config.yaml_text import read_yaml_file

    values = read_yaml_file(path)
    return {} if values is None else _mapping(values, "file")


def read_yaml(cls: type[T], path: str | Path) -> T:
    """Reads a configuration from a YAML file; errors name the file and the key."""
    try:
        return from_dict(cls, read_mapping(path))
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
