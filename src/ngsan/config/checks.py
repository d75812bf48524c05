"""Checks of a configuration's values; every message names the key."""

import dataclasses
import difflib
import math
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises a `ValueError` that names the key unless `value` is one of `choices`."""
    if value not in choices:
        close = difflib.get_close_matches(str(value), [str(choice) for choice in choices], 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(map(str, choices))}{hint}")


def check_range(
    config: object,
    name: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raises a `ValueError` that names the key unless its value lies within the bounds."""
    value = getattr(config, name)
    if at_least is not None and not value >= at_least:
        raise ValueError(f"{name}: {value} must be at least {at_least}")
    if above is not None and not value > above:
        raise ValueError(f"{name}: {value} must be above {above}")
    if below is not None and not value < below:
        raise ValueError(f"{name}: {value} must be below {below}")


def check_types(config: Any) -> None:
    """Raises a `ValueError` that names the first key whose value is not of its declared type."""
    hints = get_type_hints(type(config))
    for item in dataclasses.fields(config):
        value, hint = getattr(config, item.name), hints[item.name]
        if get_origin(hint) is Literal:
            check_choice(item.name, value, get_args(hint))
            continue
        allowed = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if float in allowed:
            allowed = (*allowed, int)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{item.name}: {value} is not finite")
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            wanted = getattr(hint, "__name__", str(hint))
            raise ValueError(f"{item.name}: {value!r} is not of type {wanted}")
