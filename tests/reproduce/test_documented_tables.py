"""The tables in docs/reproduction are those of the ledgers beside them, and the page shows them."""

import re
import shutil
from pathlib import Path

import pytest

from ngsan.__main__ import main
from ngsan.reproduce.ledger import LEDGER, WRITTEN
from ngsan.reproduce.tables import TABLES
from tests.reproduce.tiny_ledgers import TABLE, add_runs, report

DOCS = Path(__file__).parents[2] / "docs"
FOUND = sorted((DOCS / "reproduction").glob("*/*.csv"))


def blocks_of(path):
    """The tables of a Markdown file, as text, without the paper's own."""
    blocks = path.read_text().split("\n\n")
    return [block.strip() for block in blocks if block.startswith("|  |")]


def check_table(path, folder):
    """Creates a table again in another folder, from the ledger and the runs' outputs."""
    name = path.stem.removesuffix("-val")
    split = ["--split", "val"] if path.stem != name else []
    assert name in TABLES
    config = path.parent / "config.yaml"
    changed = ["--config", str(config)] if config.exists() else []
    shutil.copy(path.parent / LEDGER, folder)
    if (path.parent / WRITTEN).is_dir():
        shutil.copytree(path.parent / WRITTEN, folder / WRITTEN)
    assert (
        main(["reproduce", name, *changed, "--report-only", "--output", str(folder), *split]) == 0
    )
    for ending in (".csv", ".md"):
        again = folder / path.with_suffix(ending).name
        assert again.read_text() == path.with_suffix(ending).read_text()


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_documented_table_equals_that_of_its_ledger(path, tmp_path):
    check_table(path, tmp_path)


@pytest.mark.parametrize("columns", [80, 100, 119, 120, 128, 129, 160])
def test_table_fits_terminals_of_any_width(tmp_path, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    folder = DOCS / "reproduction" / "coco"
    shutil.copy(folder / LEDGER, tmp_path)
    assert report(tmp_path, "--config", str(folder / "config.yaml"), name="models") == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    lines = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    rows = [row for row in lines if row[1].strip()]  # a long label has two lines
    means, differences = blocks_of(tmp_path / "models.md")
    expected = [line.split("|")[1:-1] for line in means.splitlines()[2:]]
    assert len(expected) == 4
    for row, cells in zip(rows[:4], expected, strict=True):
        assert cells[0].strip().startswith(row[0].strip())
        # All numbers, or those of the main metric if the terminal is narrow.
        assert {cell.strip() for cell in row[1:]} >= {cells[2].strip(), cells[7].strip()}
        assert len(row) == (9 if columns >= 113 else 4)
    names = [line.split("|")[1].strip() for line in differences.splitlines()[2:]]
    assert len(names) == 4
    assert all(name.startswith(row[0].strip()) for row, name in zip(rows[4:], names, strict=True))


def test_changed_table_is_found(tmp_path):
    documented = tmp_path / "docs"
    add_runs(documented, seeds=3)
    assert report(documented) == 0
    table = documented / f"{TABLE.name}.md"
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    check_table(table.with_suffix(".csv"), tmp_path / "0")
    p_value = blocks_of(table)[1].splitlines()[-1].split("|")[-2].strip()
    table.write_text(table.read_text().replace(p_value, "0.4321"))
    with pytest.raises(AssertionError):
        check_table(table.with_suffix(".csv"), tmp_path / "1")


def test_documents_show_or_link_all_tables_of_the_test_splits():
    shown = (DOCS / "reproduction.md").read_text()
    linked = (DOCS / "reproduction-protocol.md").read_text()
    paths = [path for path in FOUND if not path.stem.endswith("-val")]
    assert paths
    for path in paths:
        link = f"({path.with_suffix('.md').relative_to(DOCS)})"
        blocks = blocks_of(path.with_suffix(".md"))
        assert link in linked or all(block in shown for block in blocks), path


def test_linked_tables_exist():
    for page in ("reproduction.md", "reproduction-protocol.md"):
        for link in re.findall(r"\((reproduction/[^)#]*)\)", (DOCS / page).read_text()):
            assert (DOCS / link).exists(), link


def test_differences_in_the_text_are_those_of_the_tables():
    """The intervals of the short table of Tables 1 to 4 and 6 occur in the tables themselves."""
    rows = [
        line.split("|")[3].strip()
        for line in (DOCS / "reproduction.md").read_text().splitlines()
        if re.match(r"\| [12346] \|", line)
    ]
    names = ("layers", "norms", "query-key", "geometry")
    files = [f"{name}-cross-entropy.md" for name in names] + ["models.md"]
    found = set()
    for name in files:
        _, differences = blocks_of(DOCS / "reproduction" / "coco" / name)
        for line in differences.splitlines()[2:]:
            mean, interval = (cell.strip() for cell in line.split("|")[3:5])
            found.add(f"{mean} ({interval})")
    assert len(rows) == 17
    assert set(rows) <= found
