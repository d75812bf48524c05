"""The vocabulary: words to ids and back, how it is made from captions, and its file.

Note: the paper's COCO vocabulary has 9,487 words, and it does not say how they were found. This
    recipe gives as many: cut all 616,767 captions of train2014 and val2014 - of *every* split, also
    the ones for validation and test - into words with the "plain" tokenizer, keep what occurs more
    than 5 times (9,486 words) and add `UNKNOWN`. The boundary makes it 9,488 ids. The 9,486 are
    exactly the words that public captioners have published from Karpathy's tokens of COCO. With
    PTB words the same recipe keeps 9,574 words, and 9,222 when only the captions of the training
    split are counted (plain: 9,156).

A vocabulary made from the training split alone is the cleaner choice for new work.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngsan.durable import write_text
from ngsan.text import plain, ptb, questions

BOUNDARY = 0
"""The id that begins, ends and pads every caption; it is no word."""

UNKNOWN = "<unk>"

FORMAT = 1
"""Version of the vocabulary's file."""


@dataclass(frozen=True)
class Tokenizer:
    """A named way to cut captions into words."""

    version: str
    """Changes whenever some caption gets other words than before."""

    tokenize: Callable[[str], list[str]]
    """From a caption to its words."""


TOKENIZERS = {
    "ptb": Tokenizer(ptb.TOKENIZER_VERSION, ptb.tokenize),
    "plain": Tokenizer(plain.TOKENIZER_VERSION, plain.tokenize),
    "question": Tokenizer(questions.TOKENIZER_VERSION, questions.tokenize),
}
"""The tokenizers by name: the words that scores are counted on, the field's simpler ones, and those
of questions."""


@dataclass(frozen=True)
class Origin:
    """How a vocabulary was made."""

    tokenizer: str
    """Version of the tokenizer that cut the captions into words; "" when unknown."""

    more_than: int
    """A word was kept when it was seen more often than this."""

    captions: int
    """The number of captions in which words were counted."""


class Vocabulary:
    """An ordered list of words; word k has id k + 1, id 0 is the boundary.

    One id serves as beginning, end and padding, as in the field's public code: a caption is
    given to the decoder as `0 w1 w2 ...` and expected back as `w1 w2 ... 0`.
    """

    def __init__(self, words: Sequence[str], *, origin: Origin | None = None) -> None:
        """Takes the words.

        Args:
            words: Distinct words. If one of them is `UNKNOWN`, it stands for every other word.
            origin: How the words were found, if known.
        """
        self.words = tuple(words)
        self.origin = origin
        self._ids = {word: index for index, word in enumerate(self.words, start=BOUNDARY + 1)}
        if len(self._ids) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"a vocabulary cannot hold a word twice: {twice!r}")

    @classmethod
    def build(
        cls,
        token_lists: Iterable[Iterable[str]],
        *,
        more_than: int = 5,
        unknown: bool = True,
        tokenizer: str = "",
    ) -> Vocabulary:
        """Makes a vocabulary of the frequent words, by falling count and then by alphabet.

        Args:
            token_lists: The words of every caption; read once.
            more_than: A word is kept when it is seen more often than this.
            unknown: Whether `UNKNOWN` is put last, to stand for all other words. A caption's own
                `UNKNOWN` is never counted as a word.
            tokenizer: Version of the tokenizer that made the words, for the record.

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
        """Whether a word has an id of its own."""
        return word in self._ids

    @property
    def signature(self) -> str:
        """Twelve hexadecimal digits that differ for other words or another order."""
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
        """The words of a caption, cut as for the captions that this vocabulary was made from.

        Raises:
            ValueError: It is not known how, or that tokenizer is not among `TOKENIZERS`.
        """
        version = self.origin.tokenizer if self.origin else ""
        for tokenizer in TOKENIZERS.values():
            if tokenizer.version == version:
                return tokenizer.tokenize(caption)
        known = ", ".join(tokenizer.version for tokenizer in TOKENIZERS.values())
        raise ValueError(
            f"this vocabulary was made with tokenizer {version!r}, and there are only {known}; "
            "build it anew"
        )

    def coverage(self, token_lists: Iterable[Iterable[str]]) -> float:
        """The share of tokens, in 0 to 1, that are words of the vocabulary other than `UNKNOWN`.

        Raises:
            ValueError: There are no tokens.
        """
        total = known = 0
        for tokens in token_lists:
            for token in tokens:
                total += 1
                known += token in self._ids and token != UNKNOWN
        if not total:
            raise ValueError("the coverage of no tokens at all is not defined")
        return known / total

    def require_same(self, other: Vocabulary, what: str) -> None:
        """Refuses another vocabulary than this one.

        Args:
            other: What is compared with this.
            what: Whose vocabulary the other is, as in "the checkpoint".

        Raises:
            ValueError: The words or their order differ; names the first difference.
        """
        if self.words == other.words:
            return
        pairs = itertools.zip_longest(self.words, other.words)
        index, (mine, theirs) = next(
            (index, pair) for index, pair in enumerate(pairs, start=1) if pair[0] != pair[1]
        )
        raise ValueError(
            f"the vocabulary of {what} ({other.signature}, {len(other.words)} words) is not this "
            f"one ({self.signature}, {len(self.words)} words): id {index} is "
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
        """Writes the vocabulary as JSON; whoever reads meanwhile sees the old file or the new."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Reads a vocabulary that `save` wrote.

        Raises:
            ValueError: It is no such file, or its words are not those that were saved.
        """
        path = Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(
                f"{path}: there is no vocabulary: is this what ngsan data captions, or ngsan data "
                "questions, has made?"
            ) from None
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}: not a vocabulary, or a damaged one: {error}") from error
        if not isinstance(content, dict) or "format" not in content:
            raise ValueError(f"{path}: not a vocabulary: it has no format version")
        if content["format"] != FORMAT:
            raise ValueError(
                f"{path}: format {content['format']!r} is not known here, only {FORMAT}; "
                "build the vocabulary anew"
            )
        words = content.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise ValueError(f"{path}: words must be a list of strings that are not empty")
        try:
            vocabulary = cls(words, origin=_origin(content.get("origin")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if content.get("signature") != vocabulary.signature:
            raise ValueError(
                f"{path}: its signature is {content.get('signature')!r} but its words have "
                f"{vocabulary.signature!r}: the file was changed; build the vocabulary anew"
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
