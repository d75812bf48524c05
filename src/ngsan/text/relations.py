"""Words and phrases for spatial relations, and their opposites."""

from collections.abc import Iterable

_WORDS = """
above across against along among around at atop behind below beneath beside between beyond by down
from front in inside into left near next off on onto out outside over right through top toward
towards under underneath up upon with
"""

RELATIONS = frozenset(_WORDS.split())
"""Words for spatial relations."""

_OPPOSITE_PAIRS = (
    ("left of", "right of"),
    ("at the left side of", "at the right side of"),
    ("above", "below"),
    ("over", "under"),
    ("on top of", "beneath"),
    ("in front of", "behind"),
    ("inside", "outside"),
    ("into", "out of"),
    ("near", "far from"),
    ("close to", "far away from"),
    ("toward", "away from"),
    ("facing", "facing away from"),
    ("attached to", "detached from"),
)

OPPOSITES = {phrase: other for a, b in _OPPOSITE_PAIRS for phrase, other in ((a, b), (b, a))} | {
    "ahead of": "behind",
    "underneath": "on top of",
    "within": "outside",
}
"""Phrases that cannot both hold of the same two things."""


def relation_words(words: Iterable[str]) -> frozenset[str]:
    """The words of a caption that are in `RELATIONS`."""
    return RELATIONS.intersection(words)


def with_opposite(sentence: str, relation: str) -> str | None:
    """A sentence with the opposite of its relation; None if there is none, or it occurs twice."""
    opposite, given = OPPOSITES.get(relation), f" {relation} "
    if opposite is None or sentence.count(given) != 1:
        return None
    return sentence.replace(given, f" {opposite} ")
