"""Subwords of a translator: byte-level byte-pair encoding (Sennrich et al. 2016).

Both languages share one set of subwords. A text is normalised: NFC, white space collapsed to single
spaces and stripped. It is split before words, numbers and runs of other characters, and each of
these into subwords, at worst into single bytes. So no word is unknown, and
`decode(encode(text))` is the normalised text. A space belongs to the subword after it; a text
starts with one, so that its first word has the same subwords as elsewhere.

Ids follow the convention of `ngsan.text.vocabulary`: id 0 is the boundary, and subword k of the
tokenizer file has id k + 1. No string stands for the boundary, so a text cannot contain it.

Only training imports the library `tokenizers`, which `ngsan[train]` brings.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from ngsan.atomic_io import read_small, write_text
from ngsan.text.bpe import NORMALIZER, BytePairEncoder, byte_signs
from ngsan.text.vocabulary import BOUNDARY

FILE = "tokenizer.json"
"""Name of the tokenizer file in data and model folders."""

MIN_SIZE = 1 + 256
"""Minimum number of ids: the boundary and all bytes."""


_BYTES = byte_signs()


class Subwords:
    """Encodes texts as ids of subwords, and decodes them."""

    def __init__(self, text: str, *, where: str = "tokenizer") -> None:
        """Creates an encoder.

        Args:
            text: The content of a tokenizer file: JSON of the library `tokenizers`.
            where: Its name in error messages.
        """
        self.text = text
        try:
            content = json.loads(text)
            pieces: dict[str, int] = content["model"]["vocab"]
            kind = content["model"]["type"], content["pre_tokenizer"]["type"]
            merges = content["model"].get("merges", [])
            settings = content["normalizer"], content["pre_tokenizer"]["add_prefix_space"]
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{where}: not a tokenizer, or damaged: {error}") from error
        if kind != ("BPE", "ByteLevel") or content.get("added_tokens"):
            raise ValueError(
                f"{where}: expected a byte-level BPE without added tokens, as ngsan data parallel "
                f"makes, not {kind[0]} after {kind[1]}"
            )
        if settings != (NORMALIZER, True):
            raise ValueError(
                f"{where}: its normalizer and prefix space must be those of ngsan data parallel, "
                f"not {settings[0]} and {settings[1]}"
            )
        if sorted(pieces.values()) != list(range(len(pieces))):
            raise ValueError(f"{where}: the ids of its pieces are not 0 to {len(pieces) - 1}")
        self.pieces = tuple(sorted(pieces, key=pieces.__getitem__))
        for piece in self.pieces:
            if not piece or not all(sign in _BYTES for sign in piece):
                raise ValueError(f"{where}: {piece!r} is not a subword of a byte-level BPE")
        self._encoder = BytePairEncoder(pieces, merges)

    @classmethod
    def train(cls, lines: Iterable[str], size: int) -> "Subwords":
        """Trains on texts.

        Args:
            lines: The texts of both languages; read once.
            size: V, the number of ids, including the boundary and single bytes. There may be fewer
                if nothing is left to merge.
        """
        if size < MIN_SIZE:
            raise ValueError(
                f"vocabulary size {size}: it must be at least {MIN_SIZE}, for all bytes"
            )
        import tokenizers as library

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
        """The number of ids, V: the subwords and the boundary."""
        return len(self.pieces) + 1

    @property
    def signature(self) -> str:
        """Twelve hexadecimal digits; a hash of the file."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without the boundary."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts."""
        first = BOUNDARY + 1
        return [[index + first for index in self._encoder.encode(text)] for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to the first boundary.

        Invalid UTF-8, which a model may generate, becomes U+FFFD; line ends become spaces.
        """
        found: list[bytes] = []
        for index in ids:
            if index == BOUNDARY:
                break
            if not 0 < index < len(self):
                raise ValueError(f"subword {index} is out of range: 0 to {len(self) - 1}")
            found.append(self._spelled[index - 1])
        return " ".join(b"".join(found).decode("utf-8", errors="replace").split())

    def to_json(self) -> str:
        """The content of the file."""
        return self.text

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer file atomically."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self.text)

    @classmethod
    def load(cls, path: str | Path) -> "Subwords":
        """Reads a tokenizer file."""
        try:
            text = read_small(path).decode("utf-8")
        except FileNotFoundError:
            raise ValueError(f"{path}: no tokenizer file") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a tokenizer, or damaged: {error}") from error
        return cls(text, where=str(path))

    @cached_property
    def _spelled(self) -> list[bytes]:
        return [bytes(_BYTES[sign] for sign in piece) for piece in self.pieces]
