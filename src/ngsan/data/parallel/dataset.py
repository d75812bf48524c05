"""A split of parallel text as `prepare` has written it: arrays of word pieces, mapped into memory.

A folder holds `tokenizer.json`, `parallel.json`, which lists all other files with their sizes and
checksums, and for each split

    SPLIT.source.ids, SPLIT.target.ids            word pieces of all sentences in a row, int32
    SPLIT.source.offsets, SPLIT.target.offsets    int64, where each sentence begins; one more
    SPLIT.source.txt, SPLIT.target.txt            the lines, of all splits but train

Numbers are little-endian.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngsan.text.subwords import FILE, Subwords

INDEX = "parallel.json"
FORMAT = 1
SIDES = ("source", "target")


class ParallelSplit:
    """The sentences of a split, and their translations.

    Attributes:
        language: Of the translations, such as "de"; empty if it is not known.
        ids: For "source" and "target": (P,) word pieces of all sentences in a row, no boundaries.
        offsets: For "source" and "target": (n + 1,) where each sentence begins in `ids`.
    """

    def __init__(self, folder: str | Path, split: str, *, verify: bool = False) -> None:
        """Opens a split.

        Args:
            folder: What `prepare` wrote.
            split: "train", "val" or "test".
            verify: Whether to compare all files with their checksums, which reads them once.

        Raises:
            ValueError: There is no such split, or its files are not those that were written.
        """
        self.folder, self.split = Path(folder), split
        index = read_index(self.folder)
        if split not in index["splits"]:
            raise ValueError(
                f"{self.folder} has no split {split!r}, only {', '.join(index['splits'])}"
            )
        about = index["splits"][split]
        self.signature: str = index["signature"]
        self.vocab_size: int = index["vocabulary"]
        # Folders of before languages were told are taken for what the paper translates to.
        self.language: str = index.get("language", "de")
        for name, file in {**about["files"], FILE: index["tokenizer"]}.items():
            _check(self.folder / name, file, verify=verify)
        self.ids = {side: self._map(f"{split}.{side}.ids", "<i4") for side in SIDES}
        self.offsets = {side: self._map(f"{split}.{side}.offsets", "<i8") for side in SIDES}
        for side in SIDES:
            if len(self.offsets[side]) != about["pairs"] + 1:
                raise ValueError(f"{self.folder}: {split}.{side}.offsets has another length")

    def _map(self, name: str, kind: str) -> NDArray[Any]:
        path = self.folder / name
        if not path.stat().st_size:
            return np.zeros(0, np.dtype(kind))
        # Copy on write: PyTorch takes no arrays that cannot be written.
        return np.memmap(path, dtype=np.dtype(kind), mode="c")

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.offsets["source"]) - 1

    def lengths(self, side: str) -> NDArray[np.int64]:
        """(n,) word pieces of each sentence, its boundary included."""
        found: NDArray[np.int64] = np.diff(self.offsets[side]) + 1
        return found

    def sentence(self, side: str, index: int) -> list[int]:
        """The word pieces of a sentence, without its boundary."""
        start, stop = self.offsets[side][index : index + 2]
        found: list[int] = self.ids[side][start:stop].tolist()
        return found

    def texts(self, side: str) -> list[str]:
        """The lines of a side as they were given; a training split has none."""
        path = self.folder / f"{self.split}.{side}.txt"
        if not path.exists():
            raise ValueError(f"{self.folder}: the texts of split {self.split!r} are not kept")
        return path.read_bytes().decode("utf-8").split("\n")[:-1]

    def subwords(self) -> Subwords:
        """The tokenizer that cut the sentences."""
        return Subwords.load(self.folder / FILE)


def read_index(folder: Path) -> dict[str, Any]:
    """The content of a folder's `parallel.json`.

    Raises:
        ValueError: There is none, or it is damaged.
    """
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{folder} holds no parallel text: make it with ngsan data parallel"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged: {error}") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ValueError(f"{path}: its format is not known here; prepare the texts anew")
    try:
        files = {
            name: file for part in index["splits"].values() for name, file in part["files"].items()
        }
        known = index["signature"] == signature({**files, FILE: index["tokenizer"]})
    except (KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise ValueError(f"{path}: it was changed since it was written; prepare the texts anew")
    return index


def signature(files: dict[str, dict[str, Any]]) -> str:
    """Twelve hexadecimal digits that differ if any file does."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, about: dict[str, Any], *, verify: bool) -> None:
    if not path.exists():
        raise ValueError(f"{path} is missing: prepare the texts anew")
    size = path.stat().st_size
    if size != about["bytes"]:
        raise ValueError(
            f"{path} has {size:,} bytes and not {about['bytes']:,}: prepare the texts anew"
        )
    if verify and checksum(path) != about["sha256"]:
        raise ValueError(f"{path} is damaged: prepare the texts anew")
