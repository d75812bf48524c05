"""METEOR's table of paraphrases, as an index that is built once and memory-mapped.

The table has five million entries "phrase -> paraphrase" of up to seven words. Reading it takes 15
seconds and a gigabyte. The index stores the phrases as a tree of words. A phrase of one word is a
node with the word's number. A longer phrase is an edge from the node of its prefix; the number of
its node is the rank of ``node << 32 | word`` among all sorted edges, plus the number of words. So a
whole corpus needs one binary search per length.

Shapes: `N` nodes, `E` edges, `P` entries of the table.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngsan.atomic_io import replace_folder

_FORMAT = 1  # part of the folder name, so an index of another format is ignored
_BLOCK = 1 << 24  # bytes of the table at a time
_CHUNK = 1 << 18  # phrases at a time
_WORD_BITS = np.uint64(32)


@dataclass(frozen=True)
class Phrases:
    """Occurrences of the table's phrases in captions, sorted by caption, start and length."""

    captions: NDArray[np.int64]
    """Index of the caption."""
    starts: NDArray[np.int64]
    """Place of the first word in the caption."""
    lengths: NDArray[np.int64]
    """Number of words."""
    nodes: NDArray[np.int64]
    """The phrase."""


@dataclass(frozen=True)
class ParaphraseTable:
    """Phrases and their paraphrases."""

    words: dict[str, int]
    """Numbers of the words in the table."""
    edges: NDArray[np.uint64]
    """(E,) The sorted edges of the tree."""
    offsets: NDArray[np.int32]
    """(N + 1,) Start of each node's paraphrases in `values`."""
    values: NDArray[np.int32]
    """(P,) Nodes of the paraphrases; those of one phrase are in the order of the table."""
    digest: str
    """Hash of the table's file."""

    @classmethod
    def load(cls, path: Path) -> ParaphraseTable:
        """Opens the index of a table, and builds it on first use.

        The index is cached in ``$NGSAN_CACHE``, else in ``$XDG_CACHE_HOME/ngsan``, else in
        ``~/.cache/ngsan``. If it cannot be written there, it is built every time.

        Args:
            path: The compressed table: alternating lines of probability, phrase and paraphrase.
        """
        digest = _hash(path)
        folder = _cache_folder() / f"paraphrases-{_FORMAT}-{path.stat().st_size}-{digest}"
        try:
            return cls._open(folder, digest)
        except (OSError, ValueError):  # missing or damaged
            table = cls._build(path, digest)
        try:
            table._save(folder)
            return cls._open(folder, digest)
        except (OSError, ValueError):
            # The disk is full or read-only, or another process writes the same index right now.
            return table

    def find(self, captions: Sequence[Sequence[str]]) -> Phrases:
        """All phrases of the table, and prefixes of phrases, that occur in the captions."""
        lengths = np.fromiter(map(len, captions), np.int64, len(captions))
        # An extra place without a word after each caption ends its last phrases.
        ends = np.cumsum(lengths + 1)
        words = np.full(int(ends[-1]) if len(ends) else 0, -1, np.int64)
        inside = np.ones(len(words), np.bool_)
        inside[ends - 1] = False
        get = self.words.get
        words[inside] = [get(word, -1) for caption in captions for word in caption]

        places = np.flatnonzero(words >= 0)
        nodes = words[places]
        found = [(places, np.ones_like(places), nodes)]
        length = 1
        while len(places):
            following = words[places + length]
            known = following >= 0
            places = places[known]
            nodes, known = self._follow(nodes[known], following[known])
            places, nodes = places[known], nodes[known]
            length += 1
            found.append((places, np.full_like(places, length), nodes))

        place, size, node = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((size, place))
        place, size, node = place[order], size[order], node[order]
        caption = np.searchsorted(ends, place, side="right")
        return Phrases(caption, place - (ends - lengths - 1)[caption], size, node)

    def _follow(
        self, nodes: NDArray[np.int64], words: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The node of each phrase extended by a word, and whether it exists."""
        keys = _edges(nodes, words)
        places = np.minimum(np.searchsorted(self.edges, keys), max(len(self.edges) - 1, 0))
        known = self.edges[places] == keys if len(self.edges) else np.zeros(len(keys), np.bool_)
        return places + len(self.words), known

    def paraphrases(
        self, nodes: NDArray[np.int64], wanted: NDArray[np.int64]
    ) -> dict[int, tuple[int, ...]]:
        """Paraphrases of `nodes` that are in `wanted`, in the order of the table."""
        nodes = np.unique(nodes)
        is_wanted = np.zeros(len(self.offsets) - 1, np.bool_)
        is_wanted[wanted] = True
        starts = self.offsets[nodes].astype(np.int64)
        counts = self.offsets[nodes + 1] - starts
        first = np.cumsum(counts) - counts
        owners = np.repeat(np.arange(len(nodes)), counts)
        values = self.values[np.arange(len(owners)) - first[owners] + starts[owners]]
        kept = is_wanted[values]
        result: dict[int, list[int]] = {}
        for owner, value in zip(nodes[owners[kept]].tolist(), values[kept].tolist(), strict=True):
            result.setdefault(owner, []).append(value)
        return {owner: tuple(values) for owner, values in result.items()}

    @classmethod
    def _build(cls, path: Path, digest: str) -> ParaphraseTable:
        """Builds the index from the compressed table."""
        phrases: dict[bytes, int] = {}
        columns: tuple[list[NDArray[np.int32]], ...] = ([], [])
        with gzip.open(path) as file:
            lines: list[bytes] = [b""]
            while block := file.read(_BLOCK):
                lines[-1:] = (lines[-1] + block).split(b"\n")
                whole = (len(lines) - 1) // 3 * 3  # the last line may continue in the next block
                for column, first in zip(columns, (1, 2), strict=True):
                    # The number of a new phrase is the number of phrases before it.
                    found = [phrases.setdefault(p, len(phrases)) for p in lines[first:whole:3]]
                    column.append(np.array(found, np.int32))
                del lines[:whole]
        texts, edges, nodes = _tree(list(phrases))
        words = {text.decode("utf-8"): i for i, text in enumerate(texts)}
        keys, values = (nodes[np.concatenate(column)] for column in columns)
        order = np.argsort(keys, kind="stable")
        counts = np.bincount(keys, minlength=len(words) + len(edges))
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return cls(words, edges, offsets, values[order].astype(np.int32), digest)

    def _save(self, folder: Path) -> None:
        """Writes the index as a whole folder."""
        with replace_folder(folder) as partial:
            (partial / "words.txt").write_text("\n".join(self.words), encoding="utf-8")
            for name in ("edges", "offsets", "values"):
                np.save(partial / f"{name}.npy", getattr(self, name), allow_pickle=False)

    @classmethod
    def _open(cls, folder: Path, digest: str) -> ParaphraseTable:
        """Maps an index into memory; OSError if it is missing, ValueError if it is damaged."""
        words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")
        edges, offsets, values = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in ("edges", "offsets", "values")
        )
        if len(offsets) != len(words) + len(edges) + 1 or offsets[-1] != len(values):
            raise ValueError(f"the files in {folder} do not match; remove it")
        return cls({word: i for i, word in enumerate(words)}, edges, offsets, values, digest)


def _hash(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _cache_folder() -> Path:
    if own := os.environ.get("NGSAN_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "ngsan"
    return Path.home() / ".cache" / "ngsan"


def _edges(nodes: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.uint64]:
    return nodes.astype(np.uint64) << _WORD_BITS | words.astype(np.uint64)


def _tree(phrases: Sequence[bytes]) -> tuple[list[bytes], NDArray[np.uint64], NDArray[np.int64]]:
    """Words, edges (E,) and the node of each phrase."""
    lengths = np.fromiter((text.count(b" ") + 1 for text in phrases), np.int64, len(phrases))
    ends = np.cumsum(lengths)
    numbers: dict[bytes, int] = {}
    words = np.empty(int(ends[-1]), np.int64)
    filled = 0
    for i in range(0, len(phrases), _CHUNK):
        texts = b" ".join(phrases[i : i + _CHUNK]).split(b" ")
        part = [numbers.setdefault(word, len(numbers)) for word in texts]
        words[filled : filled + len(part)] = part
        filled += len(part)

    starts = ends - lengths
    nodes = words[starts]
    levels: list[NDArray[np.uint64]] = []
    base = len(numbers)
    for length in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > length)
        # Nodes of one length are numbered after all shorter ones: the levels are sorted together.
        level, ranks = np.unique(
            _edges(nodes[longer], words[starts[longer] + length]), return_inverse=True
        )
        nodes[longer] = base + ranks
        base += len(level)
        levels.append(level)
    edges = np.concatenate(levels) if levels else np.empty(0, np.uint64)
    return list(numbers), edges, nodes
