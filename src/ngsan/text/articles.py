"""The articles "a" and "an": which of them a word takes, by its first sound in British English."""

import re
from collections.abc import Sequence
from itertools import pairwise

_AN = re.compile(
    r"""
    (?! (?: one | once ) \b | onesie | eu | ewe | ouija )  # begin with the sound of w or y
    [aeio]
    | u (?! k | ni(?![dmnr]) | nanim | ps$ | r[aeio] | s(?:[abeu]|$) | t[aeio] | fo | v | $ )
    | h (?: eir | onest | onou?r | our )
    | 8 | 1[18](?!\d)
    | (?: [fhlmnrsx] | fm | hd | hp | lcd | led | mlb | mp3 | mri | nba | nfl | rv | suv | sms
        | x-?ray | xbox ) (?!\w)  # spelled out
    """,
    re.VERBOSE | re.IGNORECASE,
)


def takes_an(word: str) -> bool:
    """Whether the article before a word is "an": an hour, an 8, but a unicorn, a one-way street."""
    return _AN.match(word) is not None


def with_articles(words: Sequence[str]) -> list[str]:
    """The words of a sentence with each "a" and "an" chosen by the word after it."""
    chosen = list(words)
    for place, (word, after) in enumerate(pairwise(words)):
        if word in ("a", "an"):
            chosen[place] = "an" if takes_an(after) else "a"
    return chosen
