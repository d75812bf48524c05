"""Word pieces by byte-pair encoding: what a translator reads and writes.

Both languages share one set of pieces. A text is brought to Unicode's composed form (NFC), every
run of white space becomes one space, and spaces at both ends go. It is then cut before words,
numbers and runs of other signs, and each of these into the pieces that byte-pair encoding
(Sennrich et al. 2016) has found, at worst into single bytes. So every text has pieces, there is no
unknown one, and `decode(encode(text))` is the text again, normalised as above. A space belongs to
the piece after it; a text begins with one, so that its first word has the pieces it has elsewhere.

Ids follow the convention of `ngsan.text.vocabulary`: id 0 is the boundary, and piece k of the
tokenizer's file has id k + 1. No string stands for the boundary, so none in a text can be taken
for it.

To find and to apply the pieces needs the library `tokenizers`, the extra ngsan[translation]. To
join them to text again, to count and to compare them does not.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ngsan.durable import write_text
from ngsan.text.vocabulary import BOUNDARY

FILE = "tokenizer.json"
"""The name of the tokenizer's file in folders of data and of models."""

SMALLEST = 1 + 256
"""Fewest ids: the boundary and all bytes."""


def _byte_signs() -> dict[str, int]:
    """The byte that each sign in a piece stands for.

    Bytes that are visible signs of Latin-1 stand for themselves, the rest is numbered from 256 on:
    the convention of byte-level encoders.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    signs = {chr(byte): byte for byte in visible}
    signs.update({chr(256 + place): byte for place, byte in enumerate(hidden)})
    return signs


_BYTES = _byte_signs()


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError(
            "word pieces need the library tokenizers: pip install 'ngsan[translation]'"
        ) from error
    return tokenizers


class Subwords:
    """Word pieces and how texts are cut into them."""

    def __init__(self, text: str, *, where: str = "tokenizer") -> None:
        """Takes the content of a tokenizer's file.

        Args:
            text: JSON in the format of the library `tokenizers`, as `train` makes it.
            where: What to call it in messages.

        Raises:
            ValueError: It is no such file.
        """
        self.text = text
        try:
            content = json.loads(text)
            pieces: dict[str, int] = content["model"]["vocab"]
            kind = content["model"]["type"], content["pre_tokenizer"]["type"]
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{where}: not a tokenizer, or a damaged one: {error}") from error
        if kind != ("BPE", "ByteLevel") or content.get("added_tokens"):
            raise ValueError(
                f"{where}: a byte-level BPE without added tokens is needed, not {kind[0]} after "
                f"{kind[1]}; ngsan data parallel makes one"
            )
        if sorted(pieces.values()) != list(range(len(pieces))):
            raise ValueError(f"{where}: the ids of its pieces are not 0 to {len(pieces) - 1}")
        self.pieces = tuple(sorted(pieces, key=pieces.__getitem__))
        for piece in self.pieces:
            if not piece or not all(sign in _BYTES for sign in piece):
                raise ValueError(f"{where}: {piece!r} is no piece of a byte-level BPE")

    @classmethod
    def train(cls, lines: Iterable[str], size: int) -> "Subwords":
        """Finds the pieces of texts, which are read once.

        Args:
            lines: The texts, of both languages.
            size: V, the number of ids, boundary and single bytes included; fewer are found if
                nothing is left to be joined.
        """
        if size < SMALLEST:
            raise ValueError(
                f"vocabulary size {size}: it must be at least {SMALLEST}, for all bytes"
            )
        library = _library()
        tokenizer = library.Tokenizer(library.models.BPE())
        normalizers = library.normalizers
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.NFC(),
                normalizers.Replace(library.Regex(r"\s+"), " "),
                normalizers.Strip(),
            ]
        )
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size - 1,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[],
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines, trainer)
        return cls(tokenizer.to_str(pretty=True))

    def __len__(self) -> int:
        """The number of ids, V: the pieces and the boundary."""
        return len(self.pieces) + 1

    @property
    def signature(self) -> str:
        """Twelve hexadecimal digits that differ for another file."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def encode(self, text: str) -> list[int]:
        """The ids of a text's pieces, without the boundary; none for an empty text."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts at once, which is faster."""
        first = BOUNDARY + 1
        return [
            [index + first for index in found.ids]
            for found in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to the first boundary.

        Bytes that are no UTF-8, which a model may write, become U+FFFD; line ends become spaces.

        Raises:
            ValueError: An id is not known.
        """
        found: list[bytes] = []
        for index in ids:
            if index == BOUNDARY:
                break
            if not 0 < index < len(self):
                raise ValueError(f"word piece {index} is not one of {len(self)}")
            found.append(self._spelled[index - 1])
        return " ".join(b"".join(found).decode("utf-8", errors="replace").split())

    def to_json(self) -> str:
        """The content of its file."""
        return self.text

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer's file; whoever reads meanwhile sees the old file or the new."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self.text)

    @classmethod
    def load(cls, path: str | Path) -> "Subwords":
        """Reads a tokenizer's file.

        Raises:
            ValueError: It is no such file.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ValueError(f"{path}: there is no tokenizer") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a tokenizer, or a damaged one: {error}") from error
        return cls(text, where=str(path))

    @cached_property
    def _spelled(self) -> list[bytes]:
        return [bytes(_BYTES[sign] for sign in piece) for piece in self.pieces]

    @cached_property
    def _tokenizer(self) -> Any:
        return _library().Tokenizer.from_str(self.text)
