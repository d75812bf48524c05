"""Byte-level byte-pair encoding of texts (Sennrich et al. 2016; Radford et al. 2019).

It gives the same pieces as the library `tokenizers`, which finds them but brings 35 MB of packages
that a translation does not need.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby, pairwise

_SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
_SPACES = re.compile(f"[{_SPACE}]+")
_PARTS = re.compile(rf"'(?:s|t|re|ve|m|ll|d)| ?[^\W_]+| ?(?:[^\w{_SPACE}]|_)+")

_MANY = 1000
"""Characters from which combining marks are sorted before a text is normalised."""

NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "NFC"},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True},
    ],
}
"""The normalizer of a tokenizer's file that `split` implements."""


def byte_signs() -> dict[str, int]:
    """The byte that each character in a piece stands for.

    Bytes that are visible characters of Latin-1 stand for themselves, the rest is numbered from 256
    on: the convention of byte-level encoders.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    signs = {chr(byte): byte for byte in visible}
    signs.update({chr(256 + place): byte for place, byte in enumerate(hidden)})
    return signs


_SIGN_OF = {byte: sign for sign, byte in byte_signs().items()}


def split(text: str) -> Iterator[str]:
    """The words of a text, each with the space before it; numbers and other runs are words, too."""
    text = _SPACES.sub(" ", _normalized(text)).strip(" ")
    if not text:
        return
    for part in _PARTS.findall(f" {text}"):
        letters = part.lstrip(" ")
        if letters.isalpha() or not letters[0].isalnum():
            yield part
            continue
        start = part[: len(part) - len(letters)]
        for _, run in groupby(letters, str.isalpha):  # letters and numbers are words of their own
            yield start + "".join(run)
            start = ""


class BytePairEncoder:
    """Joins the bytes of words to pieces."""

    def __init__(self, ids: Mapping[str, int], merges: Sequence[Sequence[str] | str]) -> None:
        """Reads the pieces.

        Args:
            ids: Ids of all pieces, single bytes included.
            merges: Pairs of pieces to be joined, the first ones first.
        """
        self._ids = ids
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
        self._ranks = {(first, second): rank for rank, (first, second) in enumerate(pairs)}
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """The ids of a text's pieces."""
        found: list[int] = []
        for word in split(text):
            if word not in self._known:
                if len(self._known) >= 1 << 16:
                    self._known.clear()
                self._known[word] = self._encode_word(word)
            found += self._known[word]
        return found

    def _encode_word(self, word: str) -> list[int]:
        # A heap of pairs by rank and place: a word may be as long as a line, and trying all pairs
        # again after each merge would take time quadratic in its length.
        pieces = [_SIGN_OF[byte] for byte in word.encode("utf-8", errors="replace")]
        end = len(pieces)
        left, right = list(range(-1, end - 1)), list(range(1, end + 1))
        waiting = [
            (self._ranks[pair], place)
            for place, pair in enumerate(pairwise(pieces))
            if pair in self._ranks
        ]
        heapify(waiting)
        while waiting:
            rank, place = heappop(waiting)
            other = right[place]
            if other >= end or self._ranks.get((pieces[place], pieces[other])) != rank:
                continue  # one of the two was merged with another piece
            pieces[place] += pieces[other]
            pieces[other] = ""
            right[place] = right[other]
            if right[place] < end:
                left[right[place]] = place
            for first in (left[place], place):
                second = right[first] if first >= 0 else end
                if second < end and (pair := (pieces[first], pieces[second])) in self._ranks:
                    heappush(waiting, (self._ranks[pair], first))
        return [self._ids[piece] for piece in pieces if piece]


def _normalized(text: str) -> str:
    """The text in NFC.

    Note: Runs of combining marks are sorted before, for which `unicodedata` would take time
        quadratic in their length.
    """
    if len(text) > _MANY:
        text = "".join(
            "".join(sorted(run, key=unicodedata.combining) if marks else run)
            for marks, run in groupby(text, lambda sign: unicodedata.combining(sign) > 0)
        )
    return unicodedata.normalize("NFC", text)
