"""`--spice` scores the captions of finished runs and changes nothing else in the ledger."""

import csv
import gzip
import json
from types import MappingProxyType

import numpy as np
import pytest

from ngsan.__main__ import main
from ngsan.data.captions import read_captions
from ngsan.data.synthetic.folders import sample_splits, scene_vocabulary, write_scene_folder
from ngsan.reproduce.ledger import LEDGER, WRITTEN, Ledger
from tests.reproduce.test_rows import SMALL
from tests.reproduce.tiny_ledgers import TABLE, add_runs, report


class FirstWord:
    """Replaces SPICE: whether a reference starts with the same word."""

    names = ("SPICE",)
    signature = MappingProxyType({"spice": "fake"})
    calls = 0

    def __init__(self, *, jars=None):
        self.jars = jars

    def statistics(self, captions):
        type(self).calls += 1
        pairs = zip(captions.hypotheses, captions.references, strict=True)
        same = [any(words[:1] == one[:1] for one in references) for words, references in pairs]
        return np.stack([np.array(same, dtype=float), np.ones(len(same))], axis=1)

    def score(self, totals):
        return totals[..., :-1] / totals[..., -1:]


@pytest.fixture
def spice(monkeypatch):
    """The fake metric, which counts its calls."""
    kind = type("Counted", (FirstWord,), {"calls": 0})
    for module in ("cli.reproduce", "metrics.spice"):  # the importer first
        monkeypatch.setattr(f"ngsan.{module}.Spice", kind)
    return kind


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    scenes = sample_splits(
        {"train": 32, "val": 8, "test": 12}, min_objects=2, max_objects=2, seed=1
    )
    write_scene_folder(folder, scenes, scene_vocabulary())
    return folder


def words_of(data, to, *more):
    """A command line for two runs of SAN."""
    line = ["reproduce", TABLE.name, "--data", str(data), "--output", str(to), *SMALL]
    return [*line, "--rows=SAN", "--seeds=2", *more]


def by_hand(data, to, key, split):
    """The percentage of images with a reference that starts like the caption."""
    written = json.loads(gzip.decompress((to / WRITTEN / f"{key}-{split}.json.gz").read_bytes()))
    references = {record.id: record.captions for record in read_captions(data)}
    same = [
        any(text.split()[:1] == one.lower().split()[:1] for one in references[image])
        for image, text in zip(written["ids"], written["texts"], strict=True)
    ]
    return round(100 * sum(same) / len(same), 4)


def table_values(to, name=TABLE.name):
    with (to / f"{name}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "SPICE"]
    return [float(row["value"]) for row in rows if row["value"]]  # others have only the paper's


def header_of(to):
    """The columns of our table; the paper's own, below it, always has SPICE."""
    lines = (to / f"{TABLE.name}.md").read_text().splitlines()
    return [cell.strip() for cell in next(line for line in lines if line[:1] == "|").split("|")]


def test_spice_is_added_to_finished_runs(tmp_path, data, spice):
    assert main(words_of(data, tmp_path)) == 0
    assert spice.calls == 0  # it is computed only on request
    assert "SPICE" not in header_of(tmp_path)
    before = {entry.key: entry for entry in Ledger(tmp_path)}
    assert main([*words_of(data, tmp_path), "--spice"]) == 0
    after = {entry.key: entry for entry in Ledger(tmp_path)}
    assert list(after) == list(before)
    assert len((tmp_path / LEDGER).read_text().splitlines()) == len(before) == 2
    for key, entry in after.items():
        assert entry.metrics["test"].pop("SPICE") == by_hand(data, tmp_path, key, "test")
        assert entry == before[key]  # also on the other split
    assert "SPICE" in header_of(tmp_path)
    assert table_values(tmp_path) == [by_hand(data, tmp_path, key, "test") for key in after]
    # A report computes only missing scores.
    line = [word for word in words_of(data, tmp_path) if word != "--rows=SAN"]
    assert main([*line, "--report-only", "--spice"]) == 0
    assert spice.calls == 2
    assert main([*line, "--report-only", "--spice", "--split=val"]) == 0
    assert spice.calls == 4
    assert table_values(tmp_path, f"{TABLE.name}-val") == [
        by_hand(data, tmp_path, key, "val") for key in after
    ]


def test_interrupted_spice_resumes(tmp_path, data, spice, monkeypatch, capsys):
    once = spice.statistics

    def stop_at_second(self, captions):
        if spice.calls == 1:
            raise KeyboardInterrupt
        return once(self, captions)

    monkeypatch.setattr(spice, "statistics", stop_at_second)
    with pytest.raises(SystemExit) as ended:
        main([*words_of(data, tmp_path), "--spice"])
    assert ended.value.code == 130
    assert "stopped by SIGINT; the same command resumes" in capsys.readouterr().err
    assert ["SPICE" in entry.metrics["test"] for entry in Ledger(tmp_path)] == [True, False]
    monkeypatch.setattr(spice, "statistics", once)
    assert main([*words_of(data, tmp_path), "--spice"]) == 0
    assert spice.calls == 2
    assert len(table_values(tmp_path)) == 2


def test_missing_captions_are_reported(tmp_path, data, spice, capsys):
    assert main(words_of(data, tmp_path)) == 0
    first, second = Ledger(tmp_path)
    (tmp_path / WRITTEN / f"{first.key}-test.json.gz").unlink()
    assert main([*words_of(data, tmp_path), "--spice"]) == 0
    printed = " ".join(capsys.readouterr().err.split())
    expected = f"table {TABLE.name} has no SPICE: the captions of SAN (seed 0) were not kept"
    assert expected in printed
    assert "SPICE" not in header_of(tmp_path)
    assert "SPICE" in Ledger(tmp_path)[second.key].metrics["test"]


def test_missing_spice_files_raise_before_runs_start(tmp_path, data, monkeypatch, capsys):
    monkeypatch.delenv("NGSAN_SPICE_LIB", raising=False)
    to = tmp_path / "to"
    assert main([*words_of(data, to), "--spice-jars", str(tmp_path / "empty")]) == 2
    assert f"to {tmp_path / 'empty'}" in capsys.readouterr().err
    assert not to.exists()


def test_spice_needs_captions_and_references(tmp_path, spice, capsys):
    line = ["--data", str(tmp_path), "--output", str(tmp_path / "to"), "--spice"]
    assert main(["reproduce", "translation", *line]) == 2
    assert "--spice applies to captions, and translation has none" in capsys.readouterr().err
    add_runs(tmp_path / "to")
    assert report(tmp_path / "to", "--spice") == 2
    assert "--spice needs reference captions; pass --data DIR" in capsys.readouterr().err
    assert spice.calls == 0


def test_report_without_runs_writes_nothing(tmp_path, data, spice, capsys):
    to = tmp_path / "to"
    line = ["reproduce", TABLE.name, "--data", str(data), "--output", str(to), *SMALL]
    assert main([*line, "--report-only", "--spice"]) == 2
    assert f"no run of table {TABLE.name} is finished" in capsys.readouterr().err
    assert not to.exists()
