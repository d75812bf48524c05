"""The vocabulary: words to ids and back, how it is built from captions, and its file.

Note: the paper's COCO vocabulary has 9,487 words, and the paper does not say how it was built. This
    recipe gives as many: tokenize all 616,767 captions of train2014 and val2014 - of *every* split,
    also validation and test - with the "plain" tokenizer, keep the words that occur more than 5
    times (9,486) and add `UNKNOWN`. With the boundary there are 9,488 ids. The 9,486 are exactly
    the words that public captioners have published from Karpathy's tokens of COCO. With PTB words
    the same recipe keeps 9,574 words, and 9,222 from the captions of the training split alone
    (plain: 9,156).

A vocabulary from the training split alone is the cleaner choice for new work.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.atomic_io import read_small, write_text

BOUNDARY = 0
"""The id that starts, ends and pads every caption; it is not a word."""

UNKNOWN = "<unk>"

BAD_ENDINGS = frozenset(
    ("a", "an", "at", "for", "her", "his", "in", "of", "on", "that", "the", "this", "to", "with")
)
"""Words that no complete caption ends with.

Captioners trained on CIDEr alone are known for such incomplete captions.
"""

MAX_QUESTION_LENGTH = 14
"""Words of a question that MCAN reads."""

FORMAT = 1
"""Version of the vocabulary file."""


@dataclass(frozen=True)
class Origin:
    """How a vocabulary was built."""

    tokenizer: str
    """Version of the tokenizer; "" if unknown."""
    more_than: int
    """Words that occur more often than this were kept."""
    captions: int
    """Number of captions whose words were counted."""


class Vocabulary:
    """An ordered list of words; word k has id k + 1, id 0 is the boundary.

    One id serves as start, end and padding, as in the field's public code: the decoder's input is
    `0 w1 w2 ...` and its target is `w1 w2 ... 0`.
    """

    def __init__(self, words: Sequence[str], *, origin: Origin | None = None) -> None:
        """Creates a vocabulary.

        Args:
            words: Distinct words. If `UNKNOWN` is one of them, it stands for all other words.
            origin: How the vocabulary was built, if known.
        """
        self.words = tuple(words)
        self.origin = origin
        self._ids = {word: index for index, word in enumerate(self.words, start=BOUNDARY + 1)}
        if len(self._ids) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(
                f"the words of a vocabulary must be distinct, but {twice!r} occurs twice"
            )

    @classmethod
    def build(
        cls,
        token_lists: Iterable[Iterable[str]],
        *,
        more_than: int = 5,
        unknown: bool = True,
        tokenizer: str = "",
    ) -> Vocabulary:
        """Builds a vocabulary of the frequent words, by decreasing count, then alphabetically.

        Args:
            token_lists: The words of every caption; read once.
            more_than: Words that occur more often than this are kept.
            unknown: Whether to append `UNKNOWN`, for all other words. `UNKNOWN` in a caption is
                never counted.
            tokenizer: Version of the tokenizer, for the record.

        Raises:
            ValueError: No word is frequent enough.
        """
        counts: Counter[str] = Counter()
        captions = 0
        for tokens in token_lists:
            captions += 1
            counts.update(tokens)
        del counts[UNKNOWN]
        kept = sorted(
            (word for word, count in counts.items() if count > more_than),
            key=lambda word: (-counts[word], word),
        )
        if not kept:
            raise ValueError(
                f"no word occurs more than {more_than} times in {captions} captions; "
                "lower the threshold (more_than)"
            )
        words = [*kept, UNKNOWN] if unknown else kept
        return cls(words, origin=Origin(tokenizer, more_than, captions))

    def __len__(self) -> int:
        """The number of ids, V: the words and the boundary."""
        return len(self.words) + 1

    def __contains__(self, word: object) -> bool:
        """Whether a word has its own id."""
        return word in self._ids

    @property
    def signature(self) -> str:
        """Twelve hexadecimal digits; a hash of the words and their order."""
        text = json.dumps(self.words).encode("ascii")
        return hashlib.sha256(text).hexdigest()[:12]

    def encode(self, words: Iterable[str]) -> list[int]:
        """The ids of words, without the boundary.

        Raises:
            ValueError: A word is not in the vocabulary and neither is `UNKNOWN`.
        """
        unknown = self._ids.get(UNKNOWN)
        ids = []
        for word in words:
            index = self._ids.get(word, unknown)
            if index is None:
                raise ValueError(f"{word!r} is not in the vocabulary, which has no {UNKNOWN!r}")
            ids.append(index)
        return ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of ids, up to the first boundary."""
        words = []
        for index in ids:
            if index == BOUNDARY:
                break
            words.append(self.words[index - 1])
        return words

    def tokenize(self, caption: str) -> list[str]:
        """The words of a caption, by the tokenizer that this vocabulary was built with.

        Raises:
            ValueError: The tokenizer is unknown.
        """
        # Imported here because decoding captions needs no tokenizer.
        from ngsan.text.tokenizers import TOKENIZERS

        version = self.origin.tokenizer if self.origin else ""
        for tokenizer in TOKENIZERS.values():
            if tokenizer.version == version:
                return tokenizer.tokenize(caption)
        known = ", ".join(tokenizer.version for tokenizer in TOKENIZERS.values())
        raise ValueError(
            f"this vocabulary was built with tokenizer {version!r}, and the known ones are "
            f"{known}; build it again"
        )

    def coverage(self, token_lists: Iterable[Iterable[str]]) -> float:
        """Share of tokens, 0 to 1, that are in the vocabulary, without `UNKNOWN`."""
        total = known = 0
        for tokens in token_lists:
            for token in tokens:
                total += 1
                known += token in self._ids and token != UNKNOWN
        if not total:
            raise ValueError("the coverage needs at least one token")
        return known / total

    def require_same(self, other: Vocabulary, what: str) -> None:
        """Raises a `ValueError` that names the first difference from another vocabulary.

        Args:
            other: The other vocabulary.
            what: Its owner, for example "the checkpoint".
        """
        if self.words == other.words:
            return
        pairs = itertools.zip_longest(self.words, other.words)
        index, (mine, theirs) = next(
            (index, pair) for index, pair in enumerate(pairs, start=1) if pair[0] != pair[1]
        )
        raise ValueError(
            f"the vocabulary of {what} ({other.signature}, {len(other.words)} words) differs from "
            f"this one ({self.signature}, {len(self.words)} words): id {index} is "
            f"{_named(theirs)} there and {_named(mine)} here"
        )

    def to_json(self) -> str:
        """The text that `save` writes."""
        content: dict[str, Any] = {"format": FORMAT, "signature": self.signature}
        if self.origin:
            content["origin"] = {
                "tokenizer": self.origin.tokenizer,
                "more_than": self.origin.more_than,
                "captions": self.origin.captions,
            }
        content["words"] = self.words
        return json.dumps(content, ensure_ascii=False, indent=1) + "\n"

    def save(self, path: str | Path) -> None:
        """Writes the vocabulary as JSON, atomically."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Reads a vocabulary that `save` wrote.

        Raises:
            ValueError: The file is of another kind, damaged, or was edited.
        """
        path = Path(path)
        try:
            content = json.loads(read_small(path))
        except FileNotFoundError:
            raise ValueError(
                f"{path}: no vocabulary file; was the folder made by ngsan data captions or ngsan "
                "data questions?"
            ) from None
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}: not a vocabulary, or damaged: {error}") from error
        if not isinstance(content, dict) or "format" not in content:
            raise ValueError(f"{path}: not a vocabulary: it has no format version")
        if content["format"] != FORMAT:
            raise ValueError(
                f"{path}: format {content['format']!r} is not supported, only {FORMAT}; "
                "build the vocabulary again"
            )
        words = content.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise ValueError(f"{path}: words must be a list of non-empty strings")
        try:
            vocabulary = cls(words, origin=_origin(content.get("origin")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if content.get("signature") != vocabulary.signature:
            raise ValueError(
                f"{path}: its signature is {content.get('signature')!r} but its words have "
                f"{vocabulary.signature!r}: the file was edited; build the vocabulary again"
            )
        return vocabulary


def _named(word: str | None) -> str:
    return "absent" if word is None else repr(word)


def _origin(value: object) -> Origin | None:
    if value is None:
        return None
    if isinstance(value, dict):
        tokenizer, more_than, captions = map(value.get, ("tokenizer", "more_than", "captions"))
        if isinstance(tokenizer, str) and isinstance(more_than, int) and isinstance(captions, int):
            return Origin(tokenizer, more_than, captions)
    raise ValueError(f"origin must have tokenizer, more_than and captions, not {value!r}")


@dataclass(frozen=True)
class QuestionEncoder:
    """Encodes questions as rows of word ids of fixed length."""

    vocabulary: Vocabulary

    max_length: int = MAX_QUESTION_LENGTH
    """Number of words; longer questions are truncated."""

    def words(self, question: str) -> list[str]:
        """The words that are read; one unknown word for a question without words."""
        return self.vocabulary.tokenize(question)[: self.max_length] or [UNKNOWN]

    def encode(self, questions: Sequence[str]) -> NDArray[np.int32]:
        """(questions, max_length) word ids, padded with `BOUNDARY`."""
        table = np.full((len(questions), self.max_length), BOUNDARY, np.int32)
        for row, question in zip(table, questions, strict=True):
            ids = self.vocabulary.encode(self.words(question))
            row[: len(ids)] = ids
        return table
