"""Cuts a caption into METEOR's words (its option ``-norm``).

METEOR does not take the tokens it is given: it rewrites the line once more. Punctuation stands
alone, quotation marks become plain, hyphens and apostrophes cut words, and a period is kept at a
word only when it belongs to an abbreviation. The rules are applied one after another. Each match
takes the characters around it, so of two marks that share a neighbour the second is left as it is
("a-b-c" becomes "a b-c"): METEOR counts on that, hence no look-around here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["Normalizer", "trim"]

# Latin and Cyrillic letters and phonetic extensions; of any other script each letter stands alone.
_ALPHA = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0400-\u04ff\u0500-\u0527"
    "\ua640-\ua66e\ua67e-\ua697\u1d00-\u1d7f"
)
_SPACE = " \t\n\r\f"  # what separates words; a vertical tab counts as space but does not separate
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"([^0-9{_ALPHA}{_SPACE}\v.'`,\-‘’])", r" \1 "),
        (r"(\.\.+)", r" \1 "),
        (r"([^0-9]),([^0-9])", r"\1 , \2"),
        (r"([0-9]),([^0-9])", r"\1 , \2"),
        (r"([^0-9]),([0-9])", r"\1 , \2"),
        (r"[`‘’]", "'"),
        (r"[“”]|''", ' " '),
        (r"–", "-"),
        (r"--", "-"),
        (rf"([0-9{_ALPHA}.])-([0-9{_ALPHA}])", r"\1 \2"),
        (rf"([^{_ALPHA}])'([^{_ALPHA}])", r"\1 ' \2"),
        (rf"([^{_ALPHA}0-9])'([{_ALPHA}])", r"\1 ' \2"),
        (rf"([{_ALPHA}])'([^{_ALPHA}])", r"\1 ' \2"),
        (rf"([{_ALPHA}])'([{_ALPHA}])", r"\1 '\2"),
        (r"([0-9])'(s)", r"\1 '\2"),
    )
)
_OTHER_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_HAS_LETTER = re.compile(f"[{_ALPHA}]")
_SEPARATOR = re.compile(f"[{_SPACE}]+")
_PLAIN = re.compile("[a-z0-9 ]*")
_CONTROL = "".join(map(chr, range(33)))


def trim(line: str) -> str:
    """Takes spaces and control characters off both ends, as METEOR does before and after."""
    return line.strip(_CONTROL)


class Normalizer:
    """Cuts captions into METEOR's words.

    Args:
        abbreviations: Words that keep their period; True for those that do so only before a number.
    """

    def __init__(self, abbreviations: Mapping[str, bool]) -> None:
        """See the class."""
        self._abbreviations = abbreviations

    def words(self, line: str) -> list[str]:
        """The words of one caption, in lower case."""
        if _PLAIN.fullmatch(line):  # most captions; no rule would change them
            return line.split()
        line = f" {line} "
        for pattern, replacement in _RULES:
            line = pattern.sub(replacement, line)
        line = " ".join(self._periods(_split(line)))
        return _split(trim(_OTHER_SPACES.sub(" ", line)).lower())

    def _periods(self, tokens: list[str]) -> list[str]:
        """Takes the period off words that end a sentence, and all periods off acronyms."""
        result = []
        for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
            word = token[:-1]
            if not token.endswith(".") or not word or not token.strip("."):
                result.append(token)
            elif "." in word and _HAS_LETTER.search(word):
                result.append(token.replace(".", ""))
            elif self._keeps_period(word, following):
                result.append(token)
            else:
                result.append(f"{word} .")
        return result

    def _keeps_period(self, word: str, following: str) -> bool:
        """Whether the period belongs to the word. No sentence begins in lower case."""
        only_before_number = self._abbreviations.get(word)
        if only_before_number is False or "a" <= following[:1] <= "z":
            return True
        return only_before_number is True and "0" <= following[:1] <= "9"


def _split(line: str) -> list[str]:
    return [word for word in _SEPARATOR.split(line) if word]
