"""Words that a finished caption does not end with."""

__all__ = ["BAD_ENDINGS"]

BAD_ENDINGS = frozenset(
    ("a", "an", "at", "for", "her", "his", "in", "of", "on", "that", "the", "this", "to", "with")
)
"""Articles, prepositions and the like: a caption that ends in one of them was broken off.

Captioners that were trained on CIDEr alone are known for such endings.
"""
