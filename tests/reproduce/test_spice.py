"""`--spice` measures what finished runs wrote once more, and loses nothing of the ledger."""

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
from tests.reproduce.tiny_ledgers import TABLE, enter, report


class FirstWord:
    """Replaces SPICE, whose parser is not installed: does a reference begin with the same word?"""

    names = ("SPICE",)
    signature = MappingProxyType({"spice": "stand-in"})
    asked = 0

    def statistics(self, captions):
        type(self).asked += 1
        pairs = zip(captions.hypotheses, captions.references, strict=True)
        same = [any(words[:1] == one[:1] for one in references) for words, references in pairs]
        return np.stack([np.array(same, dtype=float), np.ones(len(same))], axis=1)

    def score(self, totals):
        return totals[..., :-1] / totals[..., -1:]


@pytest.fixture
def spice(monkeypatch):
    """The stand-in, which counts how often it is asked."""
    kind = type("Counted", (FirstWord,), {"asked": 0})
    for module in ("metrics.spice", "cli.reproduce"):
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
    """A command line that makes two runs of SAN."""
    line = ["reproduce", TABLE.name, "--data", str(data), "--output", str(to), *SMALL]
    return [*line, "--rows=SAN", "--seeds=2", *more]


def by_hand(data, to, key, split):
    """The share of images in percent of which a reference begins like the caption."""
    written = json.loads(gzip.decompress((to / WRITTEN / f"{key}-{split}.json.gz").read_bytes()))
    references = {record.id: record.captions for record in read_captions(data)}
    same = [
        any(text.split()[:1] == one.lower().split()[:1] for one in references[image])
        for image, text in zip(written["ids"], written["texts"], strict=True)
    ]
    return round(100 * sum(same) / len(same), 4)


def table_values(to, name=TABLE.name):
    with (to / f"{name}.csv").open() as file:
        return [float(row["value"]) for row in csv.DictReader(file) if row["metric"] == "SPICE"]


def test_runs_get_their_spice_and_keep_all_else(tmp_path, data, spice):
    assert main(words_of(data, tmp_path)) == 0
    assert spice.asked == 0  # nobody waits for it who has not asked
    assert "SPICE" not in (tmp_path / f"{TABLE.name}.md").read_text()
    before = {entry.key: entry for entry in Ledger(tmp_path)}
    assert main([*words_of(data, tmp_path), "--spice"]) == 0
    after = {entry.key: entry for entry in Ledger(tmp_path)}
    assert list(after) == list(before)
    assert len((tmp_path / LEDGER).read_text().splitlines()) == len(before) == 2
    for key, entry in after.items():
        assert entry.metrics["test"].pop("SPICE") == by_hand(data, tmp_path, key, "test")
        assert entry == before[key]  # of the other split, too, which the table does not show
    assert "| SPICE |" in (tmp_path / f"{TABLE.name}.md").read_text()
    assert table_values(tmp_path) == [by_hand(data, tmp_path, key, "test") for key in after]
    # A report asks only of what is not known.
    line = [word for word in words_of(data, tmp_path) if word != "--rows=SAN"]
    assert main([*line, "--report-only", "--spice"]) == 0
    assert spice.asked == 2
    assert main([*line, "--report-only", "--spice", "--split=val"]) == 0
    assert spice.asked == 4
    assert table_values(tmp_path, f"{TABLE.name}-val") == [
        by_hand(data, tmp_path, key, "val") for key in after
    ]


def test_spice_goes_on_where_it_was_stopped(tmp_path, data, spice, monkeypatch, capsys):
    once = spice.statistics

    def stop_at_second(self, captions):
        if spice.asked == 1:
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
    assert spice.asked == 2
    assert len(table_values(tmp_path)) == 2


def test_runs_whose_captions_are_lost_are_named(tmp_path, data, spice, capsys):
    assert main(words_of(data, tmp_path)) == 0
    first, second = Ledger(tmp_path)
    (tmp_path / WRITTEN / f"{first.key}-test.json.gz").unlink()
    assert main([*words_of(data, tmp_path), "--spice"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    told = f"table {TABLE.name} has no SPICE: the captions of SAN (seed 0) were not kept"
    assert told in said
    assert "SPICE" not in (tmp_path / f"{TABLE.name}.md").read_text()
    assert "SPICE" in Ledger(tmp_path)[second.key].metrics["test"]


def test_what_spice_lacks_is_told_before_runs_are_made(tmp_path, data, monkeypatch, capsys):
    monkeypatch.setenv("NGSAN_SPICE_LIB", str(tmp_path / "empty"))
    to = tmp_path / "to"
    assert main([*words_of(data, to), "--spice"]) == 2
    assert f"to {tmp_path / 'empty'}" in capsys.readouterr().err
    assert not to.exists()


def test_spice_is_of_captions_and_needs_those_of_people(tmp_path, spice, capsys):
    line = ["--data", str(tmp_path), "--output", str(tmp_path / "to"), "--spice"]
    assert main(["reproduce", "translation", *line]) == 2
    assert "--spice applies to captions, and translation has none" in capsys.readouterr().err
    enter(tmp_path / "to")
    assert report(tmp_path / "to", "--spice") == 2
    assert "--spice needs reference captions; pass --data DIR" in capsys.readouterr().err
    assert spice.asked == 0


def test_a_report_of_nothing_makes_nothing(tmp_path, data, spice, capsys):
    to = tmp_path / "to"
    line = ["reproduce", TABLE.name, "--data", str(data), "--output", str(to), *SMALL]
    assert main([*line, "--report-only", "--spice"]) == 2
    assert f"no run of table {TABLE.name} is finished" in capsys.readouterr().err
    assert not to.exists()
