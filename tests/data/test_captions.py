"""Captions of a dataset folder, against the json module, and with damaged files."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ngsan.data.captions import CAPTIONS, ImageCaptions, read_captions, write_captions
from ngsan.data.problems import Problems, caption_text
from ngsan.data.text_files import numbered_lines

GOOD = {"id": "7", "split": "train", "captions": ["A dog."]}
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
records = st.builds(
    ImageCaptions,
    id=st.integers(0, 10**12).map(str) | st.from_regex(r"[a-z][\w-]{0,9}", fullmatch=True),
    split=st.sampled_from(["train", "val", "test"]),
    captions=st.lists(texts, min_size=1, max_size=4).map(tuple),
    file=st.none() | texts,
    size=st.none() | st.tuples(st.integers(1, 9999), st.integers(1, 9999)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records, min_size=1, max_size=6, unique_by=lambda record: record.id))
def test_captions_round_trip_as_json_lines(tmp_path: Path, wanted) -> None:
    counts = write_captions(tmp_path, wanted, overwrite=True)
    assert list(read_captions(tmp_path)) == wanted
    lines = (tmp_path / CAPTIONS).read_bytes().decode("utf-8").split("\n")
    assert lines.pop() == ""
    for record, line in zip(wanted, lines, strict=True):
        entry = {"id": record.id, "split": record.split, "captions": list(record.captions)}
        if record.file is not None:
            entry["file"] = record.file
        if record.size is not None:
            entry["width"], entry["height"] = record.size
        assert json.loads(line) == entry
    for split in ("train", "val", "test"):
        own = [record for record in wanted if record.split == split]
        assert counts.get(split, (0, 0)) == (len(own), sum(len(r.captions) for r in own))


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    old = ImageCaptions("1", "train", ("Old.",))
    write_captions(tmp_path, [old])

    def failing():
        yield ImageCaptions("2", "train", ("New.",))
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="exists already"):
        write_captions(tmp_path, [old])
    for bad, message in (
        (failing(), "source broke"),
        ([old, old], "image 1 occurs twice"),
        ([], "no image"),
    ):
        with pytest.raises(ValueError, match=message):
            write_captions(tmp_path, bad, overwrite=True)
        assert list(read_captions(tmp_path)) == [old]
        assert os.listdir(tmp_path) == [CAPTIONS]  # noqa: PTH208


def test_killed_write_does_not_block_the_next(tmp_path: Path) -> None:
    (tmp_path / (CAPTIONS + ".partial")).write_text('{"id": "9", "spl')
    with pytest.raises(ValueError, match="import captions first"):
        read_captions(tmp_path)
    record = ImageCaptions("1", "val", ("New.",))
    write_captions(tmp_path, [record])
    assert list(read_captions(tmp_path / CAPTIONS)) == [record]


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = tmp_path / CAPTIONS
    path.write_text(json.dumps(GOOD) + "\nbroken\n")
    reader = read_captions(tmp_path)
    assert next(reader).id == "7"
    with pytest.raises(ValueError, match=r"captions\.jsonl:2: "):
        next(reader)


def test_ids_are_canonical(tmp_path: Path) -> None:
    lines = [{**GOOD, "id": 391895}, {**GOOD, "id": "000000000042"}]
    (tmp_path / CAPTIONS).write_text("\r\n".join(map(json.dumps, lines)) + "\r\n\r\n")
    assert [record.id for record in read_captions(tmp_path)] == ["391895", "42"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "8", "split": "train", "captions": ["A d', "Unterminated string"),
        (b"[]", "expected a JSON object"),
        (b'{"id": "8", "captions": ["A dog."]}', "split missing"),
        (b'{"id": "8", "split": "training", "captions": ["A dog."]}', "'training' is not one of"),
        (b'{"id": "8", "split": "val", "captions": []}', "at least one"),
        (b'{"id": "8", "split": "val", "captions": "A dog."}', "must be a list"),
        (b'{"id": "8", "split": "val", "captions": [" "]}', "not a sentence"),
        (b'{"id": "8", "split": "val", "captions": [8]}', "8 is not a sentence"),
        (b'{"id": 8.5, "split": "val", "captions": ["A dog."]}', "8.5"),
        (b'{"id": " ", "split": "val", "captions": ["A dog."]}', "cannot be empty"),
        (b'{"id": "007", "split": "val", "captions": ["A dog."]}', "image 7 is already in line 1"),
        (b'{"id": "8", "split": "val", "captions": ["A dog."], "width": 5}', "width, height"),
        (
            b'{"id": "8", "split": "val", "captions": ["A dog."], "width": 0, "height": 9}',
            "above 0",
        ),
        (b'{"id": "8", "split": "val", "captions": ["A dog."], "file": 3}', "3 is not a file name"),
        (b'{"id": "8", "split": "val", "captions": ["A \\ud800."]}', "surrogate"),
        (
            b'{"id": "8", "split": "val", "captions": ["A d\xf6g."]}',
            "invalid UTF-8: byte 46 of the line",
        ),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_line_error_names_it(tmp_path: Path, line: bytes, message: str) -> None:
    content = json.dumps(GOOD).encode() + b"\n" + line + b"\n"
    (tmp_path / CAPTIONS).write_bytes(content)
    with pytest.raises(ValueError, match=rf"captions\.jsonl:2: .*{message}"):
        list(read_captions(tmp_path))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_captions_lose_only_extra_white_space(text: str) -> None:
    problems = Problems(skip=True)
    cleaned = caption_text(text, problems, "here")
    if not text.strip():
        assert cleaned is None
        assert problems.counts == {"empty caption": 1}
        return
    assert cleaned is not None
    # A run of white space becomes one space, and is removed at the ends.
    wanted = ""
    for letter in text.strip():
        wanted += letter if not letter.isspace() else "" if wanted.endswith(" ") else " "
    assert cleaned == wanted


def test_numbered_lines_report_number_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\nth\xc3\xa9\xe2\x80\xa8re\nb\xe9d\nlast")
    problems = Problems(skip=True)
    lines = list(numbered_lines(path, problems))
    assert [(line.number, text) for line, text in lines] == [
        (1, "one"),
        (2, ""),
        (3, "thé\u2028re"),
        (5, "last"),
    ]
    assert [line.ended for line, _ in lines] == [True, True, True, False]
    assert [path.read_bytes()[line.offset :][:2] for line, _ in lines[1:]] == [b"\nt", b"th", b"la"]
    assert problems.examples["invalid UTF-8"] == [
        f"{path}:4: byte 2 of the line: invalid continuation byte"
    ]
    path.write_bytes(path.read_bytes() + b"\xc3")
    with pytest.raises(ValueError, match="lines.txt:5: the file ends too early"):
        list(numbered_lines(path, problems))
    path.write_text("one", encoding="utf-16")
    with pytest.raises(ValueError, match="UTF-16"):
        list(numbered_lines(path))
