"""The tables in docs/reproduction are those of the ledgers beside them, and the page shows them."""

import shutil
from pathlib import Path

import pytest

from ngsan.__main__ import main
from ngsan.reproduce.ledger import LEDGER, WRITTEN
from ngsan.reproduce.tables import TABLES
from tests.reproduce.tiny_ledgers import TABLE, add_runs, remove_outputs, report

DOCS = Path(__file__).parents[2] / "docs"
FOUND = sorted((DOCS / "reproduction").glob("*/*.csv"))


def rows_of(path):
    """The cells of each row of a Markdown table, without the two p-values at the end."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    return [line.split("|")[1:-3] for line in lines]


def check_table(path, folder):
    """Creates a table again in another folder, from the ledger and the runs' outputs if available.

    Without the outputs, the test by images is not possible, and p-values are not compared.
    """
    name = path.stem.removesuffix("-val")
    split = ["--split", "val"] if path.stem != name else []
    assert name in TABLES
    config = path.parent / "config.yaml"
    changed = ["--config", str(config)] if config.exists() else []
    shutil.copy(path.parent / LEDGER, folder)
    has_scores = (path.parent / WRITTEN).is_dir()
    if has_scores:
        shutil.copytree(path.parent / WRITTEN, folder / WRITTEN)
    assert (
        main(["reproduce", name, *changed, "--report-only", "--output", str(folder), *split]) == 0
    )
    assert (folder / path.name).read_text() == path.read_text()
    table, again = path.with_suffix(".md"), folder / path.with_suffix(".md").name
    assert rows_of(again) == rows_of(table)
    if has_scores:
        assert again.read_text() == table.read_text()


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_documented_table_equals_that_of_its_ledger(path, tmp_path):
    check_table(path, tmp_path)


@pytest.mark.parametrize("columns", [80, 100, 119, 120, 128, 129, 160])
def test_table_fits_terminals_of_any_width(tmp_path, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    shutil.copy(DOCS / "reproduction" / "coco" / LEDGER, tmp_path)
    assert report(tmp_path, name="models") == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["SAN", "N-SAN", "G-SAN", "NG-SAN"]
    whole = rows_of(tmp_path / "models.md")
    for row, cells in zip(rows, whole[1:], strict=True):
        # All numbers, or those of the main metric if the terminal is narrow.
        assert {cell.strip() for cell in row} >= {cells[2].strip(), cells[7].strip()}
        assert len(row) == (11 if columns >= 129 else 6)


@pytest.mark.parametrize("lost", [(), (1,)])
def test_p_values_are_compared_when_outputs_are_available(tmp_path, lost):
    documented = tmp_path / "docs"
    add_runs(documented)
    if lost:
        remove_outputs(documented, "G-SAN", *lost)
    assert report(documented) == 0
    table = documented / f"{TABLE.name}.md"
    p_value = next(
        line.split("|")[-3].strip()
        for line in table.read_text().splitlines()
        if line.startswith("| G-SAN")
    )
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    check_table(table.with_suffix(".csv"), tmp_path / "0")
    table.write_text(table.read_text().replace(p_value, "0.4321"))
    with pytest.raises(AssertionError):
        check_table(table.with_suffix(".csv"), tmp_path / "1")
    shutil.rmtree(documented / WRITTEN)
    check_table(table.with_suffix(".csv"), tmp_path / "2")


def test_document_shows_the_tables_of_the_test_splits():
    text = (DOCS / "reproduction.md").read_text()
    shown = [path for path in FOUND if not path.stem.endswith("-val")]
    assert shown
    for path in shown:
        table = path.with_suffix(".md").read_text().splitlines()
        rows = [line for line in table if line.startswith("|")]
        assert "\n".join(rows) in text, path
