"""The ledger: entries round-trip, and a damaged end of the file is handled."""

import dataclasses
import json

import pytest

from ngsan.__main__ import main
from ngsan.atomic_io import append_line
from ngsan.reproduce.ledger import LEDGER, WRITTEN, Entry, Ledger, Written, run_key
from tests.kills import kills


def entry(key="a" * 12, seed=0, cider=100.0):
    return Entry(
        key=key,
        model={"layers": 1},
        phase="cross-entropy",
        seed=seed,
        settings={"epochs": 2},
        data={"train": "x"},
        parameters=10,
        metrics={"val": {"CIDEr": cider}},
        curve=[1.0, 2.0],
        seconds=1.5,
        device="CPU",
        version="0",
    )


OUTPUTS = Written(["1", "2"], ["a dog", "ein größerer Hund"], [[90.0], [110.0]])


def test_entries_round_trip(tmp_path):
    ledger = Ledger(tmp_path)
    assert len(ledger) == 0
    ledger.add(entry(), {"val": OUTPUTS})
    again = Ledger(tmp_path)
    assert "a" * 12 in again
    assert again["a" * 12] == entry()
    assert again.written("a" * 12, "val") == OUTPUTS


@pytest.mark.parametrize("cut", [2, 5, 100])
def test_incomplete_last_line_is_skipped_and_then_removed(tmp_path, cut):
    ledger = Ledger(tmp_path)
    ledger.add(entry("a" * 12), {})
    ledger.add(entry("b" * 12), {})
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes()[:-cut])
    after = Ledger(tmp_path)
    assert ("a" * 12 in after, "b" * 12 in after) == (True, False)
    after.add(entry("c" * 12), {})
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert len(Ledger(tmp_path)) == 2


def test_complete_last_line_without_line_end_is_kept(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add(entry("a" * 12), {})
    ledger.add(entry("b" * 12), {})
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes()[:-1])
    read = [found.key for found in Ledger(tmp_path)]
    assert len(read) == 2
    for _ in kills(lambda: Ledger(tmp_path).add(entry("c" * 12), {})):
        assert [found.key for found in Ledger(tmp_path)][:2] == read
    assert len(Ledger(tmp_path)) == 3
    keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
    assert list(dict.fromkeys(keys)) == [*read, "c" * 12]


def test_invalid_last_line_raises(tmp_path):
    (tmp_path / LEDGER).write_text('{"key": "a"}')
    with pytest.raises(ValueError, match=r"ledger\.jsonl:1: damaged"):
        Ledger(tmp_path)


def test_damaged_line_error_names_it(tmp_path):
    Ledger(tmp_path).add(entry(), {})
    path = tmp_path / LEDGER
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(ValueError, match=r"ledger\.jsonl:1: damaged"):
        Ledger(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": None}, "metrics: None is not of type dict"),
        ({"metrics": {"val": 3}}, "metrics.val: 3 is not of type dict"),
        ({"metrics": {"val": {"CIDEr": "high"}}}, "metrics.val.CIDEr: 'high' is not of type float"),
        ({"seed": "0"}, "seed: '0' is not of type int"),
        ({"seed": True}, "seed: True is not of type int"),
        ({"curve": [1.0, None]}, r"curve.1: None is not of type float"),
        ({"curve": {}}, "curve: {} is not of type list"),
        ({"model": []}, r"model: \[\] is not of type dict"),
        ({"settings": "x" * 99}, r"settings: 'x+\.\.\. is not of type dict"),
        ({"data": {"train": 1}}, "data.train: 1 is not of type str"),
        ({"key": 1}, "key: 1 is not of type str"),
        ({"content": None}, "content: None is not of type dict"),
    ],
)
def test_field_of_wrong_type_raises(tmp_path, changes, message):
    Ledger(tmp_path).add(entry(), {})
    fields = {**dataclasses.asdict(entry("b" * 12)), **changes}
    with (tmp_path / LEDGER).open("a") as file:
        file.write(json.dumps(fields) + "\n")
    with pytest.raises(ValueError, match=rf"ledger\.jsonl:2: damaged: {message}"):
        Ledger(tmp_path)


def test_integers_are_accepted_as_scores(tmp_path):
    (tmp_path / LEDGER).write_text(json.dumps(dataclasses.asdict(entry(cider=100))) + "\n")
    assert Ledger(tmp_path)["a" * 12].metrics == {"val": {"CIDEr": 100}}


def test_deep_nesting_raises(tmp_path):
    (tmp_path / LEDGER).write_text("[" * 100_000)
    assert len(Ledger(tmp_path)) == 0  # an interrupted write may have left it
    (tmp_path / LEDGER).write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match=r"ledger\.jsonl:1: damaged"):
        Ledger(tmp_path)


@pytest.mark.parametrize("name", [LEDGER, WRITTEN])
def test_wrong_file_types_raise_before_runs_start(tmp_path, capsys, name):
    place = tmp_path / "to" / name
    place.parent.mkdir()
    if name == LEDGER:
        place.mkdir()
    else:
        place.touch()
    with pytest.raises(ValueError, match=rf"{place} is not a (file|folder)"):
        Ledger(tmp_path / "to")
    line = ["reproduce", "layers", "--data", str(tmp_path), "--output", str(tmp_path / "to")]
    assert main(line) == 2
    assert f"{place} is no" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([[90.0]], "2 ids with 1 scores"),
        ([[90.0], [1.0, 2.0]], "rows with different numbers of scores"),
    ],
)
def test_scores_of_wrong_shape_raise(tmp_path, scores, message):
    ledger = Ledger(tmp_path)
    ledger.add(entry(), {"val": Written(["1", "2"], [], scores)})
    with pytest.raises(ValueError, match=rf"val\.json\.gz: damaged or missing: {message}"):
        ledger.written(entry().key, "val")


def test_invalid_utf8_error_names_the_line(tmp_path):
    Ledger(tmp_path).add(entry(), {})
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"ledger\.jsonl:2: damaged"):
        Ledger(tmp_path)


@pytest.mark.parametrize("place", range(10, 60, 3))
def test_flipped_bit_in_outputs_raises(tmp_path, place):
    ledger = Ledger(tmp_path)
    ledger.add(entry(), {"val": OUTPUTS})
    path = tmp_path / "written" / f"{entry().key}-val.json.gz"
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"val\.json\.gz: damaged"):
        ledger.written(entry().key, "val")


def test_missing_or_damaged_outputs_raise(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add(entry(), {"val": OUTPUTS})
    with pytest.raises(ValueError, match="test.json.gz: damaged or missing"):
        ledger.written("a" * 12, "test")
    path = tmp_path / "written" / f"{'a' * 12}-val.json.gz"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match="damaged or missing"):
        ledger.written("a" * 12, "val")


def test_keys_depend_on_settings_but_not_on_their_order():
    assert run_key({"a": 1, "b": {"c": 2}}) == run_key({"b": {"c": 2}, "a": 1})
    assert run_key({"a": 1}) != run_key({"a": 2})


def test_append_line_writes_whole_lines(tmp_path):
    path = tmp_path / "deep" / "file"
    append_line(path, "one")
    append_line(path, "two")
    assert path.read_text() == "one\ntwo\n"
    path.write_text("one\ntw")
    append_line(path, "three")
    assert path.read_text() == "one\nthree\n"
    assert dataclasses.asdict(OUTPUTS)["ids"] == ["1", "2"]
