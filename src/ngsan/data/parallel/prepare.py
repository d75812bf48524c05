"""Prepares parallel text for training: cuts it into subwords, written as flat arrays.

See `ngsan.data.parallel.dataset` for the files. They are written into a temporary folder, which is
renamed last.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from ngsan.atomic_io import file_entry, folder_lock, replace_folder, seal
from ngsan.data.parallel.dataset import FORMAT, INDEX, SIDES, read_index, signature
from ngsan.data.problems import Problems
from ngsan.data.text_files import Line, read_lines
from ngsan.text.subwords import FILE, Subwords

_CHUNK = 4096
"""Pairs that are cut at a time."""

_CODE = re.compile(r"[a-z]{2}")

TRAIN = "train"


def language_of(paths: Iterable[str | Path]) -> str:
    """The language that all file names end with, such as "de" in `train.de` and `test.de.gz`.

    Returns:
        Two lower-case letters; empty if a name has no language, or they differ.
    """
    endings = {Path(Path(path).name.removesuffix(".gz")).suffix[1:] for path in paths}
    found = endings.pop() if len(endings) == 1 else ""
    return found if _CODE.fullmatch(found) else ""


class Pair(NamedTuple):
    """A sentence, its translation, and their files and line."""

    source: str
    target: str
    where: str


def read_pairs(
    sources: Sequence[str | Path],
    targets: Sequence[str | Path],
    problems: Problems,
    *,
    keep_empty: bool = False,
) -> Iterator[Pair]:
    """The pairs of lines of files: the first source file with the first target file, and so on.

    Args:
        sources: Files of sentences.
        targets: As many files of their translations.
        problems: Where invalid UTF-8 is reported; overlong lines and pairs with an empty line are
            skipped and counted.
        keep_empty: Whether to keep pairs with an empty line and report overlong lines, as tests
            need it.
    """
    if len(sources) != len(targets) or not sources:
        raise ValueError(
            f"{len(sources)} source files and {len(targets)} target files: pass as many of both, "
            "and at least one"
        )
    for source, target in zip(sources, targets, strict=True):
        both = itertools.zip_longest(read_lines(source), read_lines(target))
        for number, (mine, its) in enumerate(both, start=1):
            if mine is None or its is None:
                more = number + sum(1 for _ in both)
                counts = (number - 1, more) if mine is None else (more, number - 1)
                raise ValueError(
                    f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}: line k of "
                    "one must be the translation of line k of the other"
                )
            where = f"{source} and {target}, line {number}"
            texts = [
                _usable(line, side, where, problems, keep_empty=keep_empty)
                for side, line in zip(SIDES, (mine, its), strict=True)
            ]
            if texts[0] is not None and texts[1] is not None:
                yield Pair(texts[0], texts[1], where)


def _usable(
    line: Line, side: str, where: str, problems: Problems, *, keep_empty: bool
) -> str | None:
    if line.text is None:
        overlong = line.problem == "overlong line" and not keep_empty
        report = problems.leave_out if overlong else problems.report
        report(line.problem, where, f"{side}: {line.message}")
    elif not keep_empty and not line.text.strip():
        problems.leave_out("empty line", where, f"the {side} is empty")
        return None
    return line.text


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
    max_length: int = 250,
    ratio: float = 0.0,
    skip_bad: bool = False,
    overwrite: bool = False,
    on_pairs: Callable[[str, int], None] = lambda split, pairs: None,
) -> dict[str, Problems]:
    """Writes a folder of parallel text.

    Args:
        folder: The folder to write.
        splits: The files by split name; "train" is required unless subwords are given.
        vocabulary_size: V of the subwords, which are trained on the training split.
        subwords: Subwords to use instead.
        language: Of the translations, such as "de"; None for the ending of their file names.
        max_length: Training pairs with more subwords on a side, boundary included, are skipped.
            Other splits are kept whole.
        ratio: Training pairs with more than `ratio` times as many subwords on one side are
            skipped; 0 for no limit.
        skip_bad: Whether training pairs with invalid UTF-8 are skipped instead of rejected.
        overwrite: Whether to replace parallel text in the folder.
        on_pairs: Called now and then with the split and the number of its pairs so far.

    Returns:
        What was skipped in each split.
    """
    folder = Path(folder).resolve()
    if max_length < 2:
        raise ValueError(f"max_length: {max_length} must be at least 2, a subword and the boundary")
    if ratio and ratio < 1:
        raise ValueError(f"ratio: {ratio} must be at least 1, or 0 for no limit")
    if not splits:
        raise ValueError("no files; pass at least one")
    if language is None:
        language = language_of(path for split in splits.values() for path in split.targets)
    elif not _CODE.fullmatch(language):
        raise ValueError(f"language: {language!r} is not two lower-case letters, such as de")
    if subwords is None and TRAIN not in splits:
        raise ValueError("subwords are trained on training texts; pass them, or a tokenizer")
    with folder_lock(folder.with_name(f"{folder.name}.lock")):
        _check_folder(folder, overwrite=overwrite)
        # Missing files are found before the long work.
        for split in splits.values():
            for path in (*split.sources, *split.targets):
                Path(path).open("rb").close()
        if subwords is None:
            subwords = Subwords.train(_train_texts(splits[TRAIN]), vocabulary_size)
        problems = {name: Problems(skip=skip_bad and name == TRAIN) for name in splits}
        with replace_folder(folder) as partial:
            subwords.save(partial / FILE)
            parts = {}
            for name, split in splits.items():
                train = name == TRAIN
                limits = (max_length, ratio) if train else (0, 0.0)
                writer = _SplitWriter(partial, name, subwords, problems[name], limits)
                writer.write(
                    read_pairs(*_files(split), problems[name], keep_empty=not train), on_pairs
                )
                parts[name] = writer.about()
            tokenizer = file_entry(partial / FILE)
            files = {name: file for part in parts.values() for name, file in part["files"].items()}
            index = {
                "format": FORMAT,
                "signature": signature({**files, FILE: tokenizer}),
                "vocabulary": len(subwords),
                "language": language,
                "tokenizer": tokenizer,
                "splits": parts,
            }
            (partial / INDEX).write_text(seal(index), encoding="utf-8")
    return problems


def _files(split: Split) -> tuple[Sequence[str | Path], Sequence[str | Path]]:
    return split.sources, split.targets


def _check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raises a `ValueError` if the folder holds something that must not be replaced."""
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
            f"{folder} holds other files, such as {min(found - ours)}: choose a new folder"
        )


def _train_texts(split: Split) -> Iterator[str]:
    for path in (*split.sources, *split.targets):
        for line in read_lines(path):
            if line.text is not None:
                yield line.text


class _SplitWriter:
    """Cuts the pairs of one split and writes its files; limits of 0 do not apply."""

    def __init__(
        self,
        folder: Path,
        name: str,
        subwords: Subwords,
        problems: Problems,
        limits: tuple[int, float],
    ) -> None:
        self._name, self._subwords, self._problems = name, subwords, problems
        self._max_length, self._ratio = limits
        kinds = ["ids", "offsets"] if name == TRAIN else ["ids", "offsets", "txt"]
        self._paths = {
            (side, kind): folder / f"{name}.{side}.{kind}" for side in SIDES for kind in kinds
        }
        self._tokens = Counter(dict.fromkeys(SIDES, 0))
        self._pairs = 0

    def write(self, pairs: Iterator[Pair], on_pairs: Callable[[str, int], None]) -> None:
        with ExitStack() as stack:
            files: dict[tuple[str, str], IO[bytes]] = {
                key: stack.enter_context(path.open("wb")) for key, path in self._paths.items()
            }
            for side in SIDES:
                files[side, "offsets"].write(np.zeros(1, "<i8").tobytes())
            while chunk := list(itertools.islice(pairs, _CHUNK)):
                self._write_chunk(chunk, files)
                on_pairs(self._name, self._pairs)
        if not self._pairs:
            reasons = (f"the {self._name} files hold no usable pair", *self._problems.summary())
            raise ValueError("; ".join(reasons))

    def _write_chunk(self, chunk: list[Pair], files: dict[tuple[str, str], IO[bytes]]) -> None:
        cut = {
            side: self._subwords.encode_all([getattr(pair, side) for pair in chunk])
            for side in SIDES
        }
        kept = [
            place
            for place, pair in enumerate(chunk)
            if self._fits(pair, [len(cut[side][place]) + 1 for side in SIDES])
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

    def _fits(self, pair: Pair, lengths: list[int]) -> bool:
        if self._max_length and max(lengths) > self._max_length:
            message = f"{max(lengths)} subwords, more than {self._max_length}"
            self._problems.leave_out("overlong line", pair.where, message)
            return False
        if self._ratio and max(lengths) > self._ratio * min(lengths):
            message = f"{lengths[0]} and {lengths[1]} subwords"
            self._problems.leave_out("uneven pair", pair.where, message)
            return False
        return True

    def about(self) -> dict[str, Any]:
        """What the manifest records about the split."""
        return {
            "pairs": self._pairs,
            "tokens": dict(self._tokens),
            "skipped": dict(self._problems.counts),
            "files": {path.name: file_entry(path) for path in self._paths.values()},
        }
