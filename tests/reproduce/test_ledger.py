"""The ledger: what is entered is found again, whatever happens to the file's end."""

import dataclasses

import pytest

from ngsan.durable import append_line
from ngsan.reproduce.ledger import LEDGER, Entry, Ledger, Written, run_key


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


WRITTEN = Written(["1", "2"], ["a dog", "ein größerer Hund"], [[90.0], [110.0]])


def test_what_is_entered_is_found_again(tmp_path):
    ledger = Ledger(tmp_path)
    assert len(ledger) == 0
    ledger.add(entry(), {"val": WRITTEN})
    again = Ledger(tmp_path)
    assert "a" * 12 in again
    assert again["a" * 12] == entry()
    assert again.written("a" * 12, "val") == WRITTEN


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_line_that_a_kill_cut_short_is_passed_over_and_then_removed(tmp_path, cut):
    ledger = Ledger(tmp_path)
    ledger.add(entry("a" * 12), {})
    ledger.add(entry("b" * 12), {})
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes()[:-cut])
    after = Ledger(tmp_path)
    assert ("a" * 12 in after, "b" * 12 in after) == (True, cut == 1)
    after.add(entry("c" * 12), {})
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert len(Ledger(tmp_path)) == 2


def test_a_line_that_is_damaged_is_named(tmp_path):
    Ledger(tmp_path).add(entry(), {})
    path = tmp_path / LEDGER
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(ValueError, match=r"ledger\.jsonl:1: damaged"):
        Ledger(tmp_path)


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path):
    Ledger(tmp_path).add(entry(), {})
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"ledger\.jsonl:2: damaged"):
        Ledger(tmp_path)


@pytest.mark.parametrize("place", range(10, 60, 3))
def test_a_flipped_bit_in_texts_is_named(tmp_path, place):
    ledger = Ledger(tmp_path)
    ledger.add(entry(), {"val": WRITTEN})
    path = tmp_path / "written" / f"{entry().key}-val.json.gz"
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"val\.json\.gz: damaged"):
        ledger.written(entry().key, "val")


def test_texts_that_are_lost_or_damaged_are_named(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add(entry(), {"val": WRITTEN})
    with pytest.raises(ValueError, match="test.json.gz: damaged or missing"):
        ledger.written("a" * 12, "test")
    path = tmp_path / "written" / f"{'a' * 12}-val.json.gz"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match="damaged or missing"):
        ledger.written("a" * 12, "val")


def test_keys_differ_for_other_settings_and_not_for_another_order():
    assert run_key({"a": 1, "b": {"c": 2}}) == run_key({"b": {"c": 2}, "a": 1})
    assert run_key({"a": 1}) != run_key({"a": 2})


def test_lines_are_added_whole(tmp_path):
    path = tmp_path / "deep" / "file"
    append_line(path, "one")
    append_line(path, "two")
    assert path.read_text() == "one\ntwo\n"
    path.write_text("one\ntw")
    append_line(path, "three")
    assert path.read_text() == "one\nthree\n"
    assert dataclasses.asdict(WRITTEN)["ids"] == ["1", "2"]
