"""Caption importers, against the json and csv modules, and on invalid files of every kind."""

import csv
import io
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ngsan.data import text_files
from ngsan.data.captions import ImageCaptions
from ngsan.data.importers.captions_json import coco_captions, karpathy_captions, vatex_captions
from ngsan.data.importers.captions_text import flickr_captions, table_captions
from ngsan.data.problems import Problems
from ngsan.data.text_files import read_items

with_files = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
captions = texts.filter(str.strip)
keys = texts.filter(lambda key: key and "." not in key)  # a dot separates the keys of a path


def squeezed(text: str) -> str:
    return " ".join(text.split())


# --- the JSON reader ------------------------------------------------------------------------------


@with_files
@given(st.lists(values) | st.dictionaries(keys, values), st.integers(1, 40), st.booleans())
def test_read_items_equals_json(tmp_path, document, chunk, ascii_only) -> None:
    path = tmp_path / "some.json"
    path.write_text(json.dumps(document, ensure_ascii=ascii_only, indent=1), encoding="utf-8")
    arrays = {"": document} if isinstance(document, list) else document
    wanted = [
        (key, number, item)
        for key, array in arrays.items()
        if isinstance(array, list)
        for number, item in enumerate(array, start=1)
    ]
    names = () if isinstance(document, list) else [k for k, v in arrays.items() if type(v) is list]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_CHUNK", chunk)
        found = list(read_items(path, *names)) if names or isinstance(document, list) else []
    assert found == wanted


@pytest.mark.parametrize("chunk", [1, 5, 1 << 14])
def test_truncated_json_error_names_the_byte(tmp_path: Path, monkeypatch, chunk: int) -> None:
    monkeypatch.setattr(text_files, "_CHUNK", chunk)
    document = {
        "about": {"year": 2014},
        "images": [{"id": 391895, "name": "é \u2028"}],
        "n": [1, -2e5],
    }
    whole = json.dumps(document, ensure_ascii=False).encode()
    path = tmp_path / "cut.json"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(
            ValueError, match=rf"cut\.json: byte {length}: broken JSON: .*(early|UTF-8|digit)"
        ):
            list(read_items(path, "images"))
    path.write_bytes(b"\xef\xbb\xbf" + whole)
    assert [item["id"] for _, _, item in read_items(path, "images")] == [391895]


@pytest.mark.parametrize("chunk", [1, 7, 1 << 14])
def test_invalid_json_error_names_the_byte(tmp_path, monkeypatch, chunk) -> None:
    monkeypatch.setattr(text_files, "_CHUNK", chunk)
    path = tmp_path / "wrong.json"
    for content, byte in [
        (b'{"a": [1 2, "and so on, for long"]}', 10),
        (b'[1], "and so on, for long"', 3),
        (b'[{"a": nule, "b": "and so on, for long"}]', 10),
        (b'["\xc3\xa9", "\xe9", "and so on, for long"]', 9),
        (b'["new\nline, and so on, for long"]', 5),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"wrong\.json: byte {byte}: broken JSON: "):
            list(read_items(path))
    path.write_bytes(b"[" * 50_000)
    with pytest.raises(ValueError, match=r"wrong\.json: byte \d+: broken JSON: nested too deeply"):
        list(read_items(path))
    text = r'["\ud83d\ude00\uD83D\uDE00", "\\ud800", "\ud800\ud83d\ude00", "a\\\ude00 \udbff"]'
    wanted = ["\U0001f600\U0001f600", "\\ud800", "\ud800\U0001f600", "a\\\ud800 \ud800"]
    for place in range(0, len(text), 5):  # spaces move it over the ends of chunks
        path.write_text(" " * place + text)
        assert [item for _, _, item in read_items(path)] == wanted


# --- COCO -----------------------------------------------------------------------------------------


def coco(images: object, annotations: object) -> dict[str, object]:
    return {"info": {"year": 2014}, "images": images, "licenses": [], "annotations": annotations}


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_coco_with_lists(tmp_path: Path) -> None:
    random_ = random.Random(0)
    ids = random_.sample(range(1, 10**6), 60)
    files = {"train": ids[:40], "val": ids[40:]}
    expected_captions: dict[int, list[str]] = {identity: [] for identity in ids}
    paths = []
    for name, own in files.items():
        images = [
            {"id": i, "file_name": f"COCO_{name}2014_{i:012}.jpg", "width": i + 1, "height": 7}
            for i in own
        ]
        pairs = [(i, f" A  photo\nof {i}, {n}. ") for n in range(3) for i in own]
        random_.shuffle(pairs)
        for i, caption in pairs:
            expected_captions[i].append(caption)
        annotations = [{"image_id": i, "id": 5, "caption": caption} for i, caption in pairs]
        document = coco(images, annotations)
        if name == "val":  # annotations before images
            document = dict(reversed(document.items()))
        paths.append(write(tmp_path / f"captions_{name}2014.json", document))
    val, test = ids[35:45], ids[45:50]
    lists = {
        "val_ids": write(tmp_path / "val.txt", "\n".join(map(str, val))),
        "test_ids": write(tmp_path / "test.txt", "\n".join(f"{i:012}" for i in test)),
    }
    records = list(coco_captions(paths, **lists, problems=Problems()))
    assert [record.id for record in records] == [str(i) for i in ids]
    for i, record in zip(ids, records, strict=True):
        assert record.split == ("val" if i in val else "test" if i in test else "train")
        assert list(record.captions) == [squeezed(caption) for caption in expected_captions[i]]
        assert record.file == f"COCO_{'train' if i in ids[:40] else 'val'}2014_{i:012}.jpg"
        assert record.size == (i + 1, 7)
    by_name = list(coco_captions(paths, problems=Problems()))
    assert [record.split for record in by_name] == ["train"] * 40 + ["val"] * 20
    overridden = list(coco_captions(paths, split="test", problems=Problems()))
    assert {record.split for record in overridden} == {"test"}


GOOD_IMAGE = {"id": 1, "file_name": "one.jpg", "width": 4, "height": 3}
GOOD_CAPTION = {"image_id": 1, "caption": "One."}


@pytest.mark.parametrize(
    ("images", "annotations", "message"),
    [
        (
            [],
            [{"image_id": 2, "caption": "Two."}],
            "annotations entry 2: caption for an unknown im",
        ),
        ([{"id": 2}], [], "image 2: image without captions"),
        ([{"id": "0001"}], [], "images entry 2 .image 1.: duplicate image"),
        ([{"file_name": "two.jpg"}], [], "images entry 2: missing key: there is no 'id'"),
        (["two.jpg"], [], "images entry 2: wrong type"),
        ([{"id": None}], [], "images entry 2: wrong id"),
        ([{"id": 2.0}], [], "images entry 2: wrong id"),
        ([{"id": True}], [], "images entry 2: wrong id"),
        ([{"id": ""}], [], "images entry 2: wrong id: .*empty"),
        ([{"id": "\ud800"}], [], "images entry 2: wrong id"),
        ([{"id": 2, "file_name": 5}], [], "image 2.: wrong file name"),
        ([{"id": 2, "width": 0, "height": 5}], [], "image 2.: wrong size: .*0, 5"),
        ([{"id": 2, "width": 640}], [], "image 2.: wrong size: .*640, None"),
        ([], [{"image_id": 1}], "annotations entry 2: missing key: there is no 'caption'"),
        ([], [{"caption": "A dog."}], "annotations entry 2: missing key: there is no 'image_id'"),
        ([], [7], "annotations entry 2: wrong type"),
        ([], [{"image_id": 1, "caption": " \n"}], "entry 2 .image 1.: empty caption"),
        ([], [{"image_id": 1, "caption": None}], "entry 2 .image 1.: wrong type"),
        ([], [{"image_id": 1, "caption": ["A dog."]}], "entry 2 .image 1.: wrong type"),
        ([], [{"image_id": 1, "caption": "A \ud800."}], "entry 2 .image 1.: invalid Unicode"),
        ([], [{"image_id": [1], "caption": "A dog."}], "annotations entry 2: wrong id"),
    ],
)
def test_invalid_coco_entries_raise_or_are_skipped(
    tmp_path: Path, images, annotations, message: str
) -> None:
    document = coco([GOOD_IMAGE, *images], [GOOD_CAPTION, *annotations])
    path = write(tmp_path / "captions_train.json", document)
    with pytest.raises(ValueError, match=rf"captions_train\.json: .*{message}"):
        list(coco_captions([path], problems=Problems()))
    problems = Problems(skip=True)
    assert list(coco_captions([path], problems=problems)) == [
        ImageCaptions("1", "train", ("One.",), "one.jpg", (4, 3))
    ]
    assert problems.summary()


def test_inconsistent_coco_files_and_lists_raise(tmp_path: Path) -> None:
    good = coco([GOOD_IMAGE], [GOOD_CAPTION])
    path = write(tmp_path / "captions_train.json", good)
    again = write(tmp_path / "captions_train2017.json", good)
    ids = write(tmp_path / "ids.txt", "1\n\n77\n")
    with pytest.raises(
        ValueError, match=r"ids\.txt:3: .*image 77, listed for val, has no captions"
    ):
        list(coco_captions([path], val_ids=ids, problems=Problems()))
    with pytest.raises(
        ValueError, match=r"train2017\.json: image 1: duplicate .*captions_train\.json"
    ):
        list(coco_captions([path, again], problems=Problems()))
    with pytest.raises(ValueError, match="not both"):
        list(coco_captions([path], split="val", test_ids=ids, problems=Problems()))
    with pytest.raises(ValueError, match="pass --split"):
        list(coco_captions([write(tmp_path / "captions.json", good)], problems=Problems()))
    with pytest.raises(ValueError, match="'holdout' is not a split"):
        list(coco_captions([path], split="holdout", problems=Problems()))
    with pytest.raises(ValueError, match="no annotation file"):
        list(coco_captions([], problems=Problems()))
    for other in ([], {}, {"images": [GOOD_IMAGE]}, {"annotations": [GOOD_CAPTION]}):
        with pytest.raises(ValueError, match="not a caption file of COCO"):
            list(coco_captions([write(path, other)], problems=Problems(skip=True)))


# --- Karpathy -------------------------------------------------------------------------------------

KARPATHY = {
    "filename": "COCO_val2014_000000391895.jpg",
    "cocoid": 391895,
    "imgid": 0,
    "split": "test",
    "sentences": [{"tokens": ["a", "man"], "raw": "A man. ", "imgid": 0, "sentid": 770337}],
}


def test_karpathy(tmp_path: Path) -> None:
    splits = ["train", "restval", "val", "test"]
    images = [
        {**KARPATHY, "cocoid": number, "split": split, "filename": f"COCO_val2014_{number:012}.jpg"}
        for number, split in enumerate(splits)
    ]
    images.append({key: value for key, value in images[0].items() if key != "cocoid"})
    images[-1].update(filename="2513260012_03d33305cf.jpg", sentences=[{"raw": "B"}, {"raw": "C "}])
    path = write(tmp_path / "dataset.json", {"images": images, "dataset": "coco"})
    records = list(karpathy_captions(path, problems=Problems()))
    assert [(record.id, record.split) for record in records] == [
        ("0", "train"),
        ("1", "train"),
        ("2", "val"),
        ("3", "test"),
        ("2513260012_03d33305cf", "train"),
    ]
    assert records[3].file == "COCO_val2014_000000000003.jpg"
    assert [record.captions for record in records[-2:]] == [("A man.",), ("B", "C")]


def test_karpathy_takes_a_missing_coco_id_from_the_file_name(tmp_path: Path) -> None:
    image = {key: value for key, value in KARPATHY.items() if key != "cocoid"}
    path = write(tmp_path / "dataset.json", {"images": [image]})
    assert next(karpathy_captions(path, problems=Problems())).id == "391895"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cocoid": 391895}, "entry 2 .image 391895.: duplicate image"),
        (
            {"cocoid": 391895, "split": "val"},
            "entry 2 .image 391895.: conflicting split: .*entry 1",
        ),
        ({"split": "minival"}, "image 2.: unknown split: 'minival'"),
        ({"split": None}, "image 2.: unknown split"),
        ({"cocoid": None}, "entry 2: wrong id"),
        ({"filename": ""}, "entry 2: wrong file name"),
        ({"filename": ["x.jpg"]}, "entry 2: wrong file name"),
        ({"sentences": []}, "image 2.: image without captions"),
        ({"sentences": "A man."}, "image 2.: wrong type: sentences"),
        ({"sentences": [{"tokens": ["a"]}]}, "image 2., sentence 1: missing key: .*'raw'"),
        ({"sentences": [{"raw": "A."}, {"raw": " "}]}, "image 2., sentence 2: empty caption"),
        ({"sentences": [{"raw": "A."}, "B."]}, "image 2., sentence 2: wrong type"),
        ({"sentences": [{"raw": "A."}, {"raw": 3}]}, "image 2., sentence 2: wrong type"),
    ],
)
def test_invalid_karpathy_entries_raise_or_are_skipped(
    tmp_path: Path, change, message: str
) -> None:
    images = [KARPATHY, {**KARPATHY, "cocoid": 2, **change}, {**KARPATHY, "cocoid": 3}]
    path = write(tmp_path / "dataset.json", {"images": images})
    with pytest.raises(
        ValueError, match=rf"dataset\.json: images {message}|images entry 2 .{message}"
    ):
        list(karpathy_captions(path, problems=Problems()))
    problems = Problems(skip=True)
    ids = [record.id for record in karpathy_captions(path, problems=problems)]
    assert [identity for identity in ids if identity != "2"] == ["391895", "3"]
    assert problems.summary()


@pytest.mark.parametrize("missing", ["filename", "split", "sentences"])
def test_missing_karpathy_keys_raise(tmp_path: Path, missing: str) -> None:
    image = {key: value for key, value in KARPATHY.items() if key != missing}
    path = write(tmp_path / "dataset.json", {"images": [image]})
    with pytest.raises(ValueError, match=f"images entry 1: missing key: there is no '{missing}'"):
        list(karpathy_captions(path, problems=Problems()))
    with pytest.raises(ValueError, match="no 'images' in it"):
        list(karpathy_captions(write(path, {"pictures": []}), problems=Problems()))


# --- Flickr ---------------------------------------------------------------------------------------


def flickr_lines(images: int) -> str:
    return "".join(
        f"{i}_a.jpg#{n}\tA  photo of {i}, {n} .\n" for i in range(images) for n in range(5)
    )


def test_flickr_with_and_without_lists(tmp_path: Path) -> None:
    path = write(tmp_path / "Flickr8k.token.txt", flickr_lines(20))
    parts = {"train_list": range(14), "val_list": range(14, 17), "test_list": range(17, 20)}
    lists = {
        name: write(tmp_path / name, "".join(f"{i}_a.jpg\n" for i in own))
        for name, own in parts.items()
    }
    records = list(flickr_captions(path, **lists, problems=Problems()))
    assert records == [
        ImageCaptions(
            f"{i}_a",
            "train" if i < 14 else "val" if i < 17 else "test",
            tuple(f"A photo of {i}, {n} ." for n in range(5)),
            f"{i}_a.jpg",
        )
        for i in range(20)
    ]
    random_splits = [
        list(flickr_captions(path, seed=seed, problems=Problems())) for seed in (1, 1, 2)
    ]
    assert random_splits[0] == random_splits[1] != random_splits[2]
    assert [record.captions for record in random_splits[2]] == [
        record.captions for record in records
    ]
    assert (
        sorted(record.split for record in random_splits[2])[:4] == ["test", "test"] + ["train"] * 2
    )


def test_flickr_problems_are_reported_once_each(tmp_path: Path) -> None:
    odd = "".join(f"2258277193_586949ec62.jpg.1#{n}\tPeople on horses .\n" for n in range(5))
    path = write(tmp_path / "token.txt", flickr_lines(3) + odd)
    train = write(tmp_path / "train.txt", "0_a.jpg\n1_a.jpg\n9_a.jpg\n")
    with pytest.raises(ValueError, match=r"train\.txt:3: image without captions: 9_a"):
        list(flickr_captions(path, train_list=train, problems=Problems()))
    problems = Problems(skip=True)
    records = list(flickr_captions(path, train_list=train, problems=problems))
    assert [record.id for record in records] == ["0_a", "1_a"]
    assert problems.counts == {
        "not an image": 1,
        "in no list": 1,
        "image without captions": 1,
    }
    assert problems.examples["not an image"][0].startswith(f"{path}:16: ")
    assert problems.examples["in no list"][0].startswith(f"{path}:11: 2_a.jpg")
    assert problems.examples["image without captions"][0].startswith(f"{train}:3: 9_a")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"0_a.jpg#1 A dog .", "broken line"),
        (b"0_a.jpg\tA dog .", "broken line"),
        (b"0_a.jpg#x\tA dog .", "broken line"),
        (b"#1\tA dog .", "broken line"),
        (b"x/ .jpg#1\tA dog .", "wrong id"),
        (b"0_a.gz#1\tA dog .", "not an image"),
        (b"0_a.jpg#0\tA dog .", "duplicate caption"),
        (b"0_a.jpg#1\t ", "empty caption"),
        (b"0_a.jpg#1\tA d\xf6g .", "invalid UTF-8: byte"),
        (b"1_a.jpg#0\t", "empty caption"),
    ],
)
def test_invalid_flickr_lines_raise_or_are_skipped(
    tmp_path: Path, line: bytes, message: str
) -> None:
    path = tmp_path / "token.txt"
    path.write_bytes(b"\n0_a.jpg#0\tA dog .\r\n" + line + b"\n")
    with pytest.raises(ValueError, match=rf"token\.txt:3.*: {message}"):
        list(flickr_captions(path, problems=Problems()))
    problems = Problems(skip=True)
    records = list(flickr_captions(path, problems=problems))
    assert [(record.id, record.captions) for record in records] == [("0_a", ("A dog .",))]
    assert problems.summary()
    path.write_bytes(b"\n")
    with pytest.raises(ValueError, match=r"token\.txt: no captions"):
        list(flickr_captions(path, problems=problems))


# --- tables ---------------------------------------------------------------------------------------

rows = st.lists(
    st.tuples(st.sampled_from(["dog.jpg", "0012", "cat", "a b.png"]), captions),
    min_size=1,
    max_size=8,
)
IDS = {"dog.jpg": "dog", "0012": "12", "cat": "cat", "a b.png": "a b"}


def grouped(pairs) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for image, caption in pairs:
        groups.setdefault(IDS[image], []).append(squeezed(caption))
    return {image: tuple(own) for image, own in groups.items()}


@with_files
@given(
    rows,
    st.sampled_from(",;\t"),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
    st.permutations(["image", "caption", "note"]),
)
def test_csv(tmp_path, pairs, separator, quoting, end, mark, with_split, columns) -> None:
    buffer = io.StringIO(newline="")
    columns = [*columns, "split"] if with_split else columns
    writer = csv.DictWriter(
        buffer, columns, delimiter=separator, quoting=quoting, lineterminator=end
    )
    writer.writer.writerow([name.title() for name in columns])
    if quoting == csv.QUOTE_MINIMAL:  # which forgets to quote a lone carriage return
        pairs = [(image, caption.replace("\r", "\n")) for image, caption in pairs]
    for image, caption in pairs:
        row = {"image": image, "caption": caption, "note": 'x,";\ty', "split": "valid"}
        writer.writerow({name: row[name] for name in columns})
    path = tmp_path / "table.csv"
    path.write_bytes(buffer.getvalue().encode("utf-8-sig" if mark else "utf-8"))
    records = list(table_captions(path, problems=Problems()))
    assert {record.id: record.captions for record in records} == grouped(pairs)
    files = {image for image, _ in pairs if "." in image}
    assert {record.file for record in records} - {None} == files
    if with_split:
        assert {record.split for record in records} == {"val"}
    else:
        assert len({record.split for record in records}) == (3 if len(records) >= 3 else 1)


@with_files
@given(rows, st.booleans(), st.booleans())
def test_json_lines(tmp_path, pairs, ascii_only, whole) -> None:
    if whole:
        entries = [{"image": i, "captions": list(own)} for i, own in grouped(pairs).items()]
    else:
        entries = [{"image": image, "caption": caption, "note": 3} for image, caption in pairs]
    lines = [json.dumps(entry, ensure_ascii=ascii_only) for entry in entries]
    path = tmp_path / "table.jsonl"
    path.write_bytes("\n".join(lines).encode())
    records = list(table_captions(path, problems=Problems()))
    assert {record.id: record.captions for record in records} == grouped(pairs)


def test_table_split_depends_on_the_seed_and_not_on_the_order(tmp_path: Path) -> None:
    lines = [f"{i}.jpg,A photo of {i}." for i in range(40)]
    path = tmp_path / "table.csv"

    def splits(order, **options):
        write(path, "image,caption\n" + "\n".join(order))
        return {r.id: r.split for r in table_captions(path, problems=Problems(), **options)}

    first = splits(lines, seed=3)
    assert sorted(first.values()) == ["test"] * 4 + ["train"] * 32 + ["val"] * 4
    assert splits(lines[::-1], seed=3) == first
    assert splits(lines, seed=4) != first
    assert sorted(splits(lines, val=0, test=0.5).values()) == ["test"] * 20 + ["train"] * 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"cat.jpg", "wrong number of fields: 1 fields instead of 3"),
        (b"cat.jpg,A cat, a dog,val", "wrong number of fields: 4 .*quote captions"),
        (b'cat.jpg,"A "cat" here",val', "broken row"),
        (b"cat.jpg,A\rcat,val", "broken row: a carriage return"),
        (b"cat.jpg, ,val", "empty caption"),
        (b" ,A cat,val", "wrong id"),
        (b"cat.jpg,A cat,holdout", "unknown split: 'holdout'"),
        (b"dog.jpg,A cat,val", "conflicting split: the row says val, earlier rows said train"),
        (b"other/dog.jpg,A dog.,train", "conflicting file: other/dog.jpg and dog.jpg"),
        (b"cat.jpg,A cat,", "missing split: image cat"),
        (b"cat.jpg,A c\xe4t,val", "invalid UTF-8"),
        (b"cat.jpg,A " + b"c" * 200_000 + b",val", "broken row: field larger"),
    ],
)
def test_invalid_csv_rows_raise_or_are_skipped(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(
        b'image,caption,split\ndog.jpg,"A\n""dog"".",train\n\n' + line + b"\nbee.jpg,A bee.,val\n"
    )
    with pytest.raises(ValueError, match=rf"table\.csv:5.*: {message}"):
        list(table_captions(path, problems=Problems()))
    problems = Problems(skip=True)
    records = list(table_captions(path, problems=problems))
    assert [(record.id, record.captions) for record in records] == [
        ("dog", ('A "dog".',)),
        ("bee", ("A bee.",)),
    ]
    assert problems.summary()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"csv:1: .*must name the columns"),
        (b"file,text\nx,y\n", r"csv:1: .*must name the columns .*file,text"),
        (b"image|caption\nx|y\n", r"csv:1: .*must name the columns"),
        (b"image,caption,caption\nx,y,z\n", r"csv:1: two columns are named 'caption'"),
        (b"image,caption\n", r"csv: no image"),
        (b'image,caption\na,b\nc,"d\ne,f\n', r"csv:3: a quote that opens here is never closed"),
        ("image,caption\nx,y\n".encode("utf-16"), "is UTF-16"),
        (b'[{"image": "x"}]', "a JSON list"),
        (b'{"image": "x", "caption": "y"}\n{"image": "z", "cap', r"csv:2: .*too early, at byte 50"),
        (b'{"image": "x", "caption": "y"}\n{"image": "\xc3', r"csv:2: the file ends too early"),
    ],
)
def test_unreadable_tables_raise(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(table_captions(path, problems=Problems(skip=True)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"image": "cat", "caption": "A c', "broken JSON: Unterminated"),
        (b'"cat"', "wrong type"),
        (b'{"caption": "A cat"}', "missing key: there is no 'image'"),
        (b'{"image": "cat"}', "missing key: .*either 'caption' or 'captions'"),
        (b'{"image": "cat", "caption": "A", "captions": ["B"]}', "missing key: .*either"),
        (b'{"image": null, "caption": "A cat"}', "wrong id"),
        (b'{"image": 2.5, "caption": "A cat"}', "wrong id"),
        (b'{"image": "cat", "caption": 5}', "wrong type"),
        (b'{"image": "cat", "captions": "A cat"}', "wrong type: captions must be a list"),
        (b'{"image": "cat", "captions": []}', "image without captions"),
        (b'{"image": "cat", "captions": [""]}', "caption 1: empty caption"),
        (b'{"image": "cat", "caption": "A cat", "split": 1}', "unknown split"),
        (b'{"image": "cat", "caption": "\\udfff"}', "invalid Unicode"),
        (b'{"image": "c\\udfff", "caption": "A cat"}', "wrong id"),
        (b'{"image": "cat", "caption": "\xff"}', "invalid UTF-8"),
        (b"[" * 100_000, "broken JSON"),
    ],
)
def test_invalid_json_lines_raise_or_are_skipped(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "table.jsonl"
    path.write_bytes(b'{"image": "dog", "caption": "A dog."}\n' + line + b"\n")
    with pytest.raises(ValueError, match=rf"table\.jsonl:2.*{message}"):
        list(table_captions(path, problems=Problems()))
    problems = Problems(skip=True)
    assert [record.id for record in table_captions(path, problems=problems)] == ["dog"]
    assert problems.summary()


# --- VATEX ----------------------------------------------------------------------------------------


def test_vatex(tmp_path: Path) -> None:
    paths = []
    for name in ("training", "validation", "public_test_english"):
        videos = [
            {
                "videoID": f"{name}-{i}_000122_000132",
                "enCap": [f"{name} {i}."],
                "chCap": ["狗。", "猫"],
            }
            for i in range(2)
        ]
        paths.append(write(tmp_path / f"vatex_{name}_v1.0.json", videos))
    records = list(vatex_captions(paths, problems=Problems()))
    assert [record.split for record in records] == ["train"] * 2 + ["val"] * 2 + ["test"] * 2
    assert records[1] == ImageCaptions("training-1_000122_000132", "train", ("training 1.",))
    chinese = list(vatex_captions(paths[:1], split="test", language="zh", problems=Problems()))
    assert {(record.split, record.captions) for record in chinese} == {("test", ("狗。", "猫"))}
    with pytest.raises(ValueError, match="'de' is not one of en, zh"):
        list(vatex_captions(paths, language="de", problems=Problems()))
    with pytest.raises(ValueError, match="no caption file"):
        list(vatex_captions([], problems=Problems()))


@pytest.mark.parametrize(
    ("video", "message"),
    [
        ({"videoID": "b"}, "entry 2: missing key: there is no 'enCap'"),
        ({"enCap": ["A dog."]}, "entry 2: missing key: there is no 'videoID'"),
        ({"videoID": "a", "enCap": ["A dog."]}, "entry 2 .video a.: duplicate image"),
        ({"videoID": ["b"], "enCap": ["A dog."]}, "entry 2: wrong id"),
        ({"videoID": "b", "enCap": "A dog."}, "video b.: wrong type"),
        ({"videoID": "b", "enCap": []}, "video b.: image without captions"),
        ({"videoID": "b", "enCap": [None]}, "video b., caption 1: wrong type"),
        ({"videoID": "b", "enCap": ["  "]}, "video b., caption 1: empty caption"),
        ("b", "entry 2: wrong type"),
    ],
)
def test_invalid_vatex_entries_raise_or_are_skipped(tmp_path: Path, video, message: str) -> None:
    path = write(tmp_path / "vatex_training.json", [{"videoID": "a", "enCap": ["A cat."]}, video])
    with pytest.raises(ValueError, match=rf"vatex_training\.json: .*{message}"):
        list(vatex_captions([path], problems=Problems()))
    problems = Problems(skip=True)
    assert [record.id for record in vatex_captions([path], problems=problems)] == ["a"]
    assert problems.summary()


# --- all JSON importers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("importer", "document"),
    [
        (
            lambda path, problems: coco_captions([path], problems=problems),
            coco([GOOD_IMAGE], [GOOD_CAPTION]),
        ),
        (
            lambda path, problems: karpathy_captions(path, problems=problems),
            {"images": [KARPATHY] * 2},
        ),
        (
            lambda path, problems: vatex_captions([path], problems=problems),
            [{"videoID": "a", "enCap": ["A."]}],
        ),
    ],
    ids=["coco", "karpathy", "vatex"],
)
def test_truncated_files_are_never_skipped(tmp_path: Path, importer, document) -> None:
    path = tmp_path / "train.json"
    whole = json.dumps(document).encode()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"train\.json: byte \d+: broken JSON"):
            list(importer(path, Problems(skip=True)))
