"""Answers to questions about images: their normal form, and how many people must agree with one.

The rules are those of the official evaluation of VQA, as its program has applied them since March
2021, with what looks like oversights kept: a score is only worth something if others get the same.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
"""What is taken out of answers; apostrophes, colons and others stay."""

NUMBERS = dict(
    zip(
        ("none", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
        map(str, (0, 0, *range(1, 10))),
        strict=True,
    )
) | {"ten": "10"}
"""Words that are written as digits."""

ARTICLES = frozenset(("a", "an", "the"))
"""Words that are left out."""

AGREEING = 3
"""People who must have given an answer for it to be wholly right."""

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
    """From what is left of a contraction when one apostrophe is forgotten to the contraction."""
    found = {}
    for word in _CONTRACTED.split():
        for place, letter in enumerate(word):
            if letter == "'":
                found[word[:place] + word[place + 1 :]] = word
    # The official table has this one the wrong way round.
    return {**found, "somebody'd": "somebodyd"}


CONTRACTIONS = _contractions()
"""Words that get their apostrophe back."""

_DIGITS_WITH_COMMA = re.compile(r"\d,\d")
# Meant to spare the points of decimals; as it stands in the official program it looks behind the
# point alone, so that "2." loses it.
_POINT = re.compile(r"\.(?!\d)")
_MOST_POINTS = 32  # there, a flag of the expression was given in the place of a count


def clean_answer(text: str) -> str:
    """An answer with line ends and tabs as spaces, and none around it."""
    return text.replace("\n", " ").replace("\t", " ").strip()


@lru_cache(1 << 16)  # people give the same answers over and over
def normalize_answer(text: str) -> str:
    """The normal form of an answer: lower case, no punctuation, no articles, numbers as digits.

    A mark of punctuation becomes a space, or nothing where a space stands beside one of its kind.
    If there is a comma between digits anywhere, all marks become nothing.

    Args:
        text: An answer, as `clean_answer` leaves it.
    """
    joined = _DIGITS_WITH_COMMA.search(text) is not None
    made = text
    for mark in PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        made = made.replace(mark, "" if joined or beside_space else " ")
    made = _POINT.sub("", made, count=_MOST_POINTS)
    words = [NUMBERS.get(word, word) for word in made.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def compared_answers(given: Sequence[str]) -> tuple[list[str], bool]:
    """People's answers as an answer is compared with them.

    Args:
        given: What people answered.

    Returns:
        The answers, and whether they are in normal form: they are left as they are when all are
        the same, and so is what is compared with them.
    """
    cleaned = [clean_answer(answer) for answer in given]
    if len(set(cleaned)) < 2:
        return cleaned, False
    return [normalize_answer(answer) for answer in cleaned], True


def agreement(same: int, people: int) -> float:
    """The accuracy, from 0 to 1, of an answer that some of all people gave.

    It is min(n / 3, 1), with n those who gave it, averaged over all ways to leave one person out:
    of ten people one makes 0.3, two 0.6, three 0.9, and more 1.

    Args:
        same: People who gave the answer.
        people: All people.
    """
    others = min((same - 1) / AGREEING, 1.0) if same else 0.0
    return (same * others + (people - same) * min(same / AGREEING, 1.0)) / people


def answer_accuracy(answer: str, given: Sequence[str]) -> float:
    """The official accuracy of an answer, from 0 to 1.

    Args:
        answer: The answer.
        given: What people answered, ten of them in VQA.

    Raises:
        ValueError: Nobody answered.
    """
    if not given:
        raise ValueError(f"the accuracy of {answer!r} is not known: nobody has answered")
    known, normal = compared_answers(given)
    answer = clean_answer(answer)
    return agreement(known.count(normalize_answer(answer) if normal else answer), len(known))


def graded_answers(given: Sequence[str]) -> dict[str, float]:
    """Every answer that people gave, as it is compared, with its accuracy, best first."""
    known, _ = compared_answers(given)
    return {answer: agreement(same, len(known)) for answer, same in Counter(known).most_common()}
