"""The tokenizers by name: how captions and questions are split into words.

"plain" is the rule of the field's common vocabulary. Nearly all captioners on COCO share one
vocabulary of 9,487 words, made from the tokens of a published JSON file whose tokenizer was never
published. The rule here is simpler than the Penn Treebank words of `ngsan.text.ptb` and gives
exactly those words; see `ngsan.text.vocabulary`. Scores always use PTB words.

Note: the plain rule was found by fitting. The treatment of `. , ' - / : & $ # ! ; "` follows from
    the words of that vocabulary, except that `;`, `!` and `"` might as well separate words. The
    other marks are so rare in COCO that any treatment gives the same words: brackets, question
    marks and backticks are dropped as punctuation, the rest are kept.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ngsan.text import ptb

_PLAIN = str.maketrans(",-/", "   ", ".'\";?!()[]`")
_QUESTION = str.maketrans("-/", "  ", ".,'!?\"()*#:;")


@dataclass(frozen=True)
class Tokenizer:
    """A named way to split text into words."""

    version: str
    """Changes whenever some text gets other words than before."""
    tokenize: Callable[[str], list[str]]
    """Maps a text to its words."""


def plain_words(caption: str) -> list[str]:
    """The plain words of a caption: `A man's T-shirt, red.` has `a mans t shirt red`."""
    return caption.lower().translate(_PLAIN).split()


def question_words(question: str) -> list[str]:
    """The words of a question as MCAN splits them: `What's it?` has `whats it`."""
    return question.lower().translate(_QUESTION).split()


TOKENIZERS = {
    "ptb": Tokenizer(ptb.TOKENIZER_VERSION, ptb.tokenize),
    "plain": Tokenizer("plain-a", plain_words),
    "question": Tokenizer("question-a", question_words),
}
"""The words that scores are computed on, the field's simpler ones, and those of questions."""
