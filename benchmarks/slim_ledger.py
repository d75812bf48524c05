"""Copies a ledger without texts, small enough to keep beside documents.

    python benchmarks/slim_ledger.py reproduction slim --splits val test
    ngsan reproduce models --report-only -o slim

The copy has the ids and the scores of the main metric on each split, rounded to one decimal place,
but not the texts: about 29 kB for 5,000 images instead of 72. Its tables have the same values, and
the test over seeds and images works. Tables, figures and configurations are not copied.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ngsan.reproduce.ledger import LEDGER, WRITTEN, Ledger


def open_both(source: Path, to: Path) -> tuple[Ledger, Ledger]:
    """The ledger to copy, and the new, empty one."""
    ledger = Ledger(source)
    if not len(ledger):
        raise ValueError(f"{source}: no finished run; pass a folder with a {LEDGER}")
    for name in (LEDGER, WRITTEN):
        if (to / name).exists():
            raise ValueError(f"{to / name} already exists; pass another folder for the copy")
    return ledger, Ledger(to)


def slim(ledger: Ledger, copy: Ledger, splits: Sequence[str]) -> int:
    """Copies all runs; returns the number of missing output files.

    Args:
        ledger: The runs.
        copy: The new ledger.
        splits: The splits whose scores are copied, where available.
    """
    available = {
        entry.key: [split for split in splits if ledger.has_written(entry.key, split)]
        for entry in ledger
    }
    for key, mine in available.items():
        for split in mine:
            ledger.written(key, split)  # raises for a damaged file before anything is written
    for entry in ledger:
        mine = available[entry.key]
        found = {split: ledger.written(entry.key, split).without_texts() for split in mine}
        copy.add(entry, found)
    return len(ledger) * len(splits) - sum(map(len, available.values()))


def main() -> None:
    """Writes the copy."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", metavar="FROM", type=Path, help="a folder with a ledger")
    parser.add_argument("to", metavar="TO", type=Path, help="the folder of the copy")
    parser.add_argument(
        "--splits", nargs="+", default=["val", "test"], help="the splits whose scores to copy"
    )
    options = parser.parse_args()
    try:
        ledger, copy = open_both(options.source, options.to)
        missing_files = slim(ledger, copy, list(dict.fromkeys(options.splits)))
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from error
    files = [options.to / LEDGER, *(options.to / WRITTEN).glob("*")]
    size = sum(path.stat().st_size for path in files)
    print(f"{len(copy):,} runs copied to {options.to}: {len(files):,} files, {size:,} bytes")
    if missing_files:
        print(f"{missing_files:,} files of {', '.join(options.splits)} missing in {options.source}")


if __name__ == "__main__":
    main()
