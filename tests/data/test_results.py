"""Result and reference files, written here by plain code."""

import csv
import json
import re
import zipfile

import pytest

from ngsan.data.captions import ImageCaptions, write_captions
from ngsan.data.results import (
    IMAGES,
    check_submission,
    read_image_ids,
    read_references,
    read_results,
    write_results,
)

CAPTIONS = {
    "391895": "A man, on a bike.",
    "22": "  two\tspaces \n and a line ",
    "dog": "",
    "é": "ñ\u00a0x",
}


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def entries(captions):
    return [{"image_id": name, "caption": text} for name, text in captions.items()]


def as_lines(items):
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


@pytest.fixture(params=["list", "list by line", "marked", "lines", "lines in .json", "csv", "tsv"])
def results(request, tmp_path):
    """The same captions in each format."""
    items = entries(CAPTIONS)
    if request.param == "list":
        return write(tmp_path / "r.json", items)
    if request.param == "list by line":
        return write(tmp_path / "r.json", "[\n" + ",\n".join(map(json.dumps, items)) + "\n]\n")
    if request.param == "marked":
        return write(tmp_path / "r.json", "\ufeff" + json.dumps(items))
    if request.param == "lines":
        return write(tmp_path / "r.jsonl", as_lines(items))
    if request.param == "lines in .json":
        return write(tmp_path / "r.json", "\n" + as_lines(items))
    path = tmp_path / f"r.{request.param}"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, delimiter="," if request.param == "csv" else "\t")
        table.writerow(["Score", "image_id", "Caption"])
        table.writerows([1, name, text] for name, text in CAPTIONS.items())
    return path


def test_captions_are_read_unchanged_in_order(results):
    assert list(read_results(results).items()) == list(CAPTIONS.items())


@pytest.mark.parametrize(
    ("entry", "identity"),
    [
        ({"image_id": 7, "id": 1}, "7"),
        ({"id": "007"}, "7"),
        ({"image": "photos/COCO_val2014_000000000007.jpg"}, "7"),
        ({"file_name": "000000000007.jpg", "id": 3}, "7"),
        ({"filename": "b.png"}, "b"),
    ],
)
def test_image_keys_and_names(tmp_path, entry, identity):
    path = write(tmp_path / "r.json", [{**entry, "caption": "x"}])
    assert read_results(path) == {identity: "x"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.json", "", "is empty"),
        ("r.json", " \n\n", "is empty"),
        ("r.jsonl", "", "is empty"),
        ("r.csv", "", "is empty"),
        ("r.json", "[]", "no captions"),
        ("r.csv", "image_id,caption\n", "no captions"),
        ("r.json", '{"images": [], "annotations": []}', "is a JSON object"),
        ("r.json", '[{"image_id": 1, "caption": "a"}', "r.json: byte 32: .*ends too early"),
        ("r.json", '[{"image_id": 1, "capt', "ends too early"),
        ("r.json", '[{"image_id": 1, "caption": "a"}] x', "trailing garbage"),
        (
            "r.jsonl",
            '{"image_id": 1, "caption": "a"}\n{"image',
            "r.jsonl:2: the file ends too early",
        ),
        ("r.jsonl", '{"image_id": 1, "caption": "a"}\nx\n', "r.jsonl:2: broken JSON"),
        ("r.jsonl", '["a"]\n', "r.jsonl:1: wrong type: expected an object"),
        ("r.json", "[3]", "entry 1: wrong type: expected an object, not 3"),
        ("r.json", '[{"image_id": 1}]', "entry 1 .image 1.: missing key: there is no 'caption'"),
        ("r.json", '[{"caption": "a"}]', "entry 1: missing key: there is no 'image_id' or"),
        ("r.json", '[{"image_id": 1, "caption": 3}]', "entry 1 .image 1.: .*a string, not 3"),
        ("r.json", '[{"image_id": 1, "caption": null}]', "not None"),
        ("r.json", '[{"image_id": 1, "caption": ["a"]}]', "a string, not"),
        ("r.json", '[{"image_id": 1.5, "caption": "a"}]', "entry 1: wrong id"),
        ("r.json", '[{"image_id": true, "caption": "a"}]', "entry 1: wrong id"),
        ("r.json", '[{"image_id": "", "caption": "a"}]', "entry 1: wrong id"),
        ("r.json", '[{"image_id": 1, "caption": "\\ud800"}]', "lone surrogate"),
        ("r.csv", "name,text\na,b\n", "must name the columns 'image_id' and 'caption'"),
        ("r.csv", "image_id,caption\n1,a,b\n", "r.csv:2: wrong number of fields"),
        ("r.csv", 'image_id,caption\n1,"a\n', "never closed"),
        ("r.csv", "image_id,caption,caption\n1,a,b\n", "two columns are named 'caption'"),
    ],
)
def test_invalid_results_raise(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        read_results(write(tmp_path / name, text))


@pytest.mark.parametrize("name", ["r.json", "r.jsonl", "r.csv"])
def test_invalid_utf8_raises(tmp_path, name):
    start = b"image_id,caption\n1,a \xff\n" if name == "r.csv" else b'{"image_id": 1, "a": "\xff"}'
    path = tmp_path / name
    path.write_bytes(b"[" + start + b"]" if name == "r.json" else start + b"\n")
    with pytest.raises(ValueError, match="invalid UTF-8"):
        read_results(path)
    path.write_bytes("[]\n".encode("utf-16"))
    with pytest.raises(ValueError, match="UTF-16|UTF-8"):
        read_results(path)


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("r.json", entries({"1": "a", "2": "b", "01.jpg": "c"}), ("entry 3", "entry 1")),
        ("r.jsonl", as_lines(entries({"1": "a", "01.jpg": "c"})), ("r.jsonl:2", "r.jsonl:1")),
        ("r.csv", "image,caption\n5,a\n6,b\n5,a\n", ("r.csv:4", "r.csv:2")),
    ],
)
def test_duplicate_image_error_names_both_places(tmp_path, name, text, places):
    with pytest.raises(ValueError, match=f"{places[0]}: image .* already, at .*{places[1]}"):
        read_results(write(tmp_path / name, text))


def test_missing_file_and_folder_raise(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        read_results(tmp_path / "none.json")
    with pytest.raises(ValueError, match="is a folder"):
        read_results(tmp_path)


COCO = {
    "info": {"year": 2014},
    "images": [{"id": 3}, {"id": 1}, {"id": 2}, {"id": 9}],
    "annotations": [
        {"id": 10, "image_id": 1, "caption": "one"},
        {"id": 11, "image_id": 2, "caption": ""},
        {"id": 12, "image_id": 3, "caption": "three\n"},
        {"id": 13, "image_id": 1, "caption": "one again"},
        {"id": 14, "image_id": 1, "caption": "one"},
    ],
}
EXPECTED = {"3": ["three\n"], "1": ["one", "one again", "one"], "2": [""]}


@pytest.mark.parametrize("indent", [None, 2])
def test_coco_references_in_the_order_of_its_images(tmp_path, indent):
    path = write(tmp_path / "a.json", json.dumps(COCO, indent=indent))
    assert list(read_references(path).items()) == list(EXPECTED.items())
    assert read_image_ids(path) == ["3", "1", "2", "9"]


def test_coco_references_from_a_file_with_a_byte_order_mark(tmp_path):
    path = write(tmp_path / "a.json", "\ufeff" + json.dumps(COCO))
    assert read_references(path) == EXPECTED


def test_references_as_rows_and_lists(tmp_path):
    rows = [(name, text) for name, texts in EXPECTED.items() for text in texts]
    rows.insert(0, rows.pop(1))  # image 1 comes first now
    expected = {"1": ["one", "one again", "one"], "3": ["three\n"], "2": [""]}
    table = tmp_path / "t.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file_name", "caption"), *rows])
    lines = as_lines({"image_id": name, "caption": text} for name, text in rows)
    lists = [{"id": name, "captions": texts} for name, texts in expected.items()]
    for path in (
        table,
        write(tmp_path / "a.jsonl", lines),
        write(tmp_path / "b.jsonl", as_lines(lists)),
        write(tmp_path / "c.json", lists),
    ):
        assert list(read_references(path).items()) == list(expected.items())


def test_references_of_a_dataset_folder(tmp_path):
    records = [
        ImageCaptions("1", "train", ("a", "b")),
        ImageCaptions("2", "test", ("c",)),
        ImageCaptions("3", "test", ("d", "e")),
    ]
    write_captions(tmp_path, records)
    assert read_references(tmp_path, split="test") == {"2": ["c"], "3": ["d", "e"]}
    assert read_references(tmp_path) == {"1": ["a", "b"], "2": ["c"], "3": ["d", "e"]}
    lines = tmp_path / "captions.jsonl"
    assert read_references(lines, split="train") == {"1": ["a", "b"]}
    with pytest.raises(ValueError, match="no image of split val"):
        read_references(tmp_path, split="val")
    with pytest.raises(ValueError, match="'best' is not a split"):
        read_references(tmp_path, split="best")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": None}, "no 'annotations'"),
        ({"annotations": []}, "no 'annotations'"),
        ({"images": [{"id": 3}]}, "2 images have captions but are not listed: 1, 2"),
        ({"images": [{"name": 3}]}, "images entry 1: missing key"),
        ({"images": [{"id": 3, "sentences": []}]}, "ngsan data captions karpathy"),
        ({"annotations": [{"image_id": 3}]}, "annotations entry 1: missing key: .*'caption'"),
        ({"annotations": [{"caption": "a"}]}, "annotations entry 1: missing key: .*'image_id'"),
        ({"annotations": [{"image_id": 3, "caption": 4}]}, "a string, not 4"),
        ({"annotations": ["a"]}, "expected an object"),
    ],
)
def test_invalid_coco_references_raise(tmp_path, change, message):
    document = {**COCO, **change}
    if change.get("annotations", 0) is None:
        del document["annotations"]
    with pytest.raises(ValueError, match=message):
        read_references(write(tmp_path / "a.json", document))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": 1, "captions": "a"}\n', "captions must be a list"),
        ('{"id": 1, "captions": []}\n', "captions must be a list with at least one"),
        ('{"id": 1, "captions": ["a", 2]}\n', "a string, not 2"),
        ('{"id": 1}\n', "either 'caption' or 'captions'"),
        ('{"id": 1, "caption": "a", "captions": ["a"]}\n', "either 'caption' or 'captions'"),
        ('{"images": [{"id": 1}], "anno', "ends too early"),
        ("{}", "missing key"),
        ("", "is empty"),
    ],
)
def test_invalid_references_raise(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_references(write(tmp_path / "a.json", text))


def test_missing_split_raises(tmp_path):
    with pytest.raises(ValueError, match="has no split 'test'"):
        read_references(write(tmp_path / "a.json", COCO), split="test")
    table = write(tmp_path / "t.csv", "image,caption,split\n1,a,val\n2,b,\n")
    with pytest.raises(ValueError, match="t.csv:3 .image 2.: it has no split"):
        read_references(table, split="val")
    table = write(tmp_path / "t.csv", "image,caption,split\n1,a,val\n2,b,most\n")
    with pytest.raises(ValueError, match="t.csv:3 .image 2.: 'most' is not a split"):
        read_references(table, split="val")


def test_written_results_have_the_coco_format(tmp_path):
    path = tmp_path / "r.json"
    write_results(path, CAPTIONS)
    expected = [
        {"image_id": int(name) if name.isdigit() else name, "caption": text}
        for name, text in CAPTIONS.items()
    ]
    assert json.loads(path.read_text()) == expected
    assert read_results(path) == CAPTIONS
    with pytest.raises(ValueError, match="image 2.* a string, not 5"):
        write_results(path, {"1": "a", "2": 5})
    assert read_results(path) == CAPTIONS
    assert list(tmp_path.iterdir()) == [path]


# Submissions to the test server; the tests replace the large image sets by small ones.

NAME = "captions_val2014_ours_results.json"
OTHER = "captions_test2014_ours_results.json"
GOOD = [{"image_id": number, "caption": f"caption {number}"} for number in (1, 2, 3)]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(IMAGES, "val2014", 3)
    monkeypatch.setitem(IMAGES, "test2014", 2)


def test_image_counts_of_the_test_server():
    assert IMAGES == {"val2014": 40504, "test2014": 40775}


def test_valid_submission(tmp_path, small):
    path = write(tmp_path / NAME, GOOD)
    found = check_submission(path)
    assert found.problems == found.warnings == ()
    assert "3 captions" in found.checked[0]
    images = write(tmp_path / "images.json", {"images": [{"id": 2}, {"id": 1}, {"id": 3}]})
    found = check_submission(path, images)
    assert found.problems == ()
    assert str(images) in found.checked[0]


def test_written_results_are_a_valid_submission(tmp_path, small):
    write_results(tmp_path / NAME, {"2": "a", "1": "b", "3": "c"})
    assert check_submission(tmp_path / NAME).problems == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD[:2], "2 images instead of 3"),
        ([*GOOD, GOOD[1]], "duplicate image: .*entry 4: image 2 is in entry 2 already"),
        ([*GOOD[:2], {"image_id": "3", "caption": "a"}], "an image_id must be an integer, not '3'"),
        ([*GOOD[:2], {"image_id": True, "caption": "a"}], "must be an integer, not True"),
        ([*GOOD[:2], {"image_id": 3, "caption": 4}], "a caption must be a string, not 4"),
        ([*GOOD[:2], {"image_id": 3, "caption": " "}], "empty caption: .*entry 3: image 3"),
        ([*GOOD[:2], {"image_id": 3}], "there is no 'caption'"),
        ([*GOOD[:2], 3], "expected an object, not 3"),
        ({"images": []}, "expected a list"),
        ('[{"image_id"', "not JSON"),
        ("", "not JSON"),
    ],
)
def test_submission_problems_are_reported(tmp_path, small, content, message):
    found = check_submission(write(tmp_path / NAME, content))
    assert any(re.search(message, line) for line in found.problems), found.problems


def test_all_submission_problems_are_reported_with_counts(tmp_path, small):
    entries = [{"image_id": 5, "caption": ""}, {"image_id": 6, "caption": ""}, {"image_id": 6}]
    entries.append({"image_id": 1, "caption": "a", "score": 1})
    path = write(tmp_path / "results.json", entries)
    images = write(tmp_path / "images.json", {"images": [{"id": n} for n in (1, 2, 3, 10)]})
    found = check_submission(path, images)
    text = "\n".join(found.problems)
    assert "wrong file name: results.json" in text
    assert "2 x empty caption, such as results.json: entry 1" in text
    assert "missing key: results.json: entry 3" in text
    assert "3 x missing image, such as results.json: 2, " in text
    assert "2 x unknown image, such as results.json: 5, " in text
    assert len(found.problems) == 5
    assert found.warnings == ("further keys: results.json: entry 4: 'score'",)


def make_archive(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, json.dumps(content))
    return path


def test_valid_submission_archive(tmp_path, small):
    path = make_archive(tmp_path / "results.zip", {NAME: GOOD, OTHER: GOOD[:2]})
    found = check_submission(path)
    assert found.problems == ()
    assert len(found.checked) == 2
    images = write(tmp_path / "image_info_test2014.json", {"images": [{"id": 1}, {"id": 7}]})
    problems = check_submission(path, images).problems
    assert len(problems) == 2
    assert all(OTHER in line for line in problems)
    with pytest.raises(ValueError, match="its name has none of val2014, test2014"):
        check_submission(path, write(tmp_path / "images.json", {"images": [{"id": 1}]}))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({NAME: GOOD}, "missing file: .*captions_test2014"),
        ({NAME: GOOD, OTHER: GOOD}, "3 images instead of 2"),
        ({NAME: GOOD, f"x/{OTHER}": GOOD[:2]}, "file not at the top: .*x/captions"),
        ({NAME: GOOD, OTHER: GOOD[:2], "notes.txt": ""}, "unexpected file: .*notes.txt"),
        ({NAME: GOOD, OTHER.replace("ours", "mine"): GOOD[:2]}, "algorithm has two names"),
    ],
)
def test_archive_problems_are_reported(tmp_path, small, members, message):
    found = check_submission(make_archive(tmp_path / "results.zip", members))
    assert any(re.search(message, line) for line in found.problems), found.problems


def test_broken_archive_is_reported(tmp_path, small):
    problems = check_submission(write(tmp_path / "results.zip", "no zip")).problems
    assert problems[0].startswith("broken archive")


def test_pipe_raises(tmp_path):
    import os

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="cannot be read twice"):
        read_results(pipe)


@pytest.mark.parametrize("names", [("x/1.jpg", "y/1.jpg"), ("dog.jpg", "dog.png")])
def test_references_of_two_images_with_one_id_raise(tmp_path, names):
    table = tmp_path / "references.csv"
    table.write_text("image,caption\n" + "".join(f"{name},a dog\n" for name in names))
    with pytest.raises(ValueError, match="would be the same image"):
        read_references(table)


def test_writing_duplicate_images_raises(tmp_path):
    with pytest.raises(ValueError, match="image 7 occurs twice"):
        write_results(tmp_path / "r.json", {"007": "a dog", "7": "a cat"})
    write_results(tmp_path / "r.json", {7: "a dog"})
    assert read_results(tmp_path / "r.json") == {"7": "a dog"}
