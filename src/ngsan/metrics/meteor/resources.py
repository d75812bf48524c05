"""Finds METEOR's word lists and tables in the installed package ``pycocoevalcap``.

The package is only looked up, never imported: its modules start Java programs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Resources", "find_resources"]

_JAR = "meteor-1.5.jar"
_PARAPHRASES = Path("data") / "paraphrase-en.gz"
_LISTS = (
    "function/english.words",
    "nonbreaking/english.prefixes",
    "synonym/english.synsets",
    "synonym/english.exceptions",
)
_INSTALL = 'install it with: pip install "ngsan[metrics]"'


@dataclass(frozen=True)
class Resources:
    """METEOR's data for English."""

    function_words: frozenset[str]
    """Words that count less than others: "the", "of" and the like."""

    abbreviations: dict[str, bool]
    """Words that keep a period after them; True for those that do so only before a number."""

    synsets: dict[str, frozenset[int]]
    """WordNet's synonym sets of each base form."""

    irregular: dict[str, tuple[str, ...]]
    """Base forms of irregular words, as "geese" -> "goose"."""

    paraphrases: Path
    """The compressed table of paraphrases."""

    digest: str
    """Hash of the word lists; the table of paraphrases is not part of it."""


def find_resources() -> Resources:
    """Reads METEOR's word lists.

    Raises:
        ValueError: ``pycocoevalcap`` is not installed, or has no METEOR 1.5 in it.
    """
    folder = _meteor_folder()
    with zipfile.ZipFile(folder / _JAR) as jar:
        files = {name: jar.read(name) for name in _LISTS}
    lines = {name: content.decode("utf-8").splitlines() for name, content in files.items()}
    synsets = lines["synonym/english.synsets"]
    return Resources(
        function_words=frozenset(lines["function/english.words"]),
        abbreviations=_abbreviations(lines["nonbreaking/english.prefixes"]),
        synsets={
            word: frozenset(map(int, sets.split()))
            for word, sets in zip(synsets[::2], synsets[1::2], strict=True)
        },
        irregular=_irregular(lines["synonym/english.exceptions"]),
        paraphrases=folder / _PARAPHRASES,
        digest=hashlib.blake2b(b"".join(files.values()), digest_size=8).hexdigest(),
    )


def _meteor_folder() -> Path:
    spec = importlib.util.find_spec("pycocoevalcap")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "meteor"
        if (folder / _JAR).is_file() and (folder / _PARAPHRASES).is_file():
            return folder
    what = "holds no METEOR 1.5" if spec else "is not installed"
    raise ValueError(f"METEOR's word lists come with pycocoevalcap, which {what}; {_INSTALL}")


def _abbreviations(lines: list[str]) -> dict[str, bool]:
    """Reads lines "Prof" or "No #NUMERIC_ONLY#"; a line that begins with "#" is a comment."""
    entries = (line.split() for line in lines)
    return {
        words[0]: words[1:2] == ["#NUMERIC_ONLY#"]
        for words in entries
        if words and not words[0].startswith("#")
    }


def _irregular(lines: list[str]) -> dict[str, tuple[str, ...]]:
    """Reads pairs of lines: a base form, then its irregular forms."""
    bases: dict[str, tuple[str, ...]] = {}
    for base, forms in zip(lines[::2], lines[1::2], strict=True):
        for form in forms.split():
            bases[form] = (*bases.get(form, ()), base)
    return bases
