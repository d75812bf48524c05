"""The tables in docs/reproduction are those of the ledgers beside them, and documents show them."""

import shutil
from pathlib import Path

import pytest

from ngsan.__main__ import main
from ngsan.reproduce.ledger import LEDGER
from ngsan.reproduce.tables import TABLES

DOCS = Path(__file__).parents[1] / "docs"
FOUND = sorted((DOCS / "reproduction").glob("*/*.csv"))


def rows_of(path):
    """The cells of each row of a Markdown table, without the two chances at the end."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    return [line.split("|")[1:-3] for line in lines]


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_documented_table_is_that_of_its_ledger(path, tmp_path):
    name = path.stem.removesuffix("-val")
    split = ["--split", "val"] if path.stem != name else []
    assert name in TABLES
    config = path.parent / "config.yaml"
    changed = ["--config", str(config)] if config.exists() else []
    shutil.copy(path.parent / LEDGER, tmp_path)
    assert main(["reproduce", name, *changed, "--report", "--to", str(tmp_path), *split]) == 0
    assert (tmp_path / path.name).read_text() == path.read_text()
    again = tmp_path / path.with_suffix(".md").name
    assert rows_of(again) == rows_of(path.with_suffix(".md"))


def test_the_document_shows_the_tables_of_the_test_splits():
    text = (DOCS / "reproduction.md").read_text()
    shown = [path for path in FOUND if not path.stem.endswith("-val")]
    assert shown
    for path in shown:
        table = path.with_suffix(".md").read_text().splitlines()
        rows = [line for line in table if line.startswith("|")]
        assert "\n".join(rows) in text, path
