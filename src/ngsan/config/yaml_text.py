"""YAML from anywhere: plain values only, read in time that is proportional to the text.

Aliases are rejected, because a few lines of them stand for billions of values; so are keys that
occur twice, whose first value would be lost in silence.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 18
"""Limit of a text; the longest recipe has a tenth of it."""

MAX_NODES = 10_000
"""Limit of keys and values, which take far longer to read than their text."""

MAX_DEPTH = 32
"""Limit of lists and mappings within each other."""

_MAX_DIGITS = 400


class _Loader(yaml.SafeLoader):
    """PyYAML's loader of plain values, with limits."""

    depth = nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.events.AliasEvent):
            raise yaml.YAMLError(f"aliases such as *{event.anchor} are not supported{_at(event)}")
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise yaml.YAMLError(f"more than {MAX_NODES:,} keys and values{_at(event)}")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH} levels{_at(event)}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or key.tag == "tag:yaml.org,2002:merge":
                raise yaml.YAMLError(f"a key must be a plain word{_at(key)}")
            if name in seen:
                raise yaml.YAMLError(f"the key {name[:100]!r} occurs twice{_at(key)}")
            seen.add(name)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > _MAX_DIGITS:
            raise yaml.YAMLError(f"a number of more than {_MAX_DIGITS} digits{_at(node)}")
        return super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _at(place: Any) -> str:
    mark = place.start_mark
    return f", in line {mark.line + 1}, column {mark.column + 1}"


def read_yaml_file(path: str | Path) -> Any:
    """The value of a YAML file; see `load_yaml`."""
    with Path(path).open(encoding="utf-8") as file:
        return load_yaml(file.read(MAX_BYTES + 1))


def load_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        ValueError: The text is not YAML, too long, or has aliases, keys that occur twice, or deep
            nesting; the message is one line.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES:,} characters of YAML")
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())) from None
