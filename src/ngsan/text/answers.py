"""Answers to questions about images: normalisation and accuracy.

The rules are those of the official VQA evaluation program since March 2021, including its apparent
bugs, so that scores are comparable.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
"""Removed from answers; apostrophes, colons and others stay."""

NUMBERS = dict(
    zip(
        ("none", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
        map(str, (0, 0, *range(1, 10))),
        strict=True,
    )
) | {"ten": "10"}
"""Words that become digits."""

ARTICLES = frozenset(("a", "an", "the"))
"""Words that are removed."""

FULL_AGREEMENT = 3
"""Number of annotators for an accuracy of 1."""

_CONTRACTED = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
    haven't he'd've he'd he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've
    might've mustn't must've needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
    shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
    someone's something'd something'd've something'll that's there'd there'd've there're there's
    they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're
    what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're
    why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll
    you're you've
"""


def _contractions() -> dict[str, str]:
    """Maps contractions without one of their apostrophes to the contractions."""
    found = {}
    for word in _CONTRACTED.split():
        for place, letter in enumerate(word):
            if letter == "'":
                found[word[:place] + word[place + 1 :]] = word
    # Reversed in the official table.
    return {**found, "somebody'd": "somebodyd"}


CONTRACTIONS = _contractions()
"""Restores apostrophes."""

_DIGITS_WITH_COMMA = re.compile(r"\d,\d")
# Meant to keep decimal points. The official program only checks the character after the point, so
# "2." loses it.
_POINT = re.compile(r"\.(?!\d)")
_MAX_POINTS = 32  # the official program passes a flag as the count


def clean_answer(text: str) -> str:
    """An answer with line ends and tabs as spaces, stripped."""
    return text.replace("\n", " ").replace("\t", " ").strip()


@lru_cache(1 << 16)  # most answers occur many times
def normalize_answer(text: str) -> str:
    """The normal form of a cleaned answer: lower case, no punctuation or articles, digits.

    A punctuation mark becomes a space, or nothing if it occurs next to a space somewhere in the
    text. If there is a comma between digits, all marks become nothing.
    """
    joined = _DIGITS_WITH_COMMA.search(text) is not None
    made = text
    for mark in PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        made = made.replace(mark, "" if joined or beside_space else " ")
    made = _POINT.sub("", made, count=_MAX_POINTS)
    words = [NUMBERS.get(word, word) for word in made.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def compared_answers(given: Sequence[str]) -> tuple[list[str], bool]:
    """The human answers as an answer is compared with them, and whether they are normalised.

    If all human answers are equal, neither they nor the compared answer are normalised.
    """
    cleaned = [clean_answer(answer) for answer in given]
    if len(set(cleaned)) < 2:
        return cleaned, False
    return [normalize_answer(answer) for answer in cleaned], True


def agreement(same: int, people: int) -> float:
    """Accuracy, 0 to 1, of an answer that `same` of all `people` gave.

    It is min(n / 3, 1), where n is the number of the other annotators with this answer, averaged
    over all ways to leave one annotator out. With ten annotators, one agreement gives 0.3, two
    0.6, three 0.9, and more 1.
    """
    others = min((same - 1) / FULL_AGREEMENT, 1.0) if same else 0.0
    return (same * others + (people - same) * min(same / FULL_AGREEMENT, 1.0)) / people


def answer_accuracy(answer: str, given: Sequence[str]) -> float:
    """The official accuracy of an answer, 0 to 1, given the human answers (ten in VQA)."""
    if not given:
        raise ValueError(f"cannot score {answer!r}: no human answers")
    known, normal = compared_answers(given)
    answer = clean_answer(answer)
    return agreement(known.count(normalize_answer(answer) if normal else answer), len(known))


def graded_answers(given: Sequence[str]) -> dict[str, float]:
    """Every human answer, as it is compared, with its accuracy, best first."""
    known, _ = compared_answers(given)
    return {answer: agreement(same, len(known)) for answer, same in Counter(known).most_common()}
