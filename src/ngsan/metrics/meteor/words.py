"""METEOR's words: tokenisation, stems, synonyms, and the word lists behind them.

The word lists are read from the installed package ``pycocoevalcap``. It is only looked up, never
imported, because its modules start Java programs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_JAR = "meteor-1.5.jar"
_PARAPHRASES = Path("data") / "paraphrase-en.gz"
_LISTS = (
    "function/english.words",
    "nonbreaking/english.prefixes",
    "synonym/english.synsets",
    "synonym/english.exceptions",
)


@dataclass(frozen=True)
class Resources:
    """METEOR's word lists for English."""

    function_words: frozenset[str]
    """Words that count less than others, such as "the" and "of"."""
    abbreviations: dict[str, bool]
    """Words that keep their period; True for those that do so only before a number."""
    synsets: dict[str, frozenset[int]]
    """WordNet's synonym sets of each base form."""
    irregular: dict[str, tuple[str, ...]]
    """Base forms of irregular words, such as "geese" -> "goose"."""
    paraphrases: Path
    """The compressed table of paraphrases."""
    digest: str
    """Hash of the word lists, without the table of paraphrases."""


def find_resources() -> Resources:
    """Reads METEOR's word lists."""
    folder = meteor_folder()
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


def meteor_folder() -> Path:
    """The folder of METEOR 1.5 in the installed pycocoevalcap.

    Raises:
        ValueError: pycocoevalcap is not installed, or has no METEOR 1.5.
    """
    spec = importlib.util.find_spec("pycocoevalcap")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "meteor"
        if (folder / _JAR).is_file() and (folder / _PARAPHRASES).is_file():
            return folder
    what = "has no METEOR 1.5" if spec else "is not installed"
    raise ValueError(
        f"METEOR needs the word lists of pycocoevalcap, which {what}: pip install 'ngsan[metrics]'"
    )


def _abbreviations(lines: list[str]) -> dict[str, bool]:
    """Reads lines "Prof" or "No #NUMERIC_ONLY#"; lines that start with "#" are comments."""
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


# Latin and Cyrillic letters and phonetic extensions; each letter of another script stands alone.
_ALPHA = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0400-\u04ff\u0500-\u0527"
    "\ua640-\ua66e\ua67e-\ua697\u1d00-\u1d7f"
)
_SPACE = " \t\n\r\f"  # separates words; a vertical tab counts as space but does not separate
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
    """Strips spaces and control characters, as METEOR does before and after."""
    return line.strip(_CONTROL)


class Normalizer:
    """Splits captions into METEOR's words (its option ``-norm``).

    METEOR rewrites each line again: punctuation stands alone, quotation marks become plain, hyphens
    and apostrophes split words, and a period stays only with an abbreviation. The rules are applied
    one after another. A match consumes the characters around it, so of two marks that share a
    neighbour the second stays as it is ("a-b-c" becomes "a b-c"). METEOR depends on that, so the
    patterns have no look-around.

    Args:
        abbreviations: Words that keep their period; True for those that do so only before a number.
    """

    def __init__(self, abbreviations: Mapping[str, bool]) -> None:
        self._abbreviations = abbreviations

    def words(self, line: str) -> list[str]:
        """The words of one caption, in lower case."""
        if _PLAIN.fullmatch(line):  # most captions: no rule applies
            return line.split()
        line = f" {line} "
        for pattern, replacement in _RULES:
            line = pattern.sub(replacement, line)
        line = " ".join(self._periods(_split(line)))
        return _split(trim(_OTHER_SPACES.sub(" ", line)).lower())

    def _periods(self, tokens: list[str]) -> list[str]:
        """Splits off the period at the end of a sentence; removes all periods of acronyms."""
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
        """Whether the period belongs to the word. No sentence starts in lower case."""
        only_before_number = self._abbreviations.get(word)
        if only_before_number is False or "a" <= following[:1] <= "z":
            return True
        return only_before_number is True and "0" <= following[:1] <= "9"


def _split(line: str) -> list[str]:
    return [word for word in _SEPARATOR.split(line) if word]


_VOWELS = "aeiouy"
_WHOLE_WORDS = {
    "skis": "ski",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "ugly": "ugli",
    "early": "earli",
    "only": "onli",
    "singly": "singl",
} | dict.fromkeys(("sky", "news", "howe", "atlas", "cosmos", "bias", "andes"))
_KEPT_AFTER_PLURAL = frozenset(
    ("inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed")
)
_R1_EXCEPTION = re.compile("gener|commun|arsen")
_REGION = re.compile(f"[^{_VOWELS}]*[{_VOWELS}]+[^{_VOWELS}]")
# A short final syllable: a vowel between consonants of which the last is not w, x or Y, or an
# initial vowel and a consonant. "Y" is a y that stands for a consonant.
_SHORT = re.compile(f"(?:[^{_VOWELS}][{_VOWELS}][^{_VOWELS}wxY]|^[{_VOWELS}][^{_VOWELS}])\\Z")
_VOWEL = re.compile(f"[{_VOWELS}]")

_STEP_2 = {
    "tional": "tion", "enci": "ence", "anci": "ance", "abli": "able", "entli": "ent",
    "izer": "ize", "ization": "ize", "ational": "ate", "ation": "ate", "ator": "ate",
    "alism": "al", "aliti": "al", "alli": "al", "fulness": "ful", "ousli": "ous",
    "ousness": "ous", "iveness": "ive", "iviti": "ive", "biliti": "ble", "bli": "ble",
    "ogi": "og", "fulli": "ful", "lessli": "less", "li": "",
}  # fmt: skip
_STEP_3 = {
    "tional": "tion", "ational": "ate", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic",
    "ful": "", "ness": "", "ative": "",
}  # fmt: skip
_STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ism", "ate",
    "iti", "ous", "ive", "ize", "ion",
)  # fmt: skip


def _longest(suffixes: tuple[str, ...]) -> re.Pattern[str]:
    """Pattern for the longest suffix of a word."""
    return re.compile(f"(?:{'|'.join(sorted(suffixes, key=len, reverse=True))})\\Z")


_PATTERN_2 = _longest(tuple(_STEP_2))
_PATTERN_3 = _longest(tuple(_STEP_3))
_PATTERN_4 = _longest(_STEP_4)
_POSSESSIVE = _longest(("'", "'s", "'s'"))
_PLURAL = _longest(("sses", "ied", "ies", "s", "us", "ss"))
_PAST = _longest(("eed", "eedly", "ed", "edly", "ing", "ingly"))
_DOUBLE = re.compile(r"(?:bb|dd|ff|gg|mm|nn|pp|rr|tt)\Z")


def stem(word: str) -> str:
    """The stem of a lower-case word by the Snowball stemmer for English ("Porter 2").

    Written from the published description. METEOR uses the version of about 2010, with fewer
    exceptions than today's. Two regions decide whether a suffix is removed: R1 starts after the
    first consonant that follows a vowel, R2 after the first such consonant within R1. A suffix is
    in a region if it starts there or later.
    """
    if word in _WHOLE_WORDS:
        return _WHOLE_WORDS[word] or word
    if len(word) < 3:
        return word
    word = _mark_consonants(word.removeprefix("'"))
    r1, r2 = _regions(word)
    word = _strip_plural(_POSSESSIVE.sub("", word))
    if word not in _KEPT_AFTER_PLURAL:
        word = _strip_past(word, r1)
        if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:
            word = f"{word[:-1]}i"
        word = _strip_derivation(word, r1, r2)
        word = _strip_final(word, r1, r2)
    return word.replace("Y", "y")


def _mark_consonants(word: str) -> str:
    """Writes Y for a y that starts the word or follows a vowel (a marked Y is not a vowel)."""
    if "y" not in word:
        return word
    letters = list(word)
    for i, letter in enumerate(letters):
        if letter == "y" and (i == 0 or letters[i - 1] in _VOWELS):
            letters[i] = "Y"
    return "".join(letters)


def _regions(word: str) -> tuple[int, int]:
    """Start of R1 and R2; the word's length for an empty region."""
    match = _R1_EXCEPTION.match(word) or _REGION.match(word)
    r1 = match.end() if match else len(word)
    match = _REGION.match(word, r1)
    return r1, match.end() if match else len(word)


def _strip_plural(word: str) -> str:
    """Step 1a."""
    match = _PLURAL.search(word)
    if match is None:
        return word
    suffix, rest = match[0], word[: match.start()]
    if suffix == "sses":
        return f"{rest}ss"
    if suffix in ("ied", "ies"):
        return f"{rest}i" if len(rest) > 1 else f"{rest}ie"
    if suffix == "s" and _VOWEL.search(rest, 0, len(rest) - 1):
        return rest
    return word


def _strip_past(word: str, r1: int) -> str:
    """Step 1b."""
    match = _PAST.search(word)
    if match is None:
        return word
    rest = word[: match.start()]
    if match[0].startswith("eed"):
        return f"{rest}ee" if len(rest) >= r1 else word
    if not _VOWEL.search(rest):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return f"{rest}e"
    if _DOUBLE.search(rest):
        return rest[:-1]
    return f"{rest}e" if len(rest) == r1 and _SHORT.search(rest) else rest


def _strip_derivation(word: str, r1: int, r2: int) -> str:
    """Steps 2 to 4."""
    match = _PATTERN_2.search(word)
    if match and match.start() >= r1:
        before = word[: match.start()]
        if not (match[0] == "ogi" and not before.endswith("l")) and not (
            match[0] == "li" and before[-1:] not in tuple("cdeghkmnrt")
        ):
            word = before + _STEP_2[match[0]]
    match = _PATTERN_3.search(word)
    if match and match.start() >= (r2 if match[0] == "ative" else r1):
        word = word[: match.start()] + _STEP_3[match[0]]
    match = _PATTERN_4.search(word)
    if match and match.start() >= r2:
        before = word[: match.start()]
        if match[0] != "ion" or before.endswith(("s", "t")):
            word = before
    return word


def _strip_final(word: str, r1: int, r2: int) -> str:
    """Step 5."""
    rest = word[:-1]
    if word.endswith("e"):
        if len(rest) >= r2 or (len(rest) >= r1 and not _SHORT.search(rest)):
            return rest
    elif word.endswith("ll") and len(rest) >= r2:
        return rest
    return word


# Endings of inflected words and of their base forms, in order of trial: nouns, verbs, adjectives.
_ENDINGS = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
    ("men", "man"), ("ies", "y"),
    ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""),
    ("er", ""), ("est", ""), ("er", "e"), ("est", "e"),
)  # fmt: skip


class Synonyms:
    """WordNet's synonym sets of a word in any of its forms; see `Resources` for the arguments."""

    def __init__(
        self,
        synsets: Mapping[str, frozenset[int]],
        irregular: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._synsets = synsets
        self._irregular = irregular

    def of(self, word: str) -> frozenset[int]:
        """Synonym sets of the word itself, and of its base form or forms."""
        found = self._synsets.get(word, frozenset())
        for base in self._bases(word):
            found |= self._synsets.get(base, frozenset())
        return found

    def _bases(self, word: str) -> tuple[str, ...]:
        """Base forms of an irregular word, else the first base form in WordNet."""
        if word in self._irregular:
            return self._irregular[word]
        if len(word) < 3 or word.endswith("ss"):
            return ()
        for ending, replacement in _ENDINGS:
            if word.endswith(ending):
                base = word[: len(word) - len(ending)] + replacement
                if base in self._synsets:
                    return (base,)
        return ()
