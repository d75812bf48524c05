"""Damages good files and values at random, the same way for the same seed."""

import copy
import json

NUMBERS = (0, 1, -1, 0.5, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, 1e-320, -0.0, True, None)
WORDS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\n",
    "-",
    "--",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "9" * 5000,
    "0x10",
    "1_000",
    "٣",
    "\ud800",
    "\ufeff",
    "\u202e",
    "../../etc/passwd",
    "/dev/zero",
    "/dev/null/x",
    "n" * 5000,
    "~",
    "*",
    "[",
    "**/*",
    "{}",
    "[" * 3000,
    "a: &a [*a]",
    "!!python/object/apply:os.system [true]",
    "${HOME}",
    "%s%n",
    "<script>",
    "é" * 99,
)
_INTEGERS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1\0\0\0")


def damaged_bytes(content, rng):
    """Bytes of which some are changed, removed, duplicated, swapped, inserted or cut off."""
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        place, length = rng.randrange(len(content) or 1), rng.choice((1, 1, 2, 4, 32, 500))
        kind = rng.randrange(9)
        if kind < 2:
            content[place : place + 1] = bytes([rng.randrange(256)])
        elif kind == 2:
            content[place : place + length] = rng.randbytes(length)
        elif kind == 3:
            del content[place : place + length]
        elif kind == 4:
            content[place:place] = content[place : place + length] * rng.choice((1, 2, 50))
        elif kind == 5 and rng.random() < 0.4:
            del content[place:]
        elif kind == 6:
            other = rng.randrange(len(content) or 1)
            content[place:place] = content[other : other + length]
        elif kind == 7 and len(content) > 256:  # heads of files hold their lengths
            place = rng.randrange(256)
            content[place : place + 4] = rng.choice(_INTEGERS)
        else:
            content[place : place + 4] = rng.choice(_INTEGERS)
    return bytes(content)


def damaged_json(value, rng):
    """A JSON text of a value of which one to three parts are replaced, removed or nested."""
    holder = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        parent, key = _pick(holder, rng)
        if key is None:
            continue
        kind = rng.randrange(8)
        if kind == 0 and parent is not holder:
            del parent[key]
        elif kind == 1:
            for _ in range(rng.choice((1, 2, 60))):
                parent[key] = [parent[key]] if rng.random() < 0.5 else {"a": parent[key]}
        elif kind == 2 and isinstance(parent, dict):
            parent[rng.choice(WORDS)] = parent[key]
        elif kind == 3 and isinstance(parent, list):
            parent.extend([parent[key]] * rng.choice((1, 3, 1000)))
        elif kind < 6:
            parent[key] = rng.choice(NUMBERS)
        elif kind == 6:
            parent[key] = rng.choice(WORDS)
        else:
            parent[key] = rng.choice(([], {}, [[]], {"": {}}, [None], [0, 1, 2, 3]))
    return json.dumps(holder[0])


def _pick(holder, rng):
    """A random place in nested lists and dictionaries: the parent, and the key or index."""
    parent, key = holder, 0
    while rng.random() < 0.85:
        inner = parent[key]
        if isinstance(inner, dict) and inner:
            parent, key = inner, rng.choice(list(inner))
        elif isinstance(inner, list) and inner:
            parent, key = inner, rng.randrange(len(inner))
        else:
            break
    return parent, key
