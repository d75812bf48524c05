"""Makes the tables and figures in docs/reproduction again from their ledgers.

    python benchmarks/documented_tables.py

Tables that docs/reproduction.md shows are replaced there, too; a test compares all of them.
"""

import argparse
from pathlib import Path

from ngsan.__main__ import main as ngsan
from ngsan.atomic_io import write_text

DOCS = Path(__file__).parents[1] / "docs"


def blocks_of(path: Path) -> list[str]:
    """The tables of a Markdown file, as text."""
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    return [block.strip() for block in blocks if block.startswith("| ")]


def make_table(path: Path) -> None:
    """Makes the table of a CSV file again, in place."""
    name = path.stem.removesuffix("-val")
    words = ["reproduce", name, "--report-only", "--output", str(path.parent)]
    if path.stem != name:
        words += ["--split", "val"]
    config = path.parent / "config.yaml"
    if config.exists():
        words += ["--config", str(config)]
    figure = path.with_suffix(".png")
    had_figure = figure.exists()
    if ngsan(words):
        raise SystemExit(f"{path}: not made")
    if not had_figure:
        figure.unlink(missing_ok=True)


def replaced(text: str, before: list[str], after: list[str]) -> str:
    """A page with the tables of a file replaced; new ones follow the last."""
    if not before or any(block not in text for block in before):
        return text
    for old, new in zip(before[:-1], after, strict=False):
        text = text.replace(old, new)
    return text.replace(before[-1], "\n\n".join(after[len(before) - 1 :]))


def main() -> None:
    """Makes all tables, or those of some folders."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", help="folders in docs/reproduction; none for all")
    options = parser.parse_args()
    page = DOCS / "reproduction.md"
    for path in sorted((DOCS / "reproduction").glob("*/*.csv")):
        if options.folders and path.parent.name not in options.folders:
            continue
        table = path.with_suffix(".md")
        before = blocks_of(table) if table.exists() else []
        make_table(path)
        text = page.read_text(encoding="utf-8")
        write_text(page, replaced(text, before, blocks_of(table)))


if __name__ == "__main__":
    main()
