"""The language of files of text, where their names tell it."""

import re
from collections.abc import Iterable
from pathlib import Path

_CODE = re.compile(r"[a-z]{2}")


def language_of(paths: Iterable[str | Path]) -> str:
    """The language that all names end with, such as "de" of `train.de` and `test.de.gz`.

    Returns:
        Two small letters; empty if a name does not tell, or the names do not agree.
    """
    endings = {Path(Path(path).name.removesuffix(".gz")).suffix[1:] for path in paths}
    found = endings.pop() if len(endings) == 1 else ""
    return found if _CODE.fullmatch(found) else ""


def check_language(language: str) -> str:
    """The same; raises a `ValueError` if it is no language's code of two letters."""
    if not _CODE.fullmatch(language):
        raise ValueError(f"language: {language!r} is not two small letters, such as de")
    return language
