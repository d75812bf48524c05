"""Captions as people have them: tables, JSON, ImageFolder and text files."""

import json
import os

import pytest
from PIL import Image

from ngsan.data.problems import Problems
from ngsan.finetuning.reading import read_photos

WANTED = {"a.jpg": ["A dog runs.", "One dog."], "b.png": ["A cat."]}


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.jpg", "b.png", "c.jpg"):
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


def read(photos, captions, problems=None):
    found = read_photos(photos, captions, problems or Problems(skip=True))
    return {photo.path.name: photo.captions for photo in found}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.csv", "image,caption\na.jpg,A dog runs.\nb.png,A cat.\na.jpg,One dog.\n"),
        ("c.csv", "\ufeffFile_Name;Text\na.jpg;A dog runs.\na.jpg;One dog.\nb.png;A cat.\n"),
        ("c.tsv", "split\tpath\tsentence\n\ta.jpg\tA dog runs.\n\ta.jpg\tOne dog.\n\tb\tA cat.\n"),
        (
            "c.jsonl",
            '{"file_name": "a.jpg", "text": "A dog runs."}\n\n'
            '{"filename": "x/a.jpg", "captions": ["One dog."]}\n'
            '{"image_id": "b", "text": "A cat."}',
        ),
        (
            "c.json",
            '[{"image": "a.jpg", "captions": ["A dog runs.", "One dog."]},'
            ' {"image": "b.png", "caption": "A cat."}]',
        ),
        (
            "c.json",
            json.dumps(
                {
                    "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.png"}],
                    "annotations": [
                        {"image_id": 1, "caption": "A dog runs."},
                        {"image_id": 1, "caption": "One dog."},
                        {"image_id": 2, "caption": "A cat."},
                    ],
                }
            ),
        ),
        (
            "c.json",
            json.dumps(
                {
                    "images": [
                        {
                            "filename": name,
                            "split": "train",
                            "sentences": [{"raw": text} for text in texts],
                        }
                        for name, texts in WANTED.items()
                    ]
                }
            ),
        ),
    ],
)
def test_formats_and_headers(photos, tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read(photos, tmp_path / name) == WANTED


def test_text_files_beside_the_pictures(photos):
    (photos / "a.txt").write_text("A dog runs.\n\nOne  dog.\n")
    (photos / "b.txt").write_text("A cat.")
    assert read(photos, None) == WANTED


def test_text_files_in_another_folder(photos, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "b.txt").write_text("A cat.")
    assert read(photos, tmp_path / "texts") == {"b.png": ["A cat."]}


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_image_folder(photos, name):
    inner = photos / "train"
    inner.mkdir()
    (photos / "b.png").rename(inner / "b.png")
    rows = [("b.png", "A cat."), ("../a.jpg", "A dog runs."), ("../a.jpg", "One dog.")]
    table = ["file_name,text", *(f"{file},{text}" for file, text in rows)]
    lines = [json.dumps({"file_name": file, "text": text}) for file, text in rows]
    (inner / name).write_text("\n".join(table if name.endswith("csv") else lines))
    assert {name: sorted(texts) for name, texts in read(photos, None).items()} == {
        "a.jpg": ["A dog runs.", "One dog."],
        "b.png": ["A cat."],
    }


def test_problems_name_file_and_line(photos, tmp_path):
    path = tmp_path / "c.csv"
    rows = "image,caption\na.jpg,A dog.\nnone.jpg,Nothing.\nb.png,\nc.jpg,A dog\nc.jpg\n"
    path.write_text(rows)
    problems = Problems(skip=True)
    assert read(photos, path, problems) == {"a.jpg": ["A dog."], "c.jpg": ["A dog"]}
    first = {kind: texts[0] for kind, texts in problems.examples.items()}
    assert first["missing picture"].startswith(f"{path}:3: none.jpg is not in")
    assert first["empty caption"].startswith(f"{path}:4: ")
    assert first["wrong number of fields"].startswith(f"{path}:6: ")


def test_pictures_that_are_all_missing_are_one_error(photos, tmp_path):
    path = tmp_path / "c.csv"
    path.write_text("image,caption\nx.jpg,A dog.\ny.jpg,A cat.\na.jpg,A cow.\n")
    with pytest.raises(ValueError, match=r"2 of 3 pictures are missing .*c\.csv:2: x\.jpg"):
        read(photos, path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.csv", "dog,cat\n", "must name the columns 'image' and 'caption'"),
        ("c.txt", "a dog", "captions are read from"),
        ("c.csv", "image,caption\n", "no picture has a caption"),
        ("c.json", '{"images": []}', "not a file of Karpathy"),
    ],
)
def test_wrong_files_are_one_line(photos, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read(photos, tmp_path / name)
    assert "\n" not in str(caught.value)


def test_folder_without_captions(photos):
    with pytest.raises(ValueError, match="has no captions: pass a file of captions"):
        read(photos, None)


def test_names_of_two_files_are_not_guessed(photos, tmp_path):
    (photos / "x").mkdir()
    Image.new("RGB", (8, 8)).save(photos / "x" / "a.jpg")
    path = tmp_path / "c.jsonl"
    path.write_text('{"image": "y/a.jpg", "caption": "A dog."}\n{"image": "b", "caption": "Hi."}')
    assert read(photos, path) == {"b.png": ["Hi."]}


def test_what_cannot_be_read_is_reported_and_the_rest_used(photos, closed_folder):
    for picture in list(photos.glob("*.*"))[:2]:
        picture.with_suffix(".txt").write_text("a dog")
    (photos / "closed").symlink_to(closed_folder)
    os.mkfifo(photos / "pipe.jpg")
    problems = Problems(skip=True)
    assert read(photos, None, problems)
    found = problems.examples["unreadable picture or folder"]
    assert len(found) == 2
    assert "closed: cannot read the folder: Permission denied" in found[1]
    assert read(photos, photos, problems)
    names = (str(closed_folder / "1.jpg"), "x" * 300)
    entries = [{"image": name, "caption": "a dog"} for name in names]
    (photos / "a.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="2 of 2 pictures are missing"):
        read(photos, photos / "a.json")
    os.mkfifo(photos / "metadata.csv")
    with pytest.raises(ValueError, match="not a regular file"):
        read(photos, None)
