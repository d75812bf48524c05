"""A copy of a ledger that is small enough to be kept with documents.

    python benchmarks/slim_ledger.py reproduction slim --splits val test
    ngsan reproduce models --report-only -o slim

Of what each run wrote on the splits, the copy has the ids and what the main metric counts in each,
rounded to a decimal, and not the texts: about 29 kB for 5,000 images instead of 72. Its tables
have the same values, and the paired test can be made of it. Tables, figures and configurations
beside the ledger are not copied.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ngsan.reproduce.ledger import LEDGER, WRITTEN, Ledger


def open_both(source: Path, to: Path) -> tuple[Ledger, Ledger]:
    """The ledger to copy, and that of the copy, which is empty."""
    ledger = Ledger(source)
    if not len(ledger):
        raise ValueError(f"{source}: no run is finished there; give a folder with a {LEDGER}")
    for name in (LEDGER, WRITTEN):
        if (to / name).exists():
            raise ValueError(f"{to / name} is there already; take another folder for the copy")
    return ledger, Ledger(to)


def slim(ledger: Ledger, copy: Ledger, splits: Sequence[str]) -> int:
    """Copies all runs; returns how many files of what they wrote are not there.

    Args:
        ledger: The runs.
        copy: Where to enter them.
        splits: Those whose scores are copied, as far as they are at hand.
    """
    there = {
        entry.key: [split for split in splits if ledger.has_written(entry.key, split)]
        for entry in ledger
    }
    for key, mine in there.items():
        for split in mine:
            ledger.written(key, split)  # a damaged file is told before anything is written
    for entry in ledger:
        mine = there[entry.key]
        found = {split: ledger.written(entry.key, split).without_texts() for split in mine}
        copy.add(entry, found)
    return len(ledger) * len(splits) - sum(map(len, there.values()))


def main() -> None:
    """Writes the copy."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", metavar="FROM", type=Path, help="a folder with a ledger")
    parser.add_argument("to", metavar="TO", type=Path, help="the folder of the copy")
    parser.add_argument("--splits", nargs="+", default=["val", "test"], help="whose scores to copy")
    options = parser.parse_args()
    try:
        ledger, copy = open_both(options.source, options.to)
        passed = slim(ledger, copy, list(dict.fromkeys(options.splits)))
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from error
    files = [options.to / LEDGER, *(options.to / WRITTEN).glob("*")]
    size = sum(path.stat().st_size for path in files)
    print(f"{len(copy):,} runs are in {options.to}: {len(files):,} files, {size:,} bytes")
    if passed:
        print(f"{passed:,} files of {', '.join(options.splits)} are not in {options.source}")


if __name__ == "__main__":
    main()
