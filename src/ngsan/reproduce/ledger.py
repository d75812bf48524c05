"""The ledger: a line for every finished run, so that no run is repeated.

The key of a run covers everything that decides its result: the configuration, the seed and the
training data. Two tables that have a run in common share it.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from ngsan.atomic_io import append_line, is_whole, make_folder, write_bytes
from ngsan.data.problems import shown

LEDGER = "ledger.jsonl"
WRITTEN = "written"
"""The folder beside the ledger with the outputs of the runs."""

_DECIMALS = 1


def run_key(settings: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that depend on the settings."""
    text = json.dumps(settings, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:12]


@dataclass(frozen=True)
class Entry:
    """A finished phase of a run."""

    key: str
    """The key of the run up to this phase."""

    model: dict[str, Any]
    """The configuration of the model."""

    phase: str
    """The phase after which the model was evaluated."""

    seed: int
    settings: dict[str, Any]
    """Everything else that decides the result."""

    data: dict[str, str]
    """Signatures of the training and validation data; part of the key."""

    parameters: int
    """The number of trained parameters."""

    metrics: dict[str, dict[str, float]]
    """Scores by split and name."""

    curve: list[float]
    """The main metric on the validation split after each epoch so far."""

    seconds: float
    device: str
    version: str
    """The version of this package."""

    content: dict[str, str] = field(default_factory=dict)
    """Byte-exact signatures of the same data; for the record, not part of the key."""

    measured: dict[str, str] = field(default_factory=dict)
    """Signatures of further evaluation data, such as the test split; not part of the key. Empty in
    old ledgers."""


class Ledger:
    """The finished runs in a folder."""

    def __init__(self, folder: str | Path) -> None:
        """Reads the ledger; a last line that a kill cut off is skipped.

        Raises:
            ValueError: A line is damaged, or the ledger cannot be written there.
        """
        self.folder = Path(folder)
        self._path = self.folder / LEDGER
        self._entries: dict[str, Entry] = {}
        self._check_places()
        if not self._path.exists():
            return
        # Line by line, so that undecodable bytes belong to a line.
        lines = self._path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                entry = _read_entry(line)
            except (ValueError, TypeError, RecursionError) as error:
                if number == len(lines) and not is_whole(line):
                    continue  # it was being written when the run was killed
                raise ValueError(f"{self._path}:{number}: damaged: {error}") from error
            self._entries[entry.key] = entry

    def _check_places(self) -> None:
        """Raises a `ValueError` if a run could not be added later; a run may take hours."""
        if self._path.exists() and not self._path.is_file():
            raise ValueError(f"{self._path} is not a file, so runs cannot be added there")
        written = self.folder / WRITTEN
        if written.exists() and not written.is_dir():
            raise ValueError(f"{written} is not a folder, so outputs cannot be kept there")

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, entry: Entry, found: Mapping[str, "Written"]) -> None:
        """Adds a finished run and its outputs by split."""
        for split, written in found.items():
            path = self._file(entry.key, split)
            make_folder(path.parent)
            text = json.dumps(asdict(written), ensure_ascii=False)
            # Without a time in the header equal texts make equal files.
            write_bytes(path, gzip.compress(text.encode(), mtime=0))
        append_line(self._path, json.dumps(asdict(entry), sort_keys=True))
        self._entries[entry.key] = entry

    def replace(self, entry: Entry) -> None:
        """Replaces the entry of a run that was evaluated further; all or nothing."""
        entries = {**self._entries, entry.key: entry}
        lines = [json.dumps(asdict(found), sort_keys=True) + "\n" for found in entries.values()]
        write_bytes(self._path, "".join(lines).encode())
        self._entries = entries

    def has_written(self, key: str, split: str) -> bool:
        """Whether the outputs of a run on a split are available: a ledger may come without them."""
        return self._file(key, split).is_file()

    def written(self, key: str, split: str) -> "Written":
        """The outputs of a run on a split; a `ValueError` if they are missing or damaged."""
        path = self._file(key, split)
        try:
            found = Written(**json.loads(gzip.decompress(path.read_bytes())))
            if len(found.ids) != len(found.scores):
                raise ValueError(f"{len(found.ids)} ids with {len(found.scores)} scores")
            if len(set(map(len, found.scores))) > 1:
                raise ValueError("rows with different numbers of scores")
            return found
        except (OSError, EOFError, zlib.error, ValueError, TypeError) as error:
            raise ValueError(f"{path}: damaged or missing: {error}") from error

    def _file(self, key: str, split: str) -> Path:
        return self.folder / WRITTEN / f"{key}-{split}.json.gz"


def _read_entry(line: bytes) -> Entry:
    entry = Entry(**json.loads(line.decode()))
    for name, hint in get_type_hints(Entry).items():
        _check_kind(name, getattr(entry, name), hint)
    return entry


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """Raises a `ValueError` that names a value of the wrong JSON type."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or isinstance(value, bool):
        raise ValueError(f"{name}: {shown(value)} is not of type {kind.__name__}")
    parts = value.items() if kind is dict else enumerate(value) if kind is list else ()
    for key, part in parts:
        _check_kind(f"{name}.{key}", part, inner[-1])


@dataclass(frozen=True)
class Written:
    """The outputs of a run on a split."""

    ids: Sequence[str]
    """The images, sentences or questions."""

    texts: Sequence[str]
    """The output for each; empty if only the scores were kept, see `without_texts`."""

    scores: Sequence[Sequence[float]]
    """The main metric's counts for each; their sums decide it. A metric that is a mean has one
    count, its own value."""

    def without_texts(self) -> "Written":
        """The ids and the scores, rounded to one decimal: less than half of the bytes.

        Scores are on the scale that people read, where a CIDEr of 1 is 100: its third decimal is
        kept. BLEU's counts are whole, and so are VQA's accuracies in percent with ten reference
        answers: both stay exact.
        """
        rounded = [[round(value, _DECIMALS) for value in row] for row in self.scores]
        return Written(self.ids, [], rounded)
