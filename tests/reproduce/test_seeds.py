"""`--seeds` chooses which runs to train, but tables show all finished runs."""

import csv

from ngsan.__main__ import main
from ngsan.data.synthetic.folders import sample_splits, scene_vocabulary, write_scene_folder
from ngsan.reproduce.ledger import Ledger
from ngsan.reproduce.tables import TABLES
from tests.reproduce.test_rows import SMALL
from tests.reproduce.tiny_ledgers import CIDER, TABLE, add_runs, report, table_text


def seeds_by_row(folder):
    """The seeds of each row of the CSV."""
    found = {}
    with (folder / f"{TABLE.name}.csv").open() as file:
        for row in csv.DictReader(file):
            if row["metric"] == "CIDEr" and row["value"]:
                found.setdefault(row["row"], []).append(int(row["seed"]))
    return found


def files_of(folder):
    """The content of the table as Markdown, CSV and figure."""
    return [(folder / f"{TABLE.name}.{ending}").read_bytes() for ending in ("md", "csv", "png")]


def test_table_shows_all_finished_seeds(tmp_path):
    data, to = tmp_path / "scenes", tmp_path / "to"
    scenes = sample_splits({"train": 32, "val": 8}, min_objects=2, max_objects=2, seed=1)
    write_scene_folder(data, scenes, scene_vocabulary())
    line = ["reproduce", TABLE.name, "--data", str(data), "--output", str(to), *SMALL]
    assert main([*line, "--rows", "SAN", "--seeds=2"]) == 0
    assert main([*line, "--rows", "SAN", "N-SAN", "--seeds=1"]) == 0
    assert len(Ledger(to)) == 3  # no second run of N-SAN
    assert seeds_by_row(to) == {"SAN": [0, 1], "N-SAN": [0]}
    assert "17 runs are not finished." in table_text(to)  # of ten rows with the two seeds
    before = files_of(to)
    for seeds in (1, 2):
        assert main([*line, "--report-only", f"--seeds={seeds}"]) == 0
        assert files_of(to) == before


def test_report_shows_all_finished_seeds(tmp_path, capsys):
    add_runs(tmp_path, seeds=3)
    assert report(tmp_path) == 0
    whole = files_of(tmp_path), capsys.readouterr().out
    assert seeds_by_row(tmp_path) == {label: [0, 1, 2] for label in CIDER}
    assert "21 runs are not finished." in table_text(tmp_path)
    assert report(tmp_path, "--seeds=1") == 0
    assert (files_of(tmp_path), capsys.readouterr().out) == whole
    assert report(tmp_path, "--seeds=4") == 0
    assert seeds_by_row(tmp_path) == {label: [0, 1, 2] for label in CIDER}
    assert "31 runs are not finished." in table_text(tmp_path)


def test_seeds_of_another_table_are_not_missing(tmp_path):
    add_runs(tmp_path, seeds=1)
    add_runs(tmp_path, table=TABLES["curve"], rows=("SAN", "N-SAN"), seeds=3)
    assert report(tmp_path, "--seeds=1") == 0
    assert seeds_by_row(tmp_path) == {label: [0] for label in CIDER}
    assert "7 runs are not finished." in table_text(tmp_path)
