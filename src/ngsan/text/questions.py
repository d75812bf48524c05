"""Words of a question about an image, as MCAN and its peers cut them.

Marks are dropped, hyphens and slashes part words: `What's on the T-shirt?` has
`whats on the t shirt`.
"""

__all__ = ["TOKENIZER_VERSION", "tokenize"]

TOKENIZER_VERSION = "question-a"

_PARTING = "-/"
_DROPPED = ".,'!?\"()*#:;"
_MARKS = str.maketrans(_PARTING, " " * len(_PARTING), _DROPPED)


def tokenize(question: str) -> list[str]:
    """The words of a question."""
    return question.lower().translate(_MARKS).split()
