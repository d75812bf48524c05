"""A prepared split of parallel text: arrays of subwords, mapped into memory.

A folder, written by `prepare`, holds `tokenizer.json`, the sealed manifest `parallel.json`, and for
each split

    SPLIT.source.ids, SPLIT.target.ids            subwords of all sentences in a row, int32
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

from ngsan.atomic_io import check_file, read_sealed
from ngsan.text.subwords import FILE, Subwords

INDEX = "parallel.json"
FORMAT = 2
SIDES = ("source", "target")


class ParallelSplit:
    """The sentences of a split, and their translations.

    Args:
        folder: What `prepare` wrote.
        split: "train", "val" or "test".
        verify: Whether to compare all files with their checksums, which reads them once.

    Attributes:
        language: Of the translations, such as "de"; empty if unknown.
        ids: For "source" and "target": (P,) subwords of all sentences in a row, no boundaries.
        offsets: For "source" and "target": (n + 1,) where each sentence begins in `ids`.
    """

    def __init__(self, folder: str | Path, split: str, *, verify: bool = False) -> None:
        self.folder, self.split = Path(folder), split
        index = read_index(self.folder)
        if split not in index["splits"]:
            raise ValueError(
                f"{self.folder} has no split {split!r}, only {', '.join(index['splits'])}"
            )
        about = index["splits"][split]
        self.signature: str = index["signature"]
        self.vocab_size: int = index["vocabulary"]
        self.language: str = index["language"]
        for name, entry in {**about["files"], FILE: index["tokenizer"]}.items():
            try:
                check_file(self.folder / name, entry, content=verify)
            except (OSError, ValueError) as error:
                raise ValueError(f"{error}; or prepare the texts again") from None
        self.ids = {side: self._map(f"{split}.{side}.ids", "<i4") for side in SIDES}
        self.offsets = {side: self._map(f"{split}.{side}.offsets", "<i8") for side in SIDES}

    def _map(self, name: str, kind: str) -> NDArray[Any]:
        path = self.folder / name
        if not path.stat().st_size:
            return np.zeros(0, np.dtype(kind))
        # Copy on write: PyTorch accepts writable arrays only.
        return np.memmap(path, dtype=np.dtype(kind), mode="c")

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.offsets["source"]) - 1

    def lengths(self, side: str) -> NDArray[np.int64]:
        """(n,) subwords of each sentence, boundary included."""
        found: NDArray[np.int64] = np.diff(self.offsets[side]) + 1
        return found

    def sentence(self, side: str, index: int) -> list[int]:
        """The subwords of a sentence, without boundary."""
        start, stop = self.offsets[side][index : index + 2]
        found: list[int] = self.ids[side][start:stop].tolist()
        return found

    def texts(self, side: str) -> list[str]:
        """The original lines of a side; a training split has none."""
        path = self.folder / f"{self.split}.{side}.txt"
        if not path.exists():
            raise ValueError(f"{self.folder}: the texts of split {self.split!r} are not kept")
        return path.read_bytes().decode("utf-8").split("\n")[:-1]

    def subwords(self) -> Subwords:
        """The tokenizer of the sentences."""
        return Subwords.load(self.folder / FILE)


def read_index(folder: Path) -> dict[str, Any]:
    """The content of a folder's `parallel.json`."""
    path = folder / INDEX
    if not path.exists():
        raise ValueError(f"{folder} holds no parallel text: make it with ngsan data parallel")
    index = read_sealed(path)
    if index.get("format") != FORMAT:
        raise ValueError(f"{path}: unknown format {index.get('format')!r}; prepare the texts again")
    return index


def signature(files: dict[str, dict[str, Any]]) -> str:
    """Twelve hexadecimal digits that change with any file's entry."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]
