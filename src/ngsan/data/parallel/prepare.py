"""Cuts parallel text into word pieces and writes them as flat arrays; see `dataset` for the files.

All is written into a folder beside the wanted one, which takes its name as the very last step:
whatever ends the work leaves no half-written data under that name.
"""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ngsan.data.lock import folder_lock
from ngsan.data.parallel.dataset import FORMAT, INDEX, SIDES, checksum, read_index, signature
from ngsan.data.parallel.language import check_language, language_of
from ngsan.data.parallel.lines import Pair, read_lines, read_pairs
from ngsan.data.problems import Problems
from ngsan.durable import flush, flush_folder, write_text
from ngsan.text.subwords import FILE, Subwords

_CHUNK = 4096
"""Pairs that are cut at a time."""

TRAIN = "train"


@dataclass(frozen=True)
class Split:
    """The files of a split: line k of a source file is translated in line k of its target file."""

    sources: Sequence[str | Path]
    targets: Sequence[str | Path]


def prepare(
    folder: str | Path,
    splits: Mapping[str, Split],
    *,
    vocabulary_size: int = 32768,
    subwords: Subwords | None = None,
    language: str | None = None,
    longest: int = 250,
    ratio: float = 0.0,
    skip_bad: bool = False,
    overwrite: bool = False,
    on_pairs: Callable[[str, int], None] = lambda split, pairs: None,
) -> dict[str, Problems]:
    """Writes a folder of parallel text.

    Args:
        folder: Where to.
        splits: The files by the split's name; "train" must be there unless subwords are given.
        vocabulary_size: V of the word pieces that are found in the training split.
        subwords: Word pieces to take instead.
        language: Of the translations, such as "de"; None for what all names of their files end
            with, or nothing.
        longest: Training pairs with more word pieces on a side, its boundary included, are left
            out. Other splits are kept whole.
        ratio: Training pairs of which a side has more than so many times the word pieces of the
            other are left out; 0 for no such rule.
        skip_bad: Whether training pairs with bad UTF-8 are left out rather than refused.
        overwrite: Whether to replace what is in the folder.
        on_pairs: Told now and then how many pairs of a split are done.

    Returns:
        What was left out of each split.

    Raises:
        ValueError: Files do not fit each other, are damaged or have nothing to learn from.
    """
    folder = Path(folder).resolve()
    if longest < 2:
        raise ValueError(f"longest: {longest} must be at least 2, a word piece and the boundary")
    if ratio and ratio < 1:
        raise ValueError(f"ratio: {ratio} must be at least 1, or 0 for no such rule")
    if not splits:
        raise ValueError("there are no files to read")
    if language is None:
        language = language_of(path for split in splits.values() for path in split.targets)
    else:
        check_language(language)
    if subwords is None and TRAIN not in splits:
        raise ValueError("word pieces are found in training texts: give them, or a tokenizer")
    partial = folder.with_name(f"{folder.name}.partial")
    with folder_lock(folder.with_name(f"{folder.name}.lock")):
        _check_folder(folder, overwrite=overwrite)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        # Missing files are found before the long work.
        for split in splits.values():
            for path in (*split.sources, *split.targets):
                Path(path).open("rb").close()
        if subwords is None:
            subwords = Subwords.train(_train_texts(splits[TRAIN]), vocabulary_size)
        subwords.save(partial / FILE)
        problems = {name: Problems(skip=skip_bad and name == TRAIN) for name in splits}
        index: dict[str, Any] = {"format": FORMAT, "signature": "", "vocabulary": len(subwords)}
        index["language"] = language
        index["tokenizer"] = _about(partial / FILE)
        index["splits"] = {}
        for name, split in splits.items():
            pairs = read_pairs(
                split.sources, split.targets, problems[name], keep_empty=name != TRAIN
            )
            writer = _SplitWriter(partial, name, subwords, problems[name])
            limits = (longest, ratio) if name == TRAIN else (0, 0.0)
            writer.write(pairs, *limits, on_pairs)
            index["splits"][name] = writer.about()
        files = {
            name: file for part in index["splits"].values() for name, file in part["files"].items()
        }
        index["signature"] = signature({**files, FILE: index["tokenizer"]})
        write_text(partial / INDEX, json.dumps(index, indent=1) + "\n")
        _take_name(partial, folder)
    return problems


def _check_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuses a folder that holds something which is not to be replaced."""
    if not folder.exists():
        return
    found = {path.name for path in folder.iterdir()}
    if INDEX in found and not overwrite:
        raise ValueError(f"{folder} holds parallel text already: pass --overwrite to replace it")
    ours = {INDEX, FILE}
    if INDEX in found:
        with suppress(ValueError):
            ours.update(
                name for part in read_index(folder)["splits"].values() for name in part["files"]
            )
    if found - ours:
        raise ValueError(
            f"{folder} holds other files, such as {min(found - ours)}: name a new folder"
        )


def _take_name(partial: Path, folder: Path) -> None:
    """Puts the finished folder in the place of what is there."""
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    flush_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _train_texts(split: Split) -> Iterator[str]:
    for path in (*split.sources, *split.targets):
        for line in read_lines(path):
            if line.text is not None:
                yield line.text


def _about(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": checksum(path)}


class _SplitWriter:
    """Writes the files of one split."""

    def __init__(self, folder: Path, name: str, subwords: Subwords, problems: Problems) -> None:
        self._folder, self._name = folder, name
        self._subwords, self._problems = subwords, problems
        kinds = ["ids", "offsets"] if name == TRAIN else ["ids", "offsets", "txt"]
        self._paths = {
            (side, kind): folder / f"{name}.{side}.{kind}" for side in SIDES for kind in kinds
        }
        self._tokens = Counter(dict.fromkeys(SIDES, 0))
        self._pairs = 0

    def write(
        self,
        pairs: Iterator[Pair],
        longest: int,
        ratio: float,
        on_pairs: Callable[[str, int], None],
    ) -> None:
        """Cuts and writes pairs; 0 for no limit."""
        files: dict[tuple[str, str], IO[bytes]] = {}
        try:
            for key, path in self._paths.items():
                files[key] = path.open("wb")
            for side in SIDES:
                files[side, "offsets"].write(np.zeros(1, "<i8").tobytes())
            while chunk := list(itertools.islice(pairs, _CHUNK)):
                self._chunk(chunk, files, longest, ratio)
                on_pairs(self._name, self._pairs)
        finally:
            for file in files.values():
                file.close()
        if not self._pairs:
            raise ValueError(
                "; ".join(
                    (f"the {self._name} files hold no pair of lines", *self._problems.summary())
                )
            )
        for path in self._paths.values():
            flush(path)

    def _chunk(
        self,
        chunk: list[Pair],
        files: dict[tuple[str, str], IO[bytes]],
        longest: int,
        ratio: float,
    ) -> None:
        cut = {
            side: self._subwords.encode_all([getattr(pair, side) for pair in chunk])
            for side in SIDES
        }
        kept = [
            place
            for place, pair in enumerate(chunk)
            if self._fits(pair, [len(cut[side][place]) + 1 for side in SIDES], longest, ratio)
        ]
        for side in SIDES:
            sentences = [cut[side][place] for place in kept]
            ids = np.fromiter(itertools.chain.from_iterable(sentences), "<i4")
            ends = self._tokens[side] + np.cumsum([len(one) for one in sentences], dtype="<i8")
            files[side, "ids"].write(ids.tobytes())
            files[side, "offsets"].write(ends.tobytes())
            self._tokens[side] += len(ids)
            if (side, "txt") in files:
                texts = "".join(f"{getattr(chunk[place], side)}\n" for place in kept)
                files[side, "txt"].write(texts.encode())
        self._pairs += len(kept)

    def _fits(self, pair: Pair, lengths: list[int], longest: int, ratio: float) -> bool:
        if longest and max(lengths) > longest:
            self._problems.leave_out(
                "overlong line", pair.where, f"{max(lengths)} word pieces, more than {longest}"
            )
            return False
        if ratio and max(lengths) > ratio * min(lengths):
            self._problems.leave_out(
                "uneven pair", pair.where, f"{lengths[0]} and {lengths[1]} word pieces"
            )
            return False
        return True

    def about(self) -> dict[str, Any]:
        """What the index says of the split."""
        return {
            "pairs": self._pairs,
            "tokens": dict(self._tokens),
            "left_out": dict(self._problems.counts),
            "files": {path.name: _about(path) for path in self._paths.values()},
        }
