"""`--rows` chooses which runs to train, but tables show all finished runs."""

import csv
import shutil

import pytest

from ngsan.__main__ import main
from ngsan.data.synthetic.folders import sample_splits, scene_vocabulary, write_scene_folder
from ngsan.reproduce.ledger import LEDGER, Ledger
from tests.reproduce.tiny_ledgers import TABLE, add_runs, report

SMALL = [
    "--seeds=1", "--model.dim=16", "--model.heads=2", "--model.hidden_dim=16", "--model.layers=1",
    "--cross_entropy.epochs=1", "--cross_entropy.batch_size=32", "--runtime.device=cpu",
    "--runtime.threads=1",
]  # fmt: skip


def test_table_shows_all_finished_rows(tmp_path):
    data, to = tmp_path / "scenes", tmp_path / "to"
    scenes = sample_splits({"train": 32, "val": 8}, min_objects=2, max_objects=2, seed=1)
    write_scene_folder(data, scenes, scene_vocabulary())
    line = ["reproduce", TABLE.name, "--data", str(data), "--output", str(to), *SMALL]
    made = []
    for label in ("G-SAN", "SAN"):
        assert main([*line, "--rows", label]) == 0
        made.append(label)
        assert len(Ledger(to)) == len(made)  # no other run
        with (to / f"{TABLE.name}.csv").open() as file:
            assert {row["row"] for row in csv.DictReader(file) if row["value"]} == set(made)
        text = (to / f"{TABLE.name}.md").read_text()
        assert all(f"| {label} |" in text for label in made)
        assert f"{10 - len(made)} runs are not finished" in text
    # All available rows are compared with the first row of the table.
    assert "| G-SAN − SAN | 1 |" in text


def test_report_only_with_rows_raises(tmp_path, capsys):
    add_runs(tmp_path)
    before = (tmp_path / LEDGER).read_bytes()
    assert report(tmp_path, "--rows", "SAN") == 2
    assert capsys.readouterr().err.endswith("shows all finished rows; remove --rows\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [LEDGER, "written"]
    assert (tmp_path / LEDGER).read_bytes() == before


@pytest.mark.parametrize("kind", ["data", "pictures", "another"])
def test_output_in_a_data_folder_raises(tmp_path, capsys, kind):
    data, pictures, another = (tmp_path / name for name in ("data", "pictures", "another"))
    scenes = sample_splits({"train": 8, "val": 8}, min_objects=2, max_objects=2, seed=1)
    write_scene_folder(data, scenes, scene_vocabulary())
    pictures.mkdir()
    shutil.copytree(data, another)
    place = tmp_path / kind / ".." / kind
    before = sorted((tmp_path / kind).rglob("*"))
    words = ["--data", str(data), "--images", str(pictures), "--output", str(place), "--jobs", "0"]
    assert main(["reproduce", TABLE.name, *words]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"ngsan reproduce: --output: {place} holds ")
    assert message.endswith("; pass a folder of its own\n")
    assert sorted((tmp_path / kind).rglob("*")) == before
    # An existing ledger there is used; here the next error is about --jobs.
    (tmp_path / kind / LEDGER).touch()
    assert main(["reproduce", TABLE.name, *words]) == 2
    assert "jobs: 0 must be at least 1" in capsys.readouterr().err
