"""The ledger: a line for every finished run, so that a table is never paid for twice.

A run is known by a key over all that decides its result: the configuration, the seed and what it
learned from. Two tables that have a run in common share it.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from ngsan.data.lines import shown
from ngsan.durable import append_line, is_whole, make_folder, write_bytes

LEDGER = "ledger.jsonl"
WRITTEN = "written"
"""The folder beside the ledger of what the runs wrote."""

_DECIMALS = 1


def run_key(settings: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that differ for other settings."""
    text = json.dumps(settings, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:12]


@dataclass(frozen=True)
class Entry:
    """A finished phase of a run."""

    key: str
    """Of the run up to this phase."""

    model: dict[str, Any]
    """The configuration of the model."""

    phase: str
    """After which phase it was measured."""

    seed: int
    """Of the run."""

    settings: dict[str, Any]
    """All else that decides."""

    data: dict[str, str]
    """What was learned from; part of the key."""

    parameters: int
    """Numbers that were learned."""

    metrics: dict[str, dict[str, float]]
    """Scores by split and name."""

    curve: list[float]
    """The main metric on the validation split after each epoch so far."""

    seconds: float
    """How long the run took."""

    device: str
    """Where."""

    version: str
    """Of this package."""

    content: dict[str, str] = field(default_factory=dict)
    """Signatures of what was learned from, to the byte; for the record, not part of the key."""

    measured: dict[str, str] = field(default_factory=dict)
    """What was measured on and not learned from, such as the test split, as `data` knows what was;
    not part of the key, see `ngsan.reproduce.splits`. Empty in ledgers of before it was entered."""


class Ledger:
    """The finished runs in a folder."""

    def __init__(self, folder: str | Path) -> None:
        """Reads the ledger; a last line that a kill cut short is passed over.

        Raises:
            ValueError: A line is damaged, or no ledger can be there; names it.
        """
        self.folder = Path(folder)
        self._path = self.folder / LEDGER
        self._entries: dict[str, Entry] = {}
        self._check_places()
        if not self._path.exists():
            return
        # Line by line, so that bytes that are no text are those of a line.
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
        """Raises a `ValueError` where a run could not be entered; a run may take hours."""
        if self._path.exists() and not self._path.is_file():
            raise ValueError(f"{self._path} is no file, so runs cannot be entered there")
        written = self.folder / WRITTEN
        if written.exists() and not written.is_dir():
            raise ValueError(f"{written} is no folder, so what runs write cannot be kept there")

    def __contains__(self, key: object) -> bool:
        """Whether a run is finished."""
        return key in self._entries

    def __getitem__(self, key: str) -> Entry:
        """The finished run of a key."""
        return self._entries[key]

    def __len__(self) -> int:
        """How many runs are finished."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """The finished runs, in the order in which they were entered."""
        return iter(self._entries.values())

    def add(self, entry: Entry, found: Mapping[str, "Written"]) -> None:
        """Takes in a finished run.

        Args:
            entry: The run.
            found: What it wrote, by split.

        Raises:
            OSError: It could not be written.
        """
        for split, written in found.items():
            path = self._file(entry.key, split)
            make_folder(path.parent)
            text = json.dumps(asdict(written), ensure_ascii=False)
            # Without a time in the header equal texts make equal files.
            write_bytes(path, gzip.compress(text.encode(), mtime=0))
        append_line(self._path, json.dumps(asdict(entry), sort_keys=True))
        self._entries[entry.key] = entry

    def replace(self, entry: Entry) -> None:
        """Puts a finished run that was measured further in the place of its entry.

        Raises:
            OSError: It could not be written, and the ledger is as it was.
        """
        entries = {**self._entries, entry.key: entry}
        lines = [json.dumps(asdict(found), sort_keys=True) + "\n" for found in entries.values()]
        write_bytes(self._path, "".join(lines).encode())
        self._entries = entries

    def has_written(self, key: str, split: str) -> bool:
        """Whether what a run wrote on a split is at hand: a ledger may come without it."""
        return self._file(key, split).is_file()

    def written(self, key: str, split: str) -> "Written":
        """What a run wrote on a split.

        Raises:
            ValueError: The file is missing or damaged.
        """
        path = self._file(key, split)
        try:
            found = Written(**json.loads(gzip.decompress(path.read_bytes())))
            if len(found.ids) != len(found.scores):
                raise ValueError(f"{len(found.ids)} ids with {len(found.scores)} scores")
            if len(set(map(len, found.scores))) > 1:
                raise ValueError("other numbers of scores in some than in others")
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
    """Raises a `ValueError` that names what is not of its kind: of those that JSON has."""
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
    """What a run wrote on a split."""

    ids: Sequence[str]
    """The images, sentences or questions."""

    texts: Sequence[str]
    """What it wrote of each; empty where the scores alone were kept, see `without_texts`."""

    scores: Sequence[Sequence[float]]
    """What the main metric counts in each; their sums decide it. A metric that is a mean counts one
    number, its own value."""

    def without_texts(self) -> "Written":
        """The ids and the scores alone, rounded to one decimal: less than half of the bytes.

        Scores are given as people read them, where CIDEr of 1 is 100: its third decimal is kept.
        What BLEU counts is whole, and so are VQA's accuracies, in percent, where ten people
        answered: both stay as they are.
        """
        rounded = [[round(value, _DECIMALS) for value in row] for row in self.scores]
        return Written(self.ids, [], rounded)
