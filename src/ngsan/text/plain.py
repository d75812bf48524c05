"""Plain words of a caption, as the field's common vocabulary counts them.

Nearly all captioners on COCO share one vocabulary of 9,487 words, made from the tokens of a
published JSON file whose tokenizer was never published. The rule below is simpler than the
Penn-Treebank words of `ngsan.text.ptb` and gives exactly those words; see `ngsan.text.vocabulary`.
Scores are always counted with PTB words, whichever the model was trained on.

Note: the rule was found by fitting. What becomes of `. , ' - / : & $ # ! ; "` follows from the
    words of that vocabulary, except that `;`, `!` and `"` may as well part words. The other marks
    are so rare in COCO that any treatment gives the same words: brackets, question marks and
    backticks are dropped as punctuation, the rest are kept.
"""

__all__ = ["TOKENIZER_VERSION", "tokenize"]

TOKENIZER_VERSION = "plain-a"

_PARTING = ",-/"
_DROPPED = ".'\";?!()[]`"
_MARKS = str.maketrans(_PARTING, " " * len(_PARTING), _DROPPED)


def tokenize(caption: str) -> list[str]:
    """The plain words of a caption: `A man's T-shirt, red.` has `a mans t shirt red`."""
    return caption.lower().translate(_MARKS).split()
