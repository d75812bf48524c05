"""End-to-end tests of `ngsan data`: files written here by plain code, read back from the store."""

import base64
import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ngsan.__main__ import main
from ngsan.atomic_io import folder_lock
from ngsan.data import FeatureStore, StoreWriter

ROOT = Path(__file__).parents[2]


def run(*words):
    return main(["data", *map(str, words)])


def make_regions(seed, count=None, width=8):
    """Features, corner boxes in pixels and the size of one image."""
    rng = np.random.default_rng(seed)
    count = count or int(rng.integers(2, 7))
    corner = rng.uniform(0, 100, (count, 2))
    boxes = np.concatenate((corner, corner + rng.uniform(5, 100, (count, 2))), axis=1)
    return rng.normal(size=(count, width)).astype(np.float32), boxes.astype(np.float32), (320, 240)


def expect(store, image_id, features, boxes, size):
    found = store[image_id]
    np.testing.assert_array_equal(found.features, features.astype(np.float16))
    width, height = size
    x1, y1, x2, y2 = boxes.astype(np.float64).T
    expected = np.stack(((x1 + x2) / 2 / width, (y1 + y2) / 2 / height,
                         (x2 - x1) / width, (y2 - y1) / height), axis=1)  # fmt: skip
    np.testing.assert_allclose(found.boxes, expected, atol=1e-6)
    assert found.size == size


def write_tsv(path, count, *, width=8):
    with path.open("w") as file:
        for image_id in range(1, count + 1):
            features, boxes, size = make_regions(image_id, width=width)
            cells = [image_id, *size, len(boxes)]
            cells += [base64.b64encode(array.tobytes()).decode() for array in (boxes, features)]
            file.write("\t".join(map(str, cells)) + "\n")


@pytest.fixture
def captions(tmp_path):
    """A CSV of ten images with two captions each."""
    path = tmp_path / "captions.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption"])
        for number in range(1, 11):
            table.writerow([f"{number}.jpg", f"a dog, number {number}"])
            table.writerow([f"{number}.jpg", "a dog on the grass"])
    return path


def test_csv_npz_and_inspect(tmp_path, captions, capsys):
    regions = tmp_path / "regions"
    regions.mkdir()
    for number in range(1, 10):
        features, boxes, size = make_regions(number)
        sides = {"image_w": size[0], "image_h": size[1]}
        np.savez(regions / f"{number}.npz", features=features, bbox=boxes, **sides)
    data = tmp_path / "data"
    assert run("captions", "csv", captions, "--output", data) == 0
    assert run("features", "npz", regions, "--output", data) == 0
    assert run("inspect", data, "--output", tmp_path / "facts.json") == 0
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert sum(split["images"] for split in facts["splits"].values()) == 10
    assert sum(split["captions"] for split in facts["splits"].values()) == 20
    assert set(facts["splits"]) == {"train", "val", "test"}
    assert facts["regions"] == sum(len(make_regions(n)[1]) for n in range(1, 10))
    assert facts["missing"] == {"count": 1, "first": ["10"]}
    page = (data / "inspect.html").read_text()
    assert "a dog on the grass" in page
    store = FeatureStore(data)
    for number in range(1, 10):
        expect(store, number, *make_regions(number))
    out = capsys.readouterr().out
    assert "10" in out
    assert "without features" in out


def test_coco_with_karpathy_splits(tmp_path):
    for name, ids in (("train", (1, 2, 3)), ("val", (4, 5))):
        images = [
            {"id": i, "file_name": f"COCO_{i:012}.jpg", "width": 320, "height": 240} for i in ids
        ]
        notes = [{"image_id": i, "id": 10 * i, "caption": f"Caption {i}."} for i in ids]
        (tmp_path / f"captions_{name}2014.json").write_text(
            json.dumps({"info": {}, "images": images, "licenses": [], "annotations": notes})
        )
    (tmp_path / "val.txt").write_text("4\n")
    (tmp_path / "test.txt").write_text("5\n")
    files = [tmp_path / "captions_train2014.json", tmp_path / "captions_val2014.json"]
    splits = {1: "train", 2: "restval", 3: "train", 4: "val", 5: "test"}
    karpathy = [
        {
            "cocoid": i,
            "filename": f"{i}.jpg",
            "split": split,
            "sentences": [{"raw": "a", "tokens": []}],
        }
        for i, split in splits.items()
    ]
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": karpathy}))
    karpathy_options = ["--karpathy", tmp_path / "dataset_coco.json"]
    assert (
        run("captions", "coco", *files, *karpathy_options, "--output", tmp_path / "karpathy") == 0
    )
    lists = ["--val-ids", tmp_path / "val.txt", "--test-ids", tmp_path / "test.txt"]
    assert run("captions", "coco", *files, *lists, "--output", tmp_path / "data") == 0
    captions = [(tmp_path / name / "captions.jsonl").read_text() for name in ("karpathy", "data")]
    assert captions[0] == captions[1]
    assert run("inspect", tmp_path / "data", "--output", tmp_path / "facts.json") == 0
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["splits"] == {
        "train": {"images": 3, "captions": 3},
        "val": {"images": 1, "captions": 1},
        "test": {"images": 1, "captions": 1},
    }
    assert facts["vocabulary"] == 7  # "caption", 1 to 5, and the unknown word


def test_hdf5_uses_image_sizes_of_the_captions(tmp_path):
    h5py = pytest.importorskip("h5py")
    data = tmp_path / "data"
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 320, "height": 240} for i in (7, 8)]
    notes = [{"image_id": i, "id": i, "caption": "a cat"} for i in (7, 8)]
    (tmp_path / "train.json").write_text(json.dumps({"images": images, "annotations": notes}))
    with h5py.File(tmp_path / "detections.hdf5", "w") as file:
        for i in (7, 8):
            features, boxes, _ = make_regions(i)
            file[f"{i}_features"], file[f"{i}_boxes"] = features, boxes
    assert (
        run("features", "hdf5", tmp_path / "detections.hdf5", "--output", tmp_path / "alone") == 2
    )
    assert (
        run("captions", "coco", tmp_path / "train.json", "--split", "train", "--output", data) == 0
    )
    assert run("features", "hdf5", tmp_path / "detections.hdf5", "--output", data) == 0
    for i in (7, 8):
        expect(FeatureStore(data), i, *make_regions(i))


def test_killed_tsv_import_resumes_with_the_same_result(tmp_path):
    write_tsv(tmp_path / "trainval.tsv", 300, width=256)
    command = [
        sys.executable,
        "-m",
        "ngsan",
        "data",
        "features",
        "tsv",
        str(tmp_path / "trainval.tsv"),
    ]
    for attempt in range(4):
        process = subprocess.Popen(
            [*command, "--output", str(tmp_path / "killed")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.2 + 0.15 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
    if not (tmp_path / "killed" / "features").exists():
        assert (
            run("features", "tsv", tmp_path / "trainval.tsv", "--output", tmp_path / "killed") == 0
        )
    assert run("features", "tsv", tmp_path / "trainval.tsv", "--output", tmp_path / "whole") == 0
    one, other = FeatureStore(tmp_path / "killed"), FeatureStore(tmp_path / "whole")
    assert one.signature == other.signature
    assert one.verify() == []
    expect(one, "17", *make_regions(17, width=256))


def test_flipped_byte_is_detected(tmp_path, capsys):
    write_tsv(tmp_path / "trainval.tsv", 5)
    data = tmp_path / "data"
    assert run("features", "tsv", tmp_path / "trainval.tsv", "--output", data) == 0
    assert run("inspect", data, "--verify") == 0
    shard = next((data / "features").glob("shard-*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert run("inspect", data, "--verify") == 1
    assert shard.name in capsys.readouterr().out


def test_bad_lines_raise_or_are_counted(tmp_path, capsys):
    write_tsv(tmp_path / "bad.tsv", 4)
    lines = (tmp_path / "bad.tsv").read_text().splitlines()
    lines[1] = lines[1][:-7]
    (tmp_path / "bad.tsv").write_text("\n".join(lines) + "\n")
    assert run("features", "tsv", tmp_path / "bad.tsv", "--output", tmp_path / "strict") == 2
    error = capsys.readouterr().err
    assert "bad.tsv" in error
    assert "line 2" in error
    assert not (tmp_path / "strict" / "features").exists()
    assert (
        run("features", "tsv", tmp_path / "bad.tsv", "--output", tmp_path / "lax", "--skip-bad")
        == 0
    )
    assert "skipped 1" in capsys.readouterr().out
    assert sorted(FeatureStore(tmp_path / "lax").ids()) == ["1", "3", "4"]


def test_import_without_valid_lines_prints_the_reasons(tmp_path, capsys):
    (tmp_path / "bad.tsv").write_text("1\t320\t240\t1\t!!!!\t!!!!\n")
    (tmp_path / "bad.csv").write_text("image,caption\n1.jpg, \n")
    for kind, name in (("features", "tsv"), ("captions", "csv")):
        words = (kind, name, tmp_path / f"bad.{name}", "--output", tmp_path / "data", "--skip-bad")
        assert run(*words) == 2
        error = capsys.readouterr().err
        assert "no" in error
        assert "skipped 1" in error


def test_existing_captions_are_replaced_only_with_overwrite(tmp_path, captions, capsys):
    data = tmp_path / "data"
    assert run("captions", "csv", captions, "--output", data) == 0
    assert run("captions", "csv", captions, "--output", data) == 2
    assert "exists already" in capsys.readouterr().err
    assert run("captions", "csv", captions, "--output", data, "--overwrite") == 0
    (data / "vocabulary.json").unlink()  # as after a kill before the vocabulary was written
    assert run("captions", "csv", captions, "--output", data) == 0


def test_failed_import_leaves_existing_data(tmp_path, captions):
    data = tmp_path / "data"
    assert run("captions", "csv", captions, "--output", data) == 0
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    (tmp_path / "bad.csv").write_text("image,caption\n1.jpg,\n")
    for name in ("nowhere.csv", "bad.csv"):
        assert run("captions", "csv", tmp_path / name, "--output", data, "--overwrite") == 2
        assert {path.name: path.read_bytes() for path in data.iterdir()} == before


def test_concurrent_caption_import_raises(tmp_path, captions, capsys):
    data = tmp_path / "data"
    with folder_lock(data / "captions.lock"):
        assert run("captions", "csv", captions, "--output", data) == 2
    assert "another import" in capsys.readouterr().err
    assert run("captions", "csv", captions, "--output", data) == 0


def test_import_resumes_only_with_the_same_source_and_options(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        StoreWriter.__init__, "__kwdefaults__", {"shard_bytes": 400, "overwrite": False}
    )
    write_tsv(tmp_path / "bad.tsv", 9)
    with (tmp_path / "bad.tsv").open("a") as file:
        file.write("rubbish\n")
    data = tmp_path / "data"
    assert run("features", "tsv", tmp_path / "bad.tsv", "--output", data) == 2
    options = ["--skip-bad", "--box-format", "xywh"]
    assert run("features", "tsv", tmp_path / "bad.tsv", "--output", data, *options) == 2
    assert "another source" in capsys.readouterr().err
    assert run("features", "tsv", tmp_path / "bad.tsv", "--output", data, "--skip-bad") == 0
    assert "resuming after" in capsys.readouterr().out
    for number in range(1, 10):
        expect(FeatureStore(data), number, *make_regions(number))


def test_skipped_lines_are_counted_across_a_kill(tmp_path, monkeypatch, capsys):
    defaults = {"shard_bytes": 400, "overwrite": False}
    monkeypatch.setattr(StoreWriter.__init__, "__kwdefaults__", defaults)
    write_tsv(tmp_path / "bad.tsv", 9)
    lines = (tmp_path / "bad.tsv").read_text().splitlines()
    (tmp_path / "bad.tsv").write_text("\n".join([lines[0], "rubbish", *lines[1:]]) + "\n")
    words = ("features", "tsv", tmp_path / "bad.tsv", "--output", tmp_path / "data", "--skip-bad")
    with monkeypatch.context() as patch:

        def killed(self):
            raise KeyboardInterrupt

        patch.setattr(StoreWriter, "_finish", killed)
        assert run(*words) == 130
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert "resuming after" in out
    assert "skipped 1" in out
    assert len(FeatureStore(tmp_path / "data")) == 9


def test_fixed_file_can_be_imported_again(tmp_path):
    (tmp_path / "bad.tsv").write_text("rubbish\n")
    assert run("features", "tsv", tmp_path / "bad.tsv", "--output", tmp_path / "data") == 2
    write_tsv(tmp_path / "bad.tsv", 3)
    assert run("features", "tsv", tmp_path / "bad.tsv", "--output", tmp_path / "data") == 0


def test_damaged_index_is_reported_without_traceback(tmp_path, capsys):
    write_tsv(tmp_path / "trainval.tsv", 20)
    data = tmp_path / "data"
    assert run("features", "tsv", tmp_path / "trainval.tsv", "--output", data) == 0
    index = data / "features" / "index.safetensors"
    content = index.read_bytes()
    for place in range(len(content) // 2, len(content), 7):
        index.write_bytes(content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :])
        assert run("inspect", data, "--verify") == 1
    assert "index.safetensors" in capsys.readouterr().out


def test_relative_boxes_outside_the_image_are_not_read_as_pixels(tmp_path, capsys):
    (tmp_path / "regions").mkdir()
    boxes = np.array([[0.2, 0.3, 0.6, 1.01]])
    sides = {"image_w": 640, "image_h": 480}
    np.savez(tmp_path / "regions" / "1.npz", features=np.ones((1, 4)), bbox=boxes, **sides)
    assert run("features", "npz", tmp_path / "regions", "--output", tmp_path / "data") == 2
    assert "--box-unit" in capsys.readouterr().err


def test_transposed_features_are_accepted(tmp_path):
    (tmp_path / "regions").mkdir()
    features, boxes, size = make_regions(1, count=5)
    sides = {"image_w": size[0], "image_h": size[1], "num_bbox": 5}
    np.savez(tmp_path / "regions" / "1.npz", x=features.T, bbox=boxes, **sides)
    assert run("features", "npz", tmp_path / "regions", "--output", tmp_path / "data") == 0
    expect(FeatureStore(tmp_path / "data"), 1, features, boxes, size)


@pytest.mark.parametrize(
    "words",
    [
        ["captions", "csv", "nowhere.csv", "--output", "data"],
        ["features", "tsv", "nowhere.tsv", "--output", "data"],
        ["features", "npz", "nowhere", "--output", "data"],
        ["features", "hdf5", "nowhere.h5", "--output", "data"],
        ["inspect", "nowhere"],
    ],
)
def test_missing_file_error_names_it(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "data" / "features").exists()


@pytest.mark.parametrize("words", [[], ["caption"], ["captions"], ["captions", "cocoa"]])
def test_unknown_commands_raise(words, capsys):
    assert run(*words) == 2
    assert "ngsan data" in capsys.readouterr().err


def test_commands_of_the_data_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|sh)\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 6
    for language, source in blocks:
        if language == "python":
            exec(compile(source, "docs/data.md", "exec"), {})
        else:
            for line in source.splitlines():
                assert main(line.split()[1:]) == 0
    assert (tmp_path / "mydata" / "inspect.html").exists()
