"""The Snowball stemmer for English ("Porter 2"), as METEOR 1.5 runs it.

Written from the published description of the algorithm. METEOR uses the version of about 2010, with
fewer exceptions than today's. Words are expected in lower case.

Two regions decide whether a suffix may go: R1 begins after the first consonant that follows a
vowel, R2 after the first consonant that follows a vowel within R1. They are found once; a suffix is
"in" a region when it begins there or later.
"""

from __future__ import annotations

import re

__all__ = ["stem"]

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
# A short syllable at the end: a vowel between consonants of which the last is not w, x or Y, or a
# vowel that begins the word and a consonant. "Y" is a y that stands for a consonant.
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
    """Pattern for the longest of the suffixes a word ends with."""
    return re.compile(f"(?:{'|'.join(sorted(suffixes, key=len, reverse=True))})\\Z")


_PATTERN_2 = _longest(tuple(_STEP_2))
_PATTERN_3 = _longest(tuple(_STEP_3))
_PATTERN_4 = _longest(_STEP_4)
_POSSESSIVE = _longest(("'", "'s", "'s'"))
_PLURAL = _longest(("sses", "ied", "ies", "s", "us", "ss"))
_PAST = _longest(("eed", "eedly", "ed", "edly", "ing", "ingly"))
_DOUBLE = re.compile(r"(?:bb|dd|ff|gg|mm|nn|pp|rr|tt)\Z")


def stem(word: str) -> str:
    """The stem of one word."""
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
    """Writes Y for a y that begins the word or follows a vowel (which a marked Y is not)."""
    if "y" not in word:
        return word
    letters = list(word)
    for i, letter in enumerate(letters):
        if letter == "y" and (i == 0 or letters[i - 1] in _VOWELS):
            letters[i] = "Y"
    return "".join(letters)


def _regions(word: str) -> tuple[int, int]:
    """Where R1 and R2 begin; the word's length for a region that is empty."""
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
