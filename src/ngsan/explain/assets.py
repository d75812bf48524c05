"""The files that pages are made of, and values in the form that pages take."""

import json
from importlib.resources import files


def asset(name: str) -> str:
    """A file that lies beside this module."""
    return files("ngsan.explain").joinpath(name).read_text(encoding="utf-8")


def as_text(text: str) -> str:
    """Text that UTF-8 can hold.

    Bytes of a file's name that are not UTF-8 reach Python as lone surrogates, which no encoding
    takes; they are written as escapes with a backslash.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def as_json(value: object) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e")
